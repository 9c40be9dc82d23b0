"""Paths of files and folders, here or in a bucket, which the rest of the code treats alike."""

import os
import shutil
from pathlib import Path

from bertfam.errors import UserError
from bertfam.storage import buckets
from bertfam.storage.buckets import is_remote


def to_path(path: str | os.PathLike[str]) -> Path:
    """What commands make of the names of files and folders: a path here, or one with the same methods in a bucket.

    Raises:
      UserError: the bucket cannot be used.
    """
    return buckets.open_path(str(path)) if is_remote(path) else Path(path)


def cache_root(directory: str = "") -> Path:
    """Where bertfam keeps what can be made again: `directory`, $BERTFAM_CACHE, $XDG_CACHE_HOME/bertfam or ~/.cache/bertfam."""
    if given := directory or os.environ.get("BERTFAM_CACHE"):
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bertfam"


def local(folder: Path) -> Path:
    """The folder, or of one in a bucket a copy on this machine, see `buckets.mirror`."""
    return buckets.mirror(folder, cache_root()) if is_remote(folder) else folder


def make_folder(folder: Path) -> None:
    """Makes a folder with its parents where it is missing; in a bucket one is there with its first object."""
    if not is_remote(folder):
        folder.mkdir(parents=True, exist_ok=True)


def copy_folder(source: Path, target: Path) -> None:
    """Copies a folder, which may lie in a bucket, to a place on this machine where there is nothing yet."""
    if is_remote(source):
        buckets.fetch(source, buckets.sizes(source), target)
    else:
        shutil.copytree(source, target)


def check_whole(folder: Path) -> None:
    """Raises UserError where the upload of a folder into a bucket was cut off; here folders are complete or absent."""
    if is_remote(folder) and not buckets.is_whole(folder):
        raise UserError(f"{folder} is not whole: the command that wrote it was stopped, or is at it still; give it again")
