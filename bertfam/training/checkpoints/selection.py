"""Selection of the checkpoint that a command uses: the newest undamaged one."""

from collections.abc import Collection
from pathlib import Path

from bertfam.errors import UserError, warn, warn_once
from bertfam.interop.folders import check_is_run
from bertfam.storage.buckets import is_remote
from bertfam.storage.paths import absolute, missing_folder, to_path
from bertfam.training.checkpoints import manifest, retention
from bertfam.training.checkpoints.retention import Keep

# Parts of the names of folders that Orbax has not finished, and of those being deleted.
UNFINISHED = ".orbax-checkpoint-tmp"
DELETED = ".deleted"


def folder(model_dir: str | Path) -> Path:
    """Return MODEL_DIR/checkpoints; raise UserError if it is a file."""
    path = absolute(model_dir) / "checkpoints"
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file, but must be a folder; move the file elsewhere")
    return path


def existing(model_dir: str | Path) -> Path:
    """Return MODEL_DIR/checkpoints; raise UserError if it does not exist."""
    path = folder(model_dir)
    if not path.is_dir():
        if path.parent.is_dir() and any(path.parent.iterdir()):
            check_is_run(model_dir)
        fix = missing_folder(model_dir) or f"train a model there with `bertfam pretrain --model_dir={model_dir}`"
        raise UserError(f"{model_dir} has no checkpoints; {fix}")
    return path


def entries(directory: Path) -> list[Path]:
    """Return the files and folders in a folder of checkpoints; links, which may lead anywhere, are named and left out."""
    paths = list(directory.iterdir()) if directory.is_dir() else []
    if is_remote(directory):
        return paths
    links = sorted(path for path in paths if path.is_symlink())
    for path in links:
        warn_once(f"{path} is a link, and no checkpoint: it is not used; put the folder itself there (cp -r --dereference)")
    return [path for path in paths if path not in links]


def steps(directory: Path) -> list[int]:
    """Return the steps with a folder, in order, complete or not."""
    return sorted(int(path.name) for path in entries(directory) if is_step(path.name) and not is_unfinished(path))


def is_step(name: str) -> bool:
    """Return True if a folder of this name is that of a step, as `str(step)` writes it, in ASCII and without leading zeros."""
    return name.isascii() and name.isdecimal() and name == str(int(name))


def is_unfinished(path: Path) -> bool:
    """Return whether a save or a deletion of this folder was interrupted or is still running.

    Such a folder has a temporary name; in a bucket, where nothing is renamed, it has no manifest.
    """
    if UNFINISHED in path.name or path.name.endswith(DELETED):
        return True
    return is_remote(path) and is_step(path.name) and not (path / manifest.NAME).exists()


def complete(directory: Path) -> list[int]:
    """Return the complete steps, by the sizes of their files, in order."""
    return [step for step in steps(directory) if manifest.fault(directory / str(step)) is None]


def newest(model_dir: str | Path) -> int | None:
    """Return the newest complete step by the sizes of its files, or None, without printing or writing anything."""
    return max(complete(folder(model_dir)), default=None)


def choose(model_dir: str | Path, *, items: Collection[str] = (), before: int | None = None) -> int | None:
    """Return the newest step whose bytes all match their digests; warn about each newer damaged one.

    Args:
      model_dir: folder of the run.
      items: items of the checkpoint to check; by default all.
      before: consider only steps before this one.

    Returns:
      The step; None if there is no checkpoint.

    Raises:
      UserError: if there are checkpoints, but all are damaged.
    """
    directory = folder(model_dir)
    faults: dict[int, str] = {}
    for step in reversed([step for step in steps(directory) if before is None or step < before]):
        fault = manifest.fault(directory / str(step), contents=True, items=items, report=True)
        if fault is None:
            for damaged, why in faults.items():
                warn([f"{directory / str(damaged)} is not used ({why}); step {step:,} is"])
            return step
        faults[step] = fault
    if not faults:
        return None
    descriptions = ", ".join(f"{step} ({why})" for step, why in faults.items())
    raise UserError(
        f"all checkpoints in {directory} are damaged: {descriptions}; restore a copy of one, or use another --model_dir"
    )


def best(model_dir: str | Path, keep: Keep) -> int | None:
    """Return the complete step with the best held-out metric `keep.best`; None if none of them was evaluated."""
    scores = retention.held_out(to_path(model_dir), keep.best) if keep.best else {}
    return keep.best_of(complete(folder(model_dir)), scores)


def find(model_dir: str | Path, step: int | None, items: Collection[str] = ("params",)) -> int:
    """Return the given step, or the newest one whose `items` are undamaged.

    Raises:
      UserError: if there is none, or the given one is damaged.
    """
    directory = existing(model_dir)
    if step is None:
        if (newest_undamaged := choose(model_dir, items=items)) is None:
            raise UserError(f"{directory} holds no complete checkpoint; train until one is saved, or use another --model_dir")
        return newest_undamaged
    available = steps(directory)
    if step not in available:
        raise UserError(f"{directory} has no step {step!r}; it has {', '.join(map(str, available)) or 'none'}")
    if fault := manifest.fault(directory / str(step), contents=True, items=items, report=True):
        others = [other for other in complete(directory) if other != step]
        fix = f"use another: {', '.join(map(str, others))}" if others else "restore a copy of it"
        raise UserError(f"{directory / str(step)} is damaged ({fault}); {fix}")
    return step
