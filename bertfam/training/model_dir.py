"""MODEL_DIR: the files of a run, and how later commands read them.

config.gin        the complete configuration; loads by itself
fingerprint.json  what the tokens depend on: text, vocabulary
start.json        the flags of --init_from, where the run began with them
plan.json         what was printed before training
vocab/            the vocabulary
cache/            the token cache, unless the run names another
checkpoints/      Orbax
metrics.jsonl     one object a line, and TensorBoard event files
compilations/     what was compiled for an accelerator, unless JAX_COMPILATION_CACHE_DIR names another folder
plugins/profile/  of --profile_steps
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from flax import linen as nn

from bertfam.config import Config, load
from bertfam.data import vocabularies
from bertfam.data.vocabularies import Vocabulary
from bertfam.errors import UserError
from bertfam.storage.files import check_writable, clear_partial, read_json, write_text
from bertfam.storage.paths import check_whole, make_folder, to_path
from bertfam.training.checkpoints import Checkpoints, has_training_state, selection
from bertfam.training.data import check_vocabulary
from bertfam.training.run import Run, check_resumable, check_same_model


@dataclass(frozen=True)
class TrainedModel:
    """Contents of a MODEL_DIR opened for evaluation, filling and export.

    Attributes:
      run: the configuration, with the vocabulary's size.
      vocabulary: the vocabulary.
      step: the checkpoint's step.
      params: the parameters, whole on the first device; of an imported model only the heads that it came with.
    """

    run: Run
    vocabulary: Vocabulary
    step: int
    params: Any


START = "start.json"
# What a run may have left before its config.gin.
_OWN = ("cache", "checkpoints", "vocab", "plan.json", "fingerprint.json", START, "metrics.jsonl")


def check_folder(model_dir: Path) -> None:
    """Raise UserError if MODEL_DIR cannot be made, is a file, or a folder of something else than a run."""
    if not model_dir.exists():
        check_writable(model_dir)
        return
    if not model_dir.is_dir():
        raise UserError(f"--model_dir={model_dir} is a file; name a folder")
    other = sorted(path.name for path in model_dir.iterdir() if path.name not in _OWN and not path.name.startswith("."))
    if other and not (model_dir / "config.gin").is_file():
        raise UserError(f"--model_dir={model_dir} holds {other[0]} and no run (no config.gin): name a new folder")


def check_resumes(model_dir: Path, run: Run, given: Sequence[str | Path], step: int) -> None:
    """Raise UserError if a sized run cannot resume from a step in MODEL_DIR, or start from an imported model there.

    Args:
      model_dir: of the run that has begun, or of the model.
      run: what is to go on.
      given: the vocabularies that it is given.
      step: of the checkpoint.
    """
    for folder in given:
        check_vocabulary(folder, model_dir)
    began = read_run(model_dir).sized(vocabularies.load(model_dir / "vocab").size)
    if has_training_state(model_dir, step):
        check_resumable(began, run, step)
    else:
        check_same_model(began.objective.model, run.objective.model)


def prepare_folder(
    model_dir: Path,
    config: Config,
    plan: dict[str, Any],
    fingerprint: dict[str, Any],
    vocabulary: Vocabulary | None,
    start: Mapping[str, Any] | None = None,
) -> None:
    """Make MODEL_DIR, or update its files; a run that already has a vocabulary keeps it (None).

    What a killed process had begun to write is deleted. `start` has the flags of --init_from that a new run begins with: until
    it has a checkpoint, the folder alone says by them where it starts (see `saved_init_flags`).

    Raises:
      UserError: something cannot be written.
    """
    try:
        make_folder(model_dir)
    except OSError as error:
        raise UserError(f"{model_dir} cannot be made ({error.strerror}); choose another --model_dir") from error
    for folder in (model_dir, model_dir / "vocab"):
        clear_partial(folder)
    if start:
        write_text(model_dir / START, json.dumps(start, indent=1) + "\n")
    elif vocabulary:
        (model_dir / START).unlink(missing_ok=True)
    write_text(model_dir / "config.gin", config.complete("Run").text())
    write_text(model_dir / "plan.json", json.dumps(plan, indent=1) + "\n")
    write_text(model_dir / "fingerprint.json", json.dumps(fingerprint, indent=1) + "\n")
    if vocabulary:
        vocabulary.save(model_dir / "vocab")


def saved_init_flags(model_dir: Path) -> dict[str, Any]:
    """Read the --init_from flags of the run, by name; {} if it started from new parameters."""
    path = model_dir / START
    return read_json(path) if path.is_file() else {}


def read_run(model_dir: str | Path) -> Run:
    """Read the configuration of a MODEL_DIR; raise UserError if it has none, or needs a module that is not imported yet."""
    path = to_path(model_dir) / "config.gin"
    check_whole(path.parent)
    if not path.is_file():
        raise UserError(f"{model_dir} is no model folder (no config.gin); `bertfam pretrain` or `bertfam import` makes one")
    return load([str(path)], saved=[str(path)]).build("Run")


def _check_vocabulary(model_dir: Path, vocabulary: Vocabulary) -> None:
    """Check that the vocabulary is the one that the model was trained with; an imported model records none."""
    path = model_dir / "fingerprint.json"
    if path.is_file() and read_json(path).get("vocabulary") != vocabulary.fingerprint:
        raise UserError(f"{model_dir / 'vocab'} is not the vocabulary that the model was trained with: put that back")


def open_model(model_dir: str | Path, step: int | None = None, *, average: bool = False) -> TrainedModel:
    """Read a MODEL_DIR's configuration, vocabulary and parameters of a step, by default the newest.

    `average` reads the moving average of the parameters in their place.

    Raises:
      UserError: where one of them is missing.
    """
    run = read_run(model_dir)
    vocabulary = vocabularies.load(to_path(model_dir) / "vocab")
    _check_vocabulary(to_path(model_dir), vocabulary)
    run = run.sized(vocabulary.size)
    checkpoints = Checkpoints(model_dir, read_only=True)
    found = selection.find(model_dir, step, ("average" if average else "params",))
    here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    parts = checkpoints.parts(found)
    shapes = {name: shape for name, shape in nn.meta.unbox(run.boxed_params()).items() if name in parts}
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here), shapes)
    params = checkpoints.restore_params(found, like, average=average)
    checkpoints.close()
    return TrainedModel(run, vocabulary, found, params)
