"""What is deleted of MODEL_DIR/checkpoints, and when: never before what takes its place is complete."""

import shutil
from pathlib import Path

from bertfam.storage import buckets
from bertfam.storage.buckets import is_remote
from bertfam.training.checkpoints import manifest
from bertfam.training.checkpoints.retention import Keep, held_out
from bertfam.training.checkpoints.selection import DELETED, complete, folder, is_unfinished, steps

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
            _rename(directory / str(newer), aside)


def clear_unfinished(directory: Path) -> None:
    """Deletes what saves and deletions that were cut off have left."""
    for path in directory.iterdir():
        if is_unfinished(path):
            _remove(path)


def delete_unkept(model_dir: Path, keep: Keep) -> None:
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
    """Deletes a checkpoint; one that is deleted in part has lost its name before, or its manifest in a bucket."""
    if is_remote(path):
        (path / manifest.NAME).unlink(missing_ok=True)
        _remove(path)
        return
    gone = path.with_name(path.name + DELETED)
    path.rename(gone)
    _remove(gone)


def _rename(path: Path, target: Path) -> None:
    if is_remote(path):
        buckets.move(path, target)
    else:
        path.rename(target)


def _remove(path: Path) -> None:
    if is_remote(path):
        buckets.remove(path)
    elif path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
