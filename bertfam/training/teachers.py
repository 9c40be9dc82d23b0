"""Teachers: models of other folders, read but not trained by a run."""

import hashlib
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from bertfam.config import Override
from bertfam.config.values import bindings_of
from bertfam.data.vocabularies import Vocabulary
from bertfam.errors import UserError
from bertfam.interop import huggingface
from bertfam.objectives.distillation import TEACHER
from bertfam.objectives.teacher import Teacher
from bertfam.storage.paths import to_path
from bertfam.training.checkpoints import selection
from bertfam.training.model_dir import read_run
from bertfam.training.networks import read_network
from bertfam.training.run import Run

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
      folder: where.
      step: which checkpoint of a MODEL_DIR; None: the newest.
      network: which, where there are several; None: the first.

    Raises:
      UserError: there is no such model.
    """
    if (to_path(folder) / "config.gin").is_file():
        step = selection.find(folder, step)
    model = read_network(folder, step=step, network=network)
    if model.has_decoder:
        raise UserError(f"{folder} holds a model that writes text, and teachers are encoders; name the folder of one")
    params = {name: jax.tree.map(np.asarray, model.params[name]) for name in _PARTS if name in model.params}
    teacher = Teacher(folder, model.config, "mlm_head" in params, digest(model.config, params), step, network)
    return LoadedTeacher(teacher, params, model.vocabulary)


def reopen_teacher(model_dir: str, folder: str, step: int | None = None, network: str | None = None) -> LoadedTeacher:
    """Open the teacher of the student in MODEL_DIR, or else as `open_teacher` does.

    The teacher's own run may have gone on since: by default its step is the one that the student knows, if that is still there.

    Raises:
      UserError: there is no such model, or the student has learned of another.
    """
    began = read_run(model_dir).objective.teachers if (to_path(model_dir) / "config.gin").is_file() else {}
    known = began.get(TEACHER)
    if known and known.step is not None and step is None and known.step in selection.steps(to_path(folder) / "checkpoints"):
        step = known.step
    opened = open_teacher(folder, step, network)
    if known and opened.teacher.digest != known.digest and selection.newest(model_dir) is not None:
        at = "" if opened.teacher.step is None else f" at step {opened.teacher.step:,}"
        fix = "" if known.step in (None, opened.teacher.step) else f"give --teacher_step={known.step}, or "
        raise UserError(
            f"{folder}{at} holds another teacher (digest {opened.teacher.digest}) than the student in {model_dir} began with "
            f"({known.digest}); {fix}name the folder that has it, or use another --model_dir"
        )
    return opened


def teacher_vocabulary(folder: str) -> Path:
    """Return the folder of a model's vocabulary."""
    return to_path(folder) / "vocab" if (to_path(folder) / "config.gin").is_file() else to_path(folder)


def digest(config: Any, params: dict[str, Any]) -> str:
    """Digest all values, equal for a MODEL_DIR and its export: 16 hexadecimal digits."""
    found = hashlib.sha256()
    # As files have them, so that rows behind the vocabulary do not count.
    for name, tensor in sorted(huggingface.to_tensors(huggingface.family_of(config), config, params).items()):
        found.update(f"{name} {tensor.shape}".encode())
        found.update(np.ascontiguousarray(tensor).data)
    return found.hexdigest()[:16]


def teacher_bindings(opened: LoadedTeacher, origin: str) -> list[Override]:
    """Return the bindings that set `Distillation.teacher` to this teacher."""
    teacher = opened.teacher
    # The vocabulary's size is left to the vocabulary.
    model = bindings_of(teacher.model, origin, scope=_SCOPE, without=("vocab_size",))
    own = {name: repr(getattr(teacher, name)) for name in ("has_head", "digest", "step", "network")}
    # A run may go on from elsewhere.
    own |= {"folder": repr(str(to_path(teacher.folder).absolute())), "model": f"@{_SCOPE}/{type(teacher.model).__name__}()"}
    return [
        Override("Distillation.teacher = @Teacher()", origin),
        *(Override(f"Teacher.{name} = {value}", origin) for name, value in own.items()),
        *model,
    ]


def read_teachers(run: Run, vocabulary: Vocabulary, there: Collection[LoadedTeacher] = ()) -> dict[str, Any]:
    """Read the `aux` of a run: the parameters of its teachers by name; {} for most objectives.

    Those that are `there` are not read again.

    Raises:
      UserError: one is not named, not there, another than the run's, or of another vocabulary.
    """
    found = {}
    for name, teacher in run.objective.teachers.items():
        if teacher is None:
            objective = type(run.objective).__name__
            raise UserError(f"{objective} has no {name} yet: name its folder with `bertfam distill --teacher=DIR`")
        same = (each for each in there if each.teacher.digest == teacher.digest)
        opened = next(same, None) or open_teacher(teacher.folder, teacher.step, teacher.network)
        pieces = [known.pieces(range(known.size)) for known in (opened.vocabulary, vocabulary)]
        if type(opened.vocabulary) is not type(vocabulary) or pieces[0] != pieces[1]:
            raise UserError(
                f"the vocabulary of the teacher {teacher.folder} is not this run's: a student has its teacher's; give text and "
                f"--vocab={teacher_vocabulary(teacher.folder)}, or a token cache that was built with it"
            )
        if opened.teacher.digest != teacher.digest:
            raise UserError(
                f"{teacher.folder} holds another teacher (digest {opened.teacher.digest}) than this run began with "
                f"({teacher.digest}); put that back, or name a folder that has it with `bertfam distill --teacher=DIR`"
            )
        found[name] = opened.params
    return found
