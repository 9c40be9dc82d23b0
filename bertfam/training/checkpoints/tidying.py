"""What is deleted of MODEL_DIR/checkpoints, and when: never before what takes its place is complete."""

import shutil
from pathlib import Path

from bertfam.training.checkpoints.choosing import complete, folder, steps
from bertfam.training.retention import Keep, held_out

# What Orbax's unfinished folders, and those that are about to be deleted, have in their names.
UNFINISHED = ".orbax-checkpoint-tmp"
_DELETED = ".deleted"
SET_ASIDE = ".damaged"


def clear(model_dir: str | Path, step: int | None) -> None:
    """Makes room for a run that goes on after `step`: what is newer is damaged, and is set aside as STEP.damaged."""
    directory = folder(model_dir)
    if not directory.is_dir():
        return
    clear_unfinished(directory)
    for newer in steps(directory):
        if step is None or newer > step:
            aside = directory / f"{newer}{SET_ASIDE}"
            _remove(aside)
            (directory / str(newer)).rename(aside)


def clear_unfinished(directory: Path) -> None:
    """Deletes what saves and deletions that were cut off have left."""
    for path in directory.iterdir():
        if UNFINISHED in path.name or path.name.endswith(_DELETED):
            _remove(path)


def tidy(model_dir: Path, keep: Keep) -> None:
    """Deletes the checkpoints that do not stay, and what was set aside of steps that are saved anew or passed."""
    directory = model_dir / "checkpoints"
    whole = complete(directory)
    last = max(whole, default=-1)
    kept = keep.kept(whole, held_out(model_dir, keep.best) if keep.best else {})
    gone = [step for step in steps(directory) if step < last and step not in kept and (step in whole or keep.newest is not None)]
    names = ((path, path.name.removesuffix(SET_ASIDE)) for path in directory.glob(f"*{SET_ASIDE}"))
    aside = [path for path, name in names if name.isdecimal() and int(name) <= last]
    for path in [*(directory / str(step) for step in gone), *aside]:
        _delete(path)


def _delete(path: Path) -> None:
    """Deletes a checkpoint; one that is deleted in part has lost its name before."""
    gone = path.with_name(path.name + _DELETED)
    path.rename(gone)
    _remove(gone)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
