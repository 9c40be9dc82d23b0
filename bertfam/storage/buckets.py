"""Folders on object storage (gs://), through fsspec and never through TensorFlow.

A store keeps whole objects by name: there is no folder, and nothing can be appended or renamed. Where
`bertfam.storage.files` relies on renaming, this module relies on the order of writes. An object is written by one request and is
either complete or absent. A folder is written on this machine and then uploaded. During the upload it holds an object
`.uploading`, which is written first and deleted last, so that readers refuse an interrupted upload and writers may replace it.

fsspec's own caches (`fsspec.implementations.cached`) are not used for the copies of folders, see `bertfam.storage.mirror`.
"""

import functools
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, cast

from bertfam.errors import TransientError, UserError
from bertfam.storage.credentials import check_address
from bertfam.storage.faults import NO_ADDRESS, refusal

SCHEME = "gs://"
_MARKER = ".uploading"
_AT_ONCE = 64  # requests for ranges of bytes
_CHECKED = "md5"  # an upload fails where the store received other bytes


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Return True if a path is in object storage."""
    return str(path).startswith(SCHEME)


def open_path(text: str) -> Path:
    """Return an address in a bucket as a path with pathlib's methods (a `upath.UPath`).

    Raises:
      UserError: If the address has a password, gcsfs is not installed, or the bucket does not exist, cannot be reached or must
        not be read.
    """
    check_address(text)
    bucket, _, name = text.removeprefix(SCHEME).partition("/")
    if not bucket:
        raise UserError(f"{text} names no bucket: write {SCHEME}BUCKET/FOLDER")
    _check_bucket(bucket)
    from upath import UPath

    return cast(Path, UPath(f"{SCHEME}{bucket}/{name.strip('/')}"))


@functools.cache
def _check_bucket(bucket: str) -> None:
    """Configure gcsfs and request the bucket's first object."""
    # Otherwise etils, and with it Orbax and JAX, imports TensorFlow for gs:// where it is installed.
    os.environ["EPATH_USE_TF"] = "false"
    from etils.epath import gpath

    gpath._is_tf_installed.cache_clear()  # the first local path has filled this cache
    # Otherwise gcsfs asks another service by gRPC for the kind of each bucket, and waits a minute where only HTTP is allowed.
    os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    try:
        import fsspec
        import upath  # noqa: F401

        from bertfam.storage import gcs

        gcs.register()
        fsspec.filesystem("gcs").call("GET", "b/{}/o", bucket, maxResults=1, json_out=True)
    except ImportError as error:
        raise UserError(f"{SCHEME}{bucket} requires packages that are not installed: pip install 'bertfam[gcs]'") from error
    except FileNotFoundError as error:
        raise UserError(f"there is no bucket {SCHEME}{bucket}; create it first, or name another") from error
    except Exception as error:  # the store, its client, the network and the credentials raise their own types
        refused = refusal(error)
        if refused and refused.passes and not refused.is_denied:
            raise TransientError(refused.reason, f"{SCHEME}{bucket} cannot be read; run the same command again") from error
        why = refused.reason if refused else f"{type(error).__name__}: {error}".splitlines()[0]
        fix = (
            "grant this machine's account the role Storage Object User there, or sign in with `gcloud auth application-default "
            "login`"
        )
        if why == NO_ADDRESS:
            fix = "check the network of this machine"
        raise UserError(f"{SCHEME}{bucket} cannot be read ({why}); {fix}") from error


def _failure(message: str, error: Exception) -> Exception:
    """Return the exception for an operation that failed, by whether the fault may pass."""
    refused = refusal(error)
    if refused and refused.passes:
        return TransientError(refused.reason, f"{message}; run the same command again")
    why = refused.reason if refused else f"{type(error).__name__}: {error}".splitlines()[0]
    return UserError(f"{message} ({why})")


def write(path: Path, content: bytes) -> None:
    """Write or replace an object by one request.

    Raises:
      UserError: If it cannot be written.
      TransientError: If that may pass; the other functions raise it too.
    """
    try:
        _fs(path).pipe_file(_name(path), content, consistency=_CHECKED)
    except Exception as error:  # as in `_check_bucket`
        raise _failure(f"{path} cannot be written", error) from error


def create(path: Path, content: bytes) -> bool:
    """Write an object unless it exists, in one step; return whether it was written.

    Raises:
      UserError: If it cannot be written.
    """
    try:
        _fs(path).pipe_file(_name(path), content, consistency=_CHECKED, mode="create")
    except FileExistsError:
        return False
    except Exception as error:  # as in `_check_bucket`
        raise _failure(f"{path} cannot be written", error) from error
    return True


def is_whole(folder: Path) -> bool:
    """Return True unless an upload of the folder was interrupted or is still running."""
    return not _fs(folder).exists(f"{_name(folder)}/{_MARKER}")


def is_used(path: Path) -> bool:
    """Return True if an address is in use; the remains of an interrupted upload do not count."""
    return bool(path.exists()) and is_whole(path)


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield a local folder to write into, and on success upload it in place of the target's contents.

    Raises:
      UserError: If it cannot be uploaded.
    """
    with tempfile.TemporaryDirectory(prefix="bertfam-") as scratch:
        folder = Path(scratch) / target.name
        folder.mkdir()
        try:
            yield folder
        except UserError as error:
            raise UserError(str(error).replace(str(folder), str(target))) from error
        upload(folder, target)


def upload(folder: Path, target: Path) -> None:
    """Replace the contents of `target` by a copy of a local folder.

    Raises:
      UserError: If it cannot be written.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    try:
        write(target / _MARKER, b"")
        remove(target, but=_MARKER)
        names = [_name(target / path.relative_to(folder).as_posix()) for path in files]
        _fs(target).put([str(path) for path in files], names, consistency=_CHECKED)
        _fs(target).rm_file(_name(target / _MARKER))
    except UserError:
        raise
    except Exception as error:  # as in `_check_bucket`
        raise _failure(f"{target} cannot be written", error) from error


def remove(folder: Path, but: str = "") -> None:
    """Delete all objects of a folder except the one named `but`."""
    names = [name for name in _fs(folder).find(_name(folder)) if name != f"{_name(folder)}/{but}"]
    if names:
        _fs(folder).rm(names)


def move(folder: Path, target: Path) -> None:
    """Copy the objects of a folder to another name, then delete them."""
    names = list(sizes(folder))
    _fs(folder).copy([_name(folder / name) for name in names], [_name(target / name) for name in names])
    remove(folder)


def sizes(folder: Path) -> dict[str, int]:
    """Return the size in bytes of each object of a folder, keyed by its name within the folder, in order."""
    return {name: info["size"] for name, info in object_infos(folder).items()}


def object_infos(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the store's metadata of each object of a folder, keyed by its name within the folder, in order."""
    infos = _fs(folder).find(_name(folder), detail=True)
    return {name.removeprefix(f"{_name(folder)}/"): info for name, info in sorted(infos.items())}


def fetch(folder: Path, names: Iterable[str], into: Path) -> None:
    """Copy objects of a folder, given by their names within it, into a local folder.

    Raises:
      UserError: If they cannot be read.
    """
    wanted = list(names)
    for name in wanted:
        # A store takes any characters as the name of an object.
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise UserError(f"{folder} holds an object {name!r}, whose name is a path out of the folder; delete the object")
    for name in wanted:
        (into / name).parent.mkdir(parents=True, exist_ok=True)
    if not wanted:
        return
    try:
        _fs(folder).get([_name(folder / name) for name in wanted], [str(into / name) for name in wanted])
    except Exception as error:  # as in `_check_bucket`; errors of the local disk are raised again
        if refusal(error) is None or isinstance(error, OSError) and error.errno:
            raise
        raise _failure(f"{folder} cannot be read", error) from error


def read_ranges(folder: Path, ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
    """Return ranges of bytes of objects of a folder, many at once: (name within the folder, first byte, end) each, none empty.

    Raises:
      UserError: If they cannot be read, or the objects have fewer bytes.
    """
    names, starts, ends = (list(column) for column in zip(*ranges, strict=True)) if ranges else ([], [], [])
    names = [_name(folder / name) for name in names]
    try:
        contents: list[bytes] = _fs(folder).cat_ranges(names, starts, ends, batch_size=_AT_ONCE, on_error="raise")
    except Exception as error:  # as in `_check_bucket`
        raise _failure(f"{folder} cannot be read", error) from error
    for name, content, (_, start, end) in zip(names, contents, ranges, strict=True):
        if len(content) != end - start:
            raise UserError(f"{SCHEME}{name} has changed while it was read: it has no bytes {start} to {end - 1} any more")
    return contents


def _fs(path: Path) -> Any:
    return cast(Any, path).fs


def _name(path: Path) -> str:
    """Return BUCKET/OBJECT, which is fsspec's form of an address."""
    return str(path).removeprefix(SCHEME)
