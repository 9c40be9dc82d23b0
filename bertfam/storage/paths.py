"""Local and bucket paths behind one interface."""

import os
import re
import shutil
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from bertfam.errors import UserError
from bertfam.storage import buckets
from bertfam.storage.buckets import is_remote
from bertfam.storage.files import nearest_existing
from bertfam.storage.mirror import mirror
from bertfam.suggest import nearest

_HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)
# Paths that only a script or a page means, since a part of them was to be replaced -> why, and what to do.
_UNREPLACED = (
    (re.compile(r"""(?s)(["'])(.*)\1|[“‘](.*)[”’]"""), "the quotes are part of the value: leave them out"),
    (re.compile(r".*\$\{?[A-Za-z_].*"), "no shell has replaced the variable in it, as in single quotes: write the value"),
    (re.compile(r".*(\{\w*\}|<\w+>).*"), "a part of it was to be replaced by a value: write the value"),
    (re.compile(r"(None|null|undefined)(/.*)?|.*/None"), "a variable of a script has no value: give one"),
    (re.compile(r"[A-Za-z]:\\.*"), "it is a path of Windows: write it as this system does"),
    (re.compile(r"\s.*|.*\s"), "a space at its begin or end is part of the value: leave it out"),
)
_MOST_ENTRIES = 1000  # of a folder that are compared with a missing name


def to_path(path: str | os.PathLike[str]) -> Path:
    """Convert a name of a file or folder to a local path, with `~` expanded, or to a bucket path with the same methods.

    Raises:
      UserError: If the bucket cannot be used.
    """
    return buckets.open_path(str(path)) if is_remote(path) else Path(os.path.expanduser(path))


def absolute(path: str | os.PathLike[str]) -> Path:
    """Return an absolute path. One with "..", which TensorStore refuses, is returned without it and without symbolic links."""
    whole = to_path(path).absolute()
    return Path(os.path.realpath(whole)) if ".." in whole.parts and not is_remote(path) else whole


def identity(folder: str | os.PathLike[str]) -> str:
    """Return the address of a folder in a bucket, or the path of a local one without symbolic links."""
    return str(folder).rstrip("/") if is_remote(folder) else os.path.realpath(to_path(folder))


def cache_root(directory: str = "") -> Path:
    """Return the cache folder: `directory`, $BERTFAM_CACHE, $XDG_CACHE_HOME/bertfam or ~/.cache/bertfam."""
    if given := directory or os.environ.get("BERTFAM_CACHE"):
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bertfam"


def cache_limit_bytes() -> int:
    """Return the most bytes of a folder in a bucket to keep on the disk: $BERTFAM_CACHE_GIB, or half of the free space."""
    if text := os.environ.get("BERTFAM_CACHE_GIB"):
        return int(float(text) * 2**30)
    return shutil.disk_usage(nearest_existing(cache_root())).free // 2


def local(folder: Path) -> Path:
    """Return the folder itself, or for one in a bucket its local copy (see `bertfam.storage.mirror`)."""
    return mirror(folder, cache_root()) if is_remote(folder) else folder


def partial_folder(target: Path) -> Path:
    """Return the folder of unfinished work on a target, which an interrupted command keeps.

    Raises:
      UserError: If it is a link: what was written and deleted in it would be that of another folder.
    """
    folder = target.with_name(f".{target.name}.partial")
    if folder.is_symlink():
        raise UserError(f"{folder} is a link, and unfinished work on {target.name} is written there: remove it, or name another")
    return folder


def make_folder(folder: Path) -> None:
    """Create a folder with its parents where it is missing; in a bucket, folders exist with their first object."""
    if not is_remote(folder):
        folder.mkdir(parents=True, exist_ok=True)


def copy_files(source: Path, names: Sequence[str], target: Path) -> None:
    """Copy files of a folder, which may be in a bucket, to a local folder; others that somebody has put there stay behind."""
    if is_remote(source):
        buckets.fetch(source, names, target)
        return
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, target / name)


def check_encodable(folder: Path) -> None:
    """Raise UserError if the path of a folder of checkpoints is not UTF-8: the library that writes them takes no other."""
    if is_remote(folder):
        return
    try:
        os.path.abspath(folder).encode()
    except UnicodeEncodeError:
        shown = os.fsencode(os.path.abspath(folder)).decode(errors="backslashreplace")
        is_utf_8 = sys.getfilesystemencoding() == "utf-8"
        fix = "rename its folder, or choose another" if is_utf_8 else "set PYTHONUTF8=1, since this locale is not UTF-8"
        raise UserError(f"{shown}: checkpoints need a path in UTF-8; {fix}") from None


def missing_folder(folder: str | os.PathLike[str]) -> str | None:
    """Return the end of a message about a folder on this machine that does not exist; None if it exists, or is in a bucket."""
    if is_remote(folder) or os.path.exists(folder):
        return None
    if link := broken_link(folder):
        return link
    if similar := similar_path(folder, is_folder=True):
        return f"there is no folder {folder}; did you mean {similar}?"
    if not _HUB_NAME.fullmatch(str(folder)):
        return f"there is no folder {folder}"
    return (
        f"there is no folder {folder} here, and nothing is downloaded from the Hugging Face hub: download the model first (hf "
        f"download {folder} --local-dir DIR) and name DIR"
    )


def broken_link(path: str | os.PathLike[str]) -> str | None:
    """Say of a link on this machine that leads nowhere where it leads; None for other paths."""
    if is_remote(path) or not os.path.islink(path):
        return None
    try:
        os.stat(path)
    except FileNotFoundError:
        return f"{path} is a link to {os.readlink(path)}, which does not exist"
    except OSError:  # a link to itself, say
        pass
    return None


def similar_path(path: str | os.PathLike[str], *, is_folder: bool) -> str | None:
    """Return the file or folder beside a missing one on this machine whose name is similar; None if there is none."""
    folder, name = os.path.split(os.fspath(path).rstrip("/"))
    try:
        with os.scandir(folder or ".") as entries:
            names = [
                entry.name for entry in islice(entries, _MOST_ENTRIES) if entry.is_dir() == is_folder and entry.name[0] != "."
            ]
    except OSError:
        return None
    # An extension alone makes no two names similar.
    stem = os.path.splitext(name)[0]
    similar = (match for match in nearest(name, names, 3) if nearest(stem, [os.path.splitext(match)[0]]))
    return next((os.path.join(folder, match) for match in similar), None)


def unreplaced(path: str) -> str | None:
    """Return why a path cannot be meant as it is written, and what to do; None for others, and for one that exists."""
    if os.path.lexists(path):
        return None
    return next((fault for pattern, fault in _UNREPLACED if pattern.fullmatch(path)), None)


def check_whole(folder: Path) -> None:
    """Raise UserError if the upload of a folder into a bucket is incomplete; local folders are complete or absent."""
    if is_remote(folder) and not buckets.is_whole(folder):
        raise UserError(f"{folder} is incomplete: the command that wrote it was stopped or is still running; run it again")
