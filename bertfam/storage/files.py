"""Atomic writes of files and folders, local or in a bucket (gs://, see `buckets`).

`etils.epath` and pathlib replace single files at most; neither makes a folder complete or absent.
"""

import contextlib
import io
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from typing_extensions import override

from bertfam.errors import UserError
from bertfam.storage import buckets, exchange, locks
from bertfam.storage.buckets import is_remote
from bertfam.storage.faults import FULL, cannot_write

_PARTIAL = ".partial"
_FULL = tuple(map(os.strerror, FULL))  # the system's messages for a full disk


def check_writable(folder: str | Path) -> None:
    """Raise UserError unless the folder is writable or can be created; for a bucket, check only that it exists."""
    if is_remote(folder):
        buckets.open_path(str(folder))
        return
    nearest = nearest_existing(folder)
    if not os.path.isdir(nearest):
        raise UserError(f"{folder} cannot be written: {nearest} is not a folder; name another")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise UserError(f"{folder} cannot be written: no permission to write into {nearest}; name another")


def nearest_existing(path: str | Path) -> Path:
    """Return the path itself if it exists, or else the nearest folder above it that does."""
    path = Path(path)
    return next(above for above in (path, *path.absolute().parents) if os.path.lexists(above))


def check_file(path: str | Path, *, flag: str = "", replaces: bool = False, otherwise: str = "") -> None:
    """Raise UserError unless a local file can be written: a command that writes at its end calls this before its work.

    Args:
      path: the file.
      flag: the flag that names it, for messages.
      replaces: whether it may replace an existing file.
      otherwise: what to do about an existing file that it may not replace, instead of naming another.
    """
    path, named = Path(path), f"{flag}={path}" if flag else str(path)
    if os.path.isdir(path):
        raise UserError(f"{named} is a folder; name a file in it")
    if os.path.lexists(path) and not replaces:
        raise UserError(f"{named} exists already: name another file{', or ' * bool(otherwise)}{otherwise}")
    if os.path.lexists(path) and not path.is_file():
        raise UserError(f"{named} is no regular file; name another")
    if not path.parent.is_dir():
        raise UserError(f"{named} cannot be written: there is no folder {path.parent}; create it first")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise UserError(f"{named} cannot be written: no permission to write into {path.parent}; name another")


def is_used(path: str | Path) -> bool:
    """Return True if a path is a file or a folder that is not empty."""
    if is_remote(path):
        return buckets.is_used(buckets.open_path(str(path)))
    return os.path.exists(path) and not (os.path.isdir(path) and not os.listdir(path))


def check_unused(folder: str | Path) -> None:
    """Raise UserError unless the folder is absent or empty, and can be written."""
    if is_used(folder):
        raise UserError(f"{folder} exists already: name another folder")
    check_writable(folder)


@contextmanager
def new_folder(folder: str | Path, *, first_wins: bool = False) -> Iterator[Path]:
    """Yield a temporary folder to write into, and on success move it to `folder` (or upload it, for a bucket).

    On failure the temporary folder is removed, with the parents that were created for it.

    Args:
      folder: The final path, which must be absent or empty.
      first_wins: Keep a folder that another process has put there meanwhile; the caller checks it. Otherwise the folder is
        locked, and a second process waits.

    Raises:
      UserError: If the folder is in use or cannot be created, or the disk is full.
    """
    (check_writable if first_wins else check_unused)(folder)
    if is_remote(folder):
        remote = buckets.open_path(str(folder))
        with _held_beside(remote):
            check_unused(folder)
            with buckets.new_folder(remote) as staged:
                yield staged
        return
    target = Path(folder).absolute()
    with contextlib.nullcontext() if first_wins else _held_beside(target):
        if not first_wins:
            check_unused(folder)  # another process may have written it meanwhile
        with _temporary_folder(folder, target) as partial:
            yield partial
            try:
                os.replace(partial, target)
            except OSError:
                if not first_wins:
                    check_unused(folder)
                if not os.path.isdir(target):
                    raise


@contextmanager
def _temporary_folder(folder: str | Path, target: Path) -> Iterator[Path]:
    """Yield a folder beside `target`, which the caller moves; otherwise it is removed with the parents created for it."""
    made = [parent for parent in target.parents if not os.path.exists(parent)]  # innermost first
    partial = None
    try:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            partial = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
            partial.chmod(0o777 & ~umask())  # mkdtemp creates private folders
        except OSError as error:
            raise cannot_write(folder, error) from error
        try:
            yield partial
        except UserError as error:
            if str(partial) not in str(error):
                raise
            # Name the final path in messages about paths within the temporary folder.
            raise UserError(str(error).replace(str(partial), str(folder))) from error
        except Exception as error:  # libraries wrap the system's message in their own exceptions
            if why := next((words for words in _FULL if words in str(error)), None):
                raise UserError(f"{folder} cannot be written ({why}); free some space, or name another") from error
            raise
    finally:
        if partial is not None:
            shutil.rmtree(partial, ignore_errors=True)
        if not os.path.exists(target):
            for parent in made:
                with contextlib.suppress(OSError):
                    parent.rmdir()


@contextmanager
def new_file(path: str | Path) -> Iterator[Path]:
    """Yield a temporary file to write into, and on success move it to `path`; remove it on failure.

    Raises:
      UserError: If the path exists or cannot be created, or the disk is full.
    """
    target = Path(path)
    check_file(path)
    partial = None
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=_PARTIAL)
        os.close(handle)
        partial = Path(name)
        yield partial
        partial.chmod(0o666 & ~umask())
        os.replace(partial, target)
        partial = None
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise cannot_write(path, error) from error
    finally:
        if partial is not None:
            partial.unlink(missing_ok=True)


@contextmanager
def replaced_folder(folder: str | Path) -> Iterator[Path]:
    """Yield a temporary folder to write into, and on success exchange it atomically with the existing folder.

    A folder in a bucket is replaced object by object; readers refuse it until all are there.

    Raises:
      UserError: If it cannot be created, or another process is writing it.
    """
    if is_remote(folder):
        target = buckets.open_path(str(folder))
        with _held_beside(target), buckets.new_folder(target) as staged:
            yield staged
        return
    target = Path(os.path.realpath(folder))
    with _held_beside(target), _temporary_folder(folder, target) as partial:
        yield partial
        exchange.replace_folder(partial, target)


def recover(folder: str | Path) -> None:
    """Finish or undo the replacement of a local folder by a process that was killed."""
    if is_remote(folder):
        return
    target = Path(os.path.realpath(folder))
    if exchange.is_interrupted(target):
        with locks.hold_beside(target):
            exchange.recover(target)


@contextmanager
def _held_beside(target: Path) -> Iterator[None]:
    """Hold the lock beside a folder; a whole bucket has no place for it."""
    with locks.hold_beside(target) if target.name else contextlib.nullcontext():
        yield


class NamedFile(io.FileIO):
    """Unbuffered file whose errors of writing name it, as those of opening do: a full disk is one of several."""

    @override
    def write(self, content: Any, /) -> int:
        try:
            return super().write(content)
        except OSError as error:
            error.filename = self.name
            raise


def write_text(path: Path, text: str) -> None:
    """Write or replace a UTF-8 file atomically, as `write_bytes` does."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write or replace a file atomically: a reader sees either all of the new content or the old.

    Raises:
      UserError: If it cannot be written.
    """
    if is_remote(path):
        buckets.write(path, content)
        return
    partial = None
    try:
        handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=_PARTIAL)
        with open(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(partial, 0o666 & ~umask())
        os.replace(partial, path)
    except BaseException as error:
        if partial is not None:
            os.unlink(partial)
        if isinstance(error, OSError):
            raise cannot_write(path, error, "") from error
        raise


def has_links(folder: Path) -> bool:
    """Return True if a local folder has a link anywhere in it."""
    return any(path.is_symlink() for path in folder.rglob("*"))


def clear_folder(folder: Path, *, keep: Collection[str] = ()) -> None:
    """Delete everything in a local folder except the names to keep; of links only themselves."""
    for path in folder.iterdir():
        if path.name not in keep:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def clear_partial(folder: Path) -> None:
    """Delete the temporary files that `write_bytes` left in a folder when its process was killed, where permitted."""
    for path in folder.glob(f".*{_PARTIAL}"):
        if path.is_file():
            with contextlib.suppress(OSError):
                path.unlink()


def umask() -> int:
    """Return the permissions that new files of this process lack."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
