"""Deletion of checkpoints, which never happens before a newer one is complete."""

import os
import shutil
from pathlib import Path

from bertfam.errors import UserError
from bertfam.storage import buckets
from bertfam.storage.buckets import is_remote
from bertfam.training.checkpoints import manifest
from bertfam.training.checkpoints.retention import Keep, held_out
from bertfam.training.checkpoints.selection import DELETED, complete, entries, folder, is_step, is_unfinished, steps

SET_ASIDE = ".damaged"
_ORBAX_METADATA = "_CHECKPOINT_METADATA"  # file of every checkpoint that Orbax has begun


def clear(model_dir: str | Path, step: int | None) -> None:
    """Rename checkpoints newer than `step`, which are damaged, to STEP.damaged before a run resumes there.

    Raises:
      UserError: if the folder of checkpoints is a link to one that has other folders, or has a link in place of a checkpoint.
    """
    directory = folder(model_dir)
    if not directory.is_dir():
        return
    _check_link(directory)
    _check_places(directory)
    clear_unfinished(directory)
    for newer in steps(directory):
        if step is None or newer > step:
            aside = directory / f"{newer}{SET_ASIDE}"
            _remove(aside)
            _rename(directory / str(newer), aside)


def _check_link(directory: Path) -> None:
    """Raise UserError if a link leads to a folder with numbers for names that are no checkpoints: a run would delete them."""
    if is_remote(directory) or not directory.is_symlink():
        return
    for step in steps(directory):
        if not any((directory / str(step) / name).exists() for name in (manifest.NAME, _ORBAX_METADATA)):
            raise UserError(
                f"{directory} is a link to {os.path.realpath(directory)}, where {step} is no checkpoint, and a run deletes old "
                "checkpoints; move that folder away, or use another --model_dir"
            )


def _check_places(directory: Path) -> None:
    """Raise UserError if a link is where the run would save a checkpoint, hours later."""
    for path in [] if is_remote(directory) else directory.iterdir():
        if path.is_symlink() and is_step(path.name):
            raise UserError(f"{path} is a link, and a run saves its checkpoints in this folder; move the link away")


def clear_unfinished(directory: Path) -> None:
    """Delete the remains of interrupted saves and deletions."""
    for path in entries(directory):
        if is_unfinished(path):
            _remove(path)


def delete_unkept(model_dir: Path, keep: Keep) -> None:
    """Delete the checkpoints that the policy does not keep, and damaged ones set aside at steps up to the newest."""
    directory = model_dir / "checkpoints"
    finished = complete(directory)
    last = max(finished, default=-1)
    kept = keep.kept(finished, held_out(model_dir, keep.best) if keep.best else {})
    older = [step for step in steps(directory) if step < last and step not in kept]
    unkept = [step for step in older if step in finished or keep.newest is not None]
    names = ((path, path.name.removesuffix(SET_ASIDE)) for path in entries(directory))
    aside = [path for path, name in names if name != path.name and name.isdecimal() and int(name) <= last]
    for path in [*(directory / str(step) for step in unkept), *aside]:
        _delete(path)


def _delete(path: Path) -> None:
    """Delete a checkpoint; rename it first, or delete its manifest in a bucket, so that a partial deletion is recognised."""
    if is_remote(path):
        (path / manifest.NAME).unlink(missing_ok=True)
        _remove(path)
        return
    renamed = path.with_name(path.name + DELETED)
    _rename(path, renamed)
    _remove(renamed)


def _rename(path: Path, target: Path) -> None:
    if is_remote(path):
        buckets.move(path, target)
    elif target.is_symlink():
        raise UserError(f"{target} is a link, and {path.name} is renamed to that; move the link away")
    else:
        path.rename(target)


def _remove(path: Path) -> None:
    if is_remote(path):
        buckets.remove(path)
    elif path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
