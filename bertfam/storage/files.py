"""Files and folders that are complete or absent, here or in a bucket (gs://, see `buckets`), and JSON that is an object."""

import contextlib
import errno
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bertfam.errors import UserError
from bertfam.storage import buckets
from bertfam.storage.buckets import is_remote
from bertfam.storage.paths import to_path

_PARTIAL = ".partial"
# What the system says of a disk that takes no more.
_FULL = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG))


def check_writable(folder: str | Path) -> None:
    """Raises UserError unless the folder can be written into, or made where it is missing; of a bucket only that it is there."""
    if is_remote(folder):
        to_path(folder)
        return
    folder = Path(folder)
    nearest = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    if not os.path.isdir(nearest):
        raise UserError(f"{folder} cannot be written: {nearest} is no folder; name another")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise UserError(f"{folder} cannot be written: no permission to write into {nearest}; name another")


def is_used(path: str | Path) -> bool:
    """Whether there is anything at a path: a file, or a folder that is not empty."""
    if is_remote(path):
        return buckets.is_used(to_path(path))
    return os.path.exists(path) and not (os.path.isdir(path) and not os.listdir(path))


def check_unused(folder: str | Path) -> None:
    """Raises UserError unless the folder can be made: it does not exist, or is empty, and can be written."""
    if is_used(folder):
        raise UserError(f"{folder} exists already: name another folder, or remove it first")
    check_writable(folder)


@contextmanager
def new_folder(folder: str | Path, *, first_wins: bool = False) -> Iterator[Path]:
    """Gives a folder beside it to write into, which takes its place when all went well (of a bucket: is uploaded to it).

    Otherwise it vanishes, and with it the parents that were made for it.

    Args:
      folder: must not exist, or be empty.
      first_wins: leaves a folder in place that another process has put there, for the caller to check.

    Raises:
      UserError: the folder is in use, or cannot be made, or the disk is full.
    """
    if is_remote(folder):
        check_unused(folder)
        with buckets.new_folder(to_path(folder)) as staged:
            yield staged
        return
    target = Path(folder).absolute()
    (check_writable if first_wins else check_unused)(folder)
    made = [parent for parent in target.parents if not os.path.exists(parent)]  # the innermost first
    partial = None
    try:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            partial = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
        except OSError as error:
            raise UserError(f"{folder} cannot be written ({error.strerror}); name another") from error
        try:
            yield partial
        except UserError as error:
            if str(partial) not in str(error):
                raise
            # About a folder within this one, by its later name.
            raise UserError(str(error).replace(str(partial), str(folder))) from error
        except Exception as error:  # any: libraries put what the system says into exceptions of their own
            if why := next((words for words in _FULL if words in str(error)), None):
                raise UserError(f"{folder} cannot be written ({why}); make room, or name another") from error
            raise
        partial.chmod(0o777 & ~_umask())  # mkdtemp's are private
        try:
            os.replace(partial, target)
        except OSError:
            if not first_wins:
                check_unused(folder)
            if not os.path.isdir(target):
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
    """Gives a file beside it to write into, which takes its place when all went well, and vanishes otherwise.

    Raises:
      UserError: there is something at the path, or it cannot be made, or the disk is full.
    """
    target = Path(path)
    if os.path.lexists(target):
        raise UserError(f"{path} exists already: name another file, or remove it first")
    if not target.parent.is_dir():
        raise UserError(f"{path} cannot be written: there is no folder {target.parent}; make it first")
    check_writable(target.parent)
    partial = None
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=_PARTIAL)
        os.close(handle)
        partial = Path(name)
        yield partial
        partial.chmod(0o666 & ~_umask())
        os.replace(partial, target)
        partial = None
    except OSError as error:
        if error.strerror not in _FULL:
            raise
        raise UserError(f"{path} cannot be written ({error.strerror}); make room, or name another") from error
    finally:
        if partial is not None:
            partial.unlink(missing_ok=True)


@contextmanager
def replaced_folder(folder: str | Path) -> Iterator[Path]:
    """Gives a folder beside it to write into, which takes the place of the one that is there, with all in it, when all went well.

    Raises:
      UserError: it cannot be made.
    """
    if is_remote(folder):
        with buckets.new_folder(to_path(folder)) as staged:
            yield staged
        return
    target = Path(folder).resolve()
    fresh, old = (target.with_name(f".{target.name}.{what}-{os.getpid()}") for what in ("new", "old"))
    with new_folder(fresh) as partial:
        yield partial
    os.rename(target, old)
    os.rename(fresh, target)
    shutil.rmtree(old)


def write_text(path: Path, text: str) -> None:
    """Writes or replaces a UTF-8 file, see `write_bytes`."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Writes or replaces a file; a reader sees all of the new content, or what was there before.

    Raises:
      UserError: it cannot be written.
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
        os.chmod(partial, 0o666 & ~_umask())
        os.replace(partial, path)
    except BaseException as error:
        if partial is not None:
            os.unlink(partial)
        if isinstance(error, OSError):
            raise UserError(f"{path} cannot be written ({error.strerror})") from error
        raise


def clear_partial(folder: Path) -> None:
    """Deletes what `write_bytes` had begun in a folder when its process was killed, as far as it may be deleted."""
    for path in folder.glob(f".*{_PARTIAL}"):
        if path.is_file():
            with contextlib.suppress(OSError):
                path.unlink()


_ERROR_CODE = re.compile(r"os_error_code='(\d+)'")  # TensorStore's


def refusal(error: BaseException | None) -> str | None:
    """Why the system refused to read or write, in its own words ("No space left on device"); None for other errors."""
    while error is not None:
        if isinstance(error, TimeoutError):
            return str(error) or "it took too long"
        if isinstance(error, OSError) and error.errno:
            return os.strerror(error.errno)
        if why := buckets.refusal(error):
            return why
        if found := _ERROR_CODE.search(str(error)):
            return os.strerror(int(found[1]))
        error = error.__cause__
    return None


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object that a file holds.

    Raises:
      UserError: it is missing, cannot be read, or holds something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or buckets.refusal(error) or 'it is not there'})") from error
    except ValueError as error:  # no JSON, or no UTF-8
        raise UserError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no JSON object")
    return content


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
