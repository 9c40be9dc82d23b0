"""Selection of the checkpoint that a command uses: the newest undamaged one."""

import sys
from collections.abc import Collection
from pathlib import Path

from bertfam.errors import UserError
from bertfam.storage.buckets import is_remote
from bertfam.storage.paths import to_path
from bertfam.training.checkpoints import manifest

# What Orbax's unfinished folders, and those that are about to be deleted, have in their names.
UNFINISHED = ".orbax-checkpoint-tmp"
DELETED = ".deleted"


def folder(model_dir: str | Path) -> Path:
    """Return MODEL_DIR/checkpoints; raises UserError if it is a file."""
    path = to_path(model_dir).absolute() / "checkpoints"
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file; move it away, for a folder belongs there")
    return path


def existing(model_dir: str | Path) -> Path:
    """Return MODEL_DIR/checkpoints; raises UserError if there is none."""
    path = folder(model_dir)
    if not path.is_dir():
        raise UserError(f"{model_dir} has no checkpoints; train a model there with `bertfam pretrain --model_dir={model_dir}`")
    return path


def steps(directory: Path) -> list[int]:
    """Return the steps with a folder, in order, complete or not."""
    found = [path for path in directory.iterdir() if path.name.isdigit()] if directory.is_dir() else []
    return sorted(int(path.name) for path in found if not is_unfinished(path))


def is_unfinished(path: Path) -> bool:
    """Whether a save or a deletion was cut off, or still goes on: by the name, which a finished one loses, or in a bucket, where
    nothing is renamed, by the manifest."""
    if UNFINISHED in path.name or path.name.endswith(DELETED):
        return True
    return is_remote(path) and path.name.isdigit() and not (path / manifest.NAME).exists()


def complete(directory: Path) -> list[int]:
    """Return the complete steps, by the sizes of their files, in order."""
    return [step for step in steps(directory) if manifest.fault(directory / str(step)) is None]


def newest(model_dir: str | Path) -> int | None:
    """Return the newest complete step by file sizes, or None; prints and writes nothing."""
    return max(complete(folder(model_dir)), default=None)


def choose(model_dir: str | Path, *, items: Collection[str] = (), before: int | None = None) -> int | None:
    """Return the newest step whose bytes all match their digests; warn about each newer damaged one.

    Args:
      model_dir: the run's folder.
      before: looks at earlier steps alone.
      items: what of a checkpoint is needed; by default all of it.

    Returns:
      the step; None where nothing was ever saved, or nothing so early.

    Raises:
      UserError: there are checkpoints, and none is whole.
    """
    directory = folder(model_dir)
    faults: dict[int, str] = {}
    for step in reversed([step for step in steps(directory) if before is None or step < before]):
        wrong = manifest.fault(directory / str(step), contents=True, items=items, tell=True)
        if wrong is None:
            for bad, why in faults.items():
                print(
                    f"bertfam: warning: {directory / str(bad)} is not used ({why}); step {step:,} is", file=sys.stderr, flush=True
                )
            return step
        faults[step] = wrong
    if not faults:
        return None
    told = ", ".join(f"{step} ({why})" for step, why in faults.items())
    raise UserError(f"no checkpoint in {directory} is whole: {told}; put a copy of one back, or use another --model_dir")


def find(model_dir: str | Path, step: int | None, items: Collection[str] = ("params",)) -> int:
    """Return the given step, or the newest whose `items` are complete.

    Raises:
      UserError: there is none, or it is damaged.
    """
    directory = existing(model_dir)
    if step is None:
        if (newest_whole := choose(model_dir, items=items)) is None:
            raise UserError(f"{directory} holds no complete checkpoint; train until one is saved, or use another --model_dir")
        return newest_whole
    there = steps(directory)
    if step not in there:
        raise UserError(f"{directory} has no step {step}; it has {', '.join(map(str, there)) or 'none'}")
    if wrong := manifest.fault(directory / str(step), contents=True, items=items, tell=True):
        good = [other for other in complete(directory) if other != step]
        others = f"use another: {', '.join(map(str, good))}" if good else "put a copy of it back"
        raise UserError(f"{directory / str(step)} is damaged ({wrong}); {others}")
    return step
