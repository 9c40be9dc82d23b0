"""Teachers: models of other folders, read but not trained by a run."""

import hashlib
from collections.abc import Collection
from typing import Any, NamedTuple

import jax
import numpy as np

from bertfam.config import Override
from bertfam.config.values import bindings_of
from bertfam.data.vocabularies import Vocabulary
from bertfam.errors import UserError
from bertfam.interop import huggingface
from bertfam.models.encoder_decoder import EncoderOnlyConfig
from bertfam.objectives.distillation import TEACHER
from bertfam.objectives.teacher import Teacher
from bertfam.storage.paths import to_path
from bertfam.training.checkpoints import selection
from bertfam.training.model_dir import check_floats, read_run
from bertfam.training.run import Run
from bertfam.training.trained_networks import ENCODER, ENCODER_DECODER, read_network, vocabulary_folder

_SCOPE = "teacher"
_PARTS = ("encoder", "mlm_head")


class LoadedTeacher(NamedTuple):
    """Teacher read from a folder: its description, its parameters (NumPy arrays), its vocabulary."""

    teacher: Teacher
    params: dict[str, Any]
    vocabulary: Vocabulary


def open_teacher(folder: str, step: int | None = None, network: str | None = None) -> LoadedTeacher:
    """Read the encoder, and the masked-token head if there is one, of a MODEL_DIR or a Hugging Face folder.

    Args:
      folder: MODEL_DIR or Hugging Face folder.
      step: step of the checkpoint of a MODEL_DIR; None: the newest.
      network: name of the network, if there are several; None: the first.

    Raises:
      UserError: if there is no such model.
    """
    if (to_path(folder) / "config.gin").is_file():
        step = selection.find(folder, step)
    model = read_network(folder, step=step, network=network)
    if model.trained is not None:
        check_floats(model.trained.run, folder, "to distill it")
    if model.config.kind != ENCODER:
        fix = f", or give --teacher_network={ENCODER}" if model.config.kind == ENCODER_DECODER else ""
        raise UserError(f"{folder} holds a model with a decoder, but a teacher must be an encoder; name the folder of one{fix}")
    params = {name: jax.tree.map(np.asarray, model.params[name]) for name in _PARTS if name in model.params}
    teacher = Teacher(folder, model.config, "mlm_head" in params, digest(model.config, params), step, network)
    return LoadedTeacher(teacher, params, model.vocabulary)


def reopen_teacher(model_dir: str, folder: str, step: int | None = None, network: str | None = None) -> LoadedTeacher:
    """Read the teacher of the student in MODEL_DIR, or of a new student.

    The teacher's own run may have continued meanwhile. The default step is therefore the one that the student started with, if
    that checkpoint still exists.

    Args:
      model_dir: folder of the student.
      folder: MODEL_DIR or Hugging Face folder of the teacher.
      step: step of the teacher's checkpoint; None: the default.
      network: name of the network, if there are several; None: the first.

    Raises:
      UserError: if there is no such model, or the student started with another teacher.
    """
    saved = read_run(model_dir).objective.teachers if (to_path(model_dir) / "config.gin").is_file() else {}
    known = saved.get(TEACHER)
    if known and known.step is not None and step is None and known.step in selection.steps(to_path(folder) / "checkpoints"):
        step = known.step
    opened = open_teacher(folder, step, network)
    if known and opened.teacher.digest != known.digest and selection.newest(model_dir) is not None:
        at = "" if opened.teacher.step is None else f" at step {opened.teacher.step:,}"
        fix = "" if known.step in (None, opened.teacher.step) else f"give --teacher_step={known.step}, or "
        raise UserError(
            f"{folder}{at} holds another teacher (digest {opened.teacher.digest}) than the student in {model_dir} started with "
            f"({known.digest}); {fix}name the folder that has it, or use another --model_dir"
        )
    return opened


def digest(config: Any, params: dict[str, Any]) -> str:
    """Digest all parameters: 16 hexadecimal digits, equal for a MODEL_DIR and its export."""
    if isinstance(config, EncoderOnlyConfig):
        config, params = config.model, config.shared_params(params)
    result = hashlib.sha256()
    # Exported tensors, so that padding rows after the vocabulary do not count.
    for name, tensor in sorted(huggingface.to_tensors(huggingface.family_of(config), config, params).items()):
        result.update(f"{name} {tensor.shape}".encode())
        result.update(np.ascontiguousarray(tensor).data)
    return result.hexdigest()[:16]


def teacher_bindings(opened: LoadedTeacher, origin: str) -> list[Override]:
    """Return the bindings that set `Distillation.teacher` to this teacher."""
    teacher = opened.teacher
    # The size of the vocabulary is set by the vocabulary itself.
    model = bindings_of(teacher.model, origin, scope=_SCOPE, without=("vocab_size",))
    own = {name: repr(getattr(teacher, name)) for name in ("has_head", "digest", "step", "network")}
    # The path is absolute, since the run may resume in another working directory.
    own |= {"folder": repr(str(to_path(teacher.folder).absolute())), "model": f"@{_SCOPE}/{type(teacher.model).__name__}()"}
    return [
        Override("Distillation.teacher = @Teacher()", origin),
        *(Override(f"Teacher.{name} = {value}", origin) for name, value in own.items()),
        *model,
    ]


def read_teachers(run: Run, vocabulary: Vocabulary, loaded: Collection[LoadedTeacher] = ()) -> dict[str, Any]:
    """Read the parameters of a run's teachers by name, a part of its `aux`; {} for most objectives.

    Args:
      run: run of the student.
      vocabulary: vocabulary of the student.
      loaded: teachers that have been read already.

    Raises:
      UserError: if a teacher is not configured, does not exist, has changed, or has another vocabulary.
    """
    params = {}
    for name, teacher in run.objective.teachers.items():
        if teacher is None:
            objective = type(run.objective).__name__
            raise UserError(f"{objective} has no {name} yet: name its folder with `bertfam distill --teacher=DIR`")
        matching = (other for other in loaded if other.teacher.digest == teacher.digest)
        opened = next(matching, None) or open_teacher(teacher.folder, teacher.step, teacher.network)
        pieces = [known.pieces(range(known.size)) for known in (opened.vocabulary, vocabulary)]
        if type(opened.vocabulary) is not type(vocabulary) or pieces[0] != pieces[1]:
            raise UserError(
                f"the vocabulary of the teacher {teacher.folder} is not that of this run, but a student must have its "
                f"teacher's; give text and --vocab={vocabulary_folder(teacher.folder)}, or a token cache that was built with it"
            )
        if opened.teacher.digest != teacher.digest:
            raise UserError(
                f"{teacher.folder} holds another teacher (digest {opened.teacher.digest}) than this run started with "
                f"({teacher.digest}); restore that, or name a folder that has it with `bertfam distill --teacher=DIR`"
            )
        params[name] = opened.params
    return params


def read_aux(run: Run, vocabulary: Vocabulary, loaded: Collection[LoadedTeacher] = ()) -> dict[str, Any]:
    """Read the `aux` of a run: its teachers (see `read_teachers`) and what else its objective reads and does not train."""
    return read_teachers(run, vocabulary, loaded) | run.objective.read_aux(vocabulary)
