"""MODEL_DIR: the files of a run, and how later commands read them.

config.gin        complete configuration, without includes
fingerprint.json  fingerprint of the text and the vocabulary
start.json        warm-start flags (--init_from) of a run that has them
files.json        digests of the files above, see `integrity.model_dir_files`
plan.json         plan of the run, printed before training
vocab/            vocabulary
vocab_NETWORK/    vocabulary of a network that has one of its own, such as vocab_query/
cache/            token cache, unless the run names another folder
checkpoints/      Orbax checkpoints
starts.jsonl      starts of the run, see `logs.starts`
metrics.jsonl     metrics, one object per line; TensorBoard event files are beside it, and metrics.damaged.jsonl for damaged lines
compilations/     compiled programs of runs of earlier versions, which are not used
plugins/profile/  profiles of --profile_steps
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from bertfam.config import Config, file_binds, load
from bertfam.data import vocabularies
from bertfam.data.vocabularies import Vocabulary
from bertfam.errors import UserError
from bertfam.interop.folders import check_is_run, model_folder_around, model_folders_in
from bertfam.plurals import plural
from bertfam.storage.files import check_writable, clear_partial, is_used, write_text
from bertfam.storage.paths import check_encodable, check_whole, make_folder, to_path
from bertfam.storage.untrusted import check_subfolder, read_json
from bertfam.training.checkpoints import Checkpoints, has_training_state, selection
from bertfam.training.integrity import model_dir_files
from bertfam.training.integrity.model_dir_files import FINGERPRINT, START
from bertfam.training.logs import starts
from bertfam.training.run import Run, check_resumable, check_same_model
from bertfam.training.run_checks import check_vocabulary


@dataclass(frozen=True)
class TrainedModel:
    """Model of a MODEL_DIR, opened for evaluation, filling and export.

    Attributes:
      run: configuration, with the vocabulary's size; see `Run.at`.
      vocabulary: vocabulary of the model.
      step: step of the checkpoint.
      params: parameters, unsharded on the first device; an imported model has only the heads that it was imported with. The
        kernels of a quantised model are int8 or int4 (see `bertfam.compression.quantization`).
    """

    run: Run
    vocabulary: Vocabulary
    step: int
    params: Any


_OWN_VOCABULARY = "vocab_"  # before the name of a network

# Names that a run may have written before its config.gin.
_OWN = ("cache", "checkpoints", "vocab", "plan.json", FINGERPRINT, START, "metrics.jsonl", starts.NAME, model_dir_files.NAME)


def check_folder(model_dir: Path) -> None:
    """Raise UserError if MODEL_DIR cannot be made, is a file, or is a folder with other contents than a run."""
    check_encodable(model_dir)
    if not model_dir.exists():
        check_writable(model_dir)
        return
    if not model_dir.is_dir():
        raise UserError(f"--model_dir={model_dir} is a file; name a folder")
    check_subfolder(model_dir / "vocab")  # a run writes its vocabulary there
    other = sorted(path.name for path in model_dir.iterdir() if path.name not in _OWN and not path.name.startswith("."))
    if other and not (model_dir / "config.gin").is_file():
        raise UserError(f"--model_dir={model_dir} holds {other[0]} and no run (no config.gin): {_fix_of_other(model_dir)}")


def _fix_of_other(folder: Path) -> str:
    """Return how to give a folder that is no MODEL_DIR to a command."""
    if (folder / "config.json").is_file():
        return f"it is a Hugging Face folder, so start a new run from it by --init_from={folder} and another --model_dir"
    if (folder / "cache.json").is_file():
        return f"it is a token cache, so give it as --cache_dir={folder}, and another --model_dir"
    if vocabularies.is_vocabulary(folder):
        return f"it is a vocabulary, so give it as --vocab={folder}, and another --model_dir"
    return model_folder_around(folder) or model_folders_in(folder) or "name a new folder"


def check_resumes(model_dir: Path, run: Run, given: Sequence[str | Path], step: int) -> None:
    """Raise UserError if a sized run cannot resume from a step in MODEL_DIR, or start from an imported model there.

    Args:
      model_dir: folder of the run or the imported model.
      run: sized run to resume or start.
      given: vocabularies that the command names.
      step: step of the checkpoint.
    """
    for folder in given:
        check_vocabulary(folder, model_dir)
    saved = read_run(model_dir).fitted(vocabularies.load(model_dir / "vocab"))
    check_floats(saved, model_dir, "to train it")
    if has_training_state(model_dir, step):
        if step > saved.total_steps:
            raise UserError(
                f"{selection.folder(model_dir) / str(step)} is named after an update that this run of "
                f"{plural(saved.total_steps, 'update')} cannot have made: it was renamed or copied; move it away"
            )
        check_resumable(saved, run, step, str(model_dir))
    else:
        check_same_model(saved.objective.model, run.objective.model)


def prepare_folder(
    model_dir: Path,
    config: Config,
    plan: dict[str, Any],
    fingerprint: dict[str, Any],
    vocabulary: Vocabulary | None,
    start: Mapping[str, Any] | None = None,
    own_vocabularies: Mapping[str, str] | None = None,
) -> None:
    """Make MODEL_DIR, or update its files; partially written files of a killed process are deleted.

    Args:
      model_dir: folder of the run.
      config: configuration to save.
      plan: plan of the run.
      fingerprint: fingerprint of text and vocabulary.
      vocabulary: vocabulary to save; None for a run that already has one.
      start: warm-start flags of a new run; `saved_init_flags` returns them until the run has a checkpoint.
      own_vocabularies: folders of `Objective.vocabulary_folders`, which are copied.

    Raises:
      UserError: if a file cannot be written.
    """
    try:
        make_folder(model_dir)
    except OSError as error:
        raise UserError(f"{model_dir} cannot be made ({error.strerror}); choose another --model_dir") from error
    for name in ("config.gin", "plan.json", FINGERPRINT, START, starts.NAME, model_dir_files.NAME):
        if (model_dir / name).is_dir():
            raise UserError(f"{model_dir / name} is a folder, in place of a file that a run writes: move it away")
    for folder in (model_dir, model_dir / "vocab"):
        clear_partial(folder)
    model_dir_files.remove(model_dir)
    if start:
        write_text(model_dir / START, json.dumps(start, indent=1) + "\n")
    elif vocabulary:
        (model_dir / START).unlink(missing_ok=True)
    write_text(model_dir / "config.gin", config.complete("Run").text())
    write_text(model_dir / "plan.json", json.dumps(plan, indent=1) + "\n")
    write_text(model_dir / FINGERPRINT, json.dumps(fingerprint, indent=1) + "\n")
    if vocabulary:
        vocabulary.save(model_dir / "vocab")
    copy_own_vocabularies(model_dir, own_vocabularies or {})
    model_dir_files.write(model_dir, fingerprint["vocabulary"])


def saved_init_flags(model_dir: Path) -> dict[str, Any]:
    """Read the warm-start flags of the run, by name; {} if it has none."""
    path = model_dir / START
    return read_json(path) if path.is_file() else {}


def read_run(model_dir: str | Path) -> Run:
    """Read the configuration of a MODEL_DIR.

    Raises:
      UserError: it has none, a file of the folder is missing or changed, or a module is needed that is not imported yet.
    """
    path = to_path(model_dir) / "config.gin"
    check_whole(path.parent)
    model_dir_files.check(path.parent)
    check_is_run(model_dir)
    check_config(path)
    return with_own_vocabularies(load([str(path)], saved=[str(path)]), path.parent).build("Run")


def copy_own_vocabularies(model_dir: Path, folders: Mapping[str, str]) -> None:
    """Copy the vocabularies of networks that have their own to MODEL_DIR, given `Objective.vocabulary_folders`."""
    for name, folder in folders.items():
        copy = _own_vocabulary(model_dir, name)
        if to_path(folder).absolute() != copy.absolute():
            clear_partial(copy)
            vocabularies.load(folder).save(copy)


def with_own_vocabularies(config: Config, model_dir: Path) -> Config:
    """Return the configuration with the vocabularies that `copy_own_vocabularies` has copied to MODEL_DIR.

    A folder that flags name, and whose vocabulary is another one, stays. Runs of earlier versions have no copies.
    """
    if not own_vocabularies(model_dir):
        return config
    for name, folder in config.build("Run").objective.vocabulary_folders.items():
        copy = _own_vocabulary(model_dir, name)
        if not is_used(copy):
            continue
        sources = [binding.origin.source for binding in config.bindings.values() if binding.value == folder]
        is_saved = config.saved_sources.issuperset(sources)
        if is_saved or vocabularies.load(folder).fingerprint == vocabularies.load(copy).fingerprint:
            config = config.replaced(folder, str(copy.absolute()))
    return config


def own_vocabularies(model_dir: Path) -> list[Path]:
    """Return the folders of a MODEL_DIR that `copy_own_vocabularies` has made."""
    if not model_dir.is_dir():
        return []
    folders = [path for path in model_dir.iterdir() if path.name.startswith(_OWN_VOCABULARY) and is_used(path)]
    for folder in folders:
        check_subfolder(folder)
    return folders


def _own_vocabulary(model_dir: Path, network: str) -> Path:
    return model_dir / f"{_OWN_VOCABULARY}{network}"


def best_step(model_dir: str | Path) -> int:
    """Return the step of the checkpoint with the best held-out metric of a run (`Run.keep_best`).

    Raises:
      UserError: the run names no such metric, or no checkpoint was evaluated.
    """
    keep = read_run(model_dir).keep
    if keep.best is None:
        raise UserError(
            f"--step=best: the run in {model_dir} has no Run.keep_best, the metric that says which is best; give a step"
        )
    selection.existing(model_dir)
    step = selection.best(model_dir, keep)
    if step is None:
        raise UserError(f"--step=best: no checkpoint in {model_dir} has a held-out {keep.best}; give a step")
    return step


def check_config(path: Path) -> None:
    """Raise UserError if the config.gin of a MODEL_DIR has no objective, as one that is empty or cut off."""
    if not file_binds([str(path)], "Run.objective", saved=True):
        raise UserError(f"{path} is empty or cut off: it has no objective; restore it")


def check_floats(run: Run, folder: str | Path, purpose: str) -> None:
    """Raise UserError if the model of a folder is quantised, for a purpose that needs floats, such as "to export it"."""
    if run.quantization is not None:
        raise UserError(f"{folder} holds a quantised model: name the model that it was made from {purpose}")


def check_own_vocabulary(model_dir: Path, vocabulary: Vocabulary, step: int) -> None:
    """Raise UserError if the model was trained with another vocabulary; only an imported model may have no record of it."""
    recorded = model_dir_files.recorded_vocabulary(model_dir)
    if recorded is None and has_training_state(model_dir, step):
        raise UserError(f"{model_dir / FINGERPRINT}, the record of the vocabulary of this run, is missing; restore it")
    if recorded is not None and recorded != vocabulary.fingerprint:
        raise UserError(f"{model_dir / 'vocab'} is not the vocabulary that the model was trained with; restore that")


def open_model(model_dir: str | Path, step: int | None = None, *, average: bool = False) -> TrainedModel:
    """Read the configuration, the vocabulary and the parameters of a MODEL_DIR.

    Args:
      model_dir: folder of the run or the imported model.
      step: step of the checkpoint; None: the newest undamaged one.
      average: whether to read the moving average of the parameters instead of the parameters.

    Raises:
      UserError: if one of them is missing or damaged.
    """
    run = read_run(model_dir)
    vocabulary = vocabularies.load(to_path(model_dir) / "vocab")
    run = run.fitted(vocabulary)
    checkpoints = Checkpoints(model_dir, read_only=True)
    step = selection.find(model_dir, step, ("average" if average else "params",))
    check_own_vocabulary(to_path(model_dir), vocabulary, step)
    here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    parts = checkpoints.parts(step)
    shapes = {name: shape for name, shape in run.stored_params.items() if name in parts}
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here), shapes)
    params = checkpoints.restore_params(step, like, average=average)
    checkpoints.close()
    if run.quantization is not None:
        params = run.quantization.with_float_tables(params)
    run = run.at(step)
    return TrainedModel(run, vocabulary, step, {name: part for name, part in params.items() if name in run.boxed_params})
