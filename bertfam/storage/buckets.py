"""Folders on object storage (gs://), through fsspec and never through TensorFlow.

A store keeps whole objects by name: there is no folder, and nothing can be appended or renamed. What `bertfam.storage.files`
does by
renaming is done here by order. An object is written by one request, and is there whole or not at all. A folder is made on this
machine and then uploaded; while that goes on an object `.uploading` lies in it, which is written first and deleted last, so that
what was cut off is refused by readers and may be written anew.
"""

import fcntl
import functools
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from bertfam.errors import UserError

SCHEME = "gs://"
_MARKER = ".uploading"
_CHECKED = "md5"  # an upload whose bytes are others in the store fails


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Whether a path leads to object storage."""
    return str(path).startswith(SCHEME)


def open_path(text: str) -> Path:
    """An address in a bucket as a path with pathlib's methods (a `upath.UPath`).

    Raises:
      UserError: gcsfs is not installed, there is no such bucket, it cannot be reached, or it may not be read.
    """
    bucket, _, name = text.removeprefix(SCHEME).partition("/")
    if not bucket:
        raise UserError(f"{text} names no bucket: write {SCHEME}BUCKET/FOLDER")
    _check_bucket(bucket)
    from upath import UPath

    return cast(Path, UPath(f"{SCHEME}{bucket}/{name.strip('/')}"))


@functools.cache
def _check_bucket(bucket: str) -> None:
    """Makes gcsfs ready, and asks for the bucket's first object."""
    # etils, and with it Orbax and JAX, would import TensorFlow for gs:// where it is installed.
    os.environ["EPATH_USE_TF"] = "false"
    from etils.epath import gpath

    gpath._is_tf_installed.cache_clear()  # what it has found at the first path on this machine
    # gcsfs would ask another service, by gRPC, for the kind of each bucket, and wait for a minute where only HTTP gets through.
    os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    try:
        import fsspec
        import upath  # noqa: F401

        # Lists that gcsfs remembers do not show what TensorStore or another process has written since.
        fsspec.config.conf.setdefault("gcs", {})["use_listings_cache"] = False
        fsspec.filesystem("gcs").call("GET", "b/{}/o", bucket, maxResults=1, json_out=True)
    except ImportError as error:
        raise UserError(f"{SCHEME}{bucket} needs packages that are not installed: pip install 'bertfam[gcs]'") from error
    except FileNotFoundError as error:
        raise UserError(f"there is no bucket {SCHEME}{bucket}; make it first, or name another") from error
    except Exception as error:  # any: of the store, of its client, of the network, of the credentials
        why = refusal(error) or f"{type(error).__name__}: {error}".splitlines()[0]
        raise UserError(
            f"{SCHEME}{bucket} cannot be read ({why}); give this machine's account the role Storage Object User there, or sign "
            "in with `gcloud auth application-default login`"
        ) from error


def refusal(error: BaseException) -> str | None:
    """Why a store refused, in a few words; None for errors of anything else."""
    text = str(error)
    if isinstance(error, OSError) and text.startswith("Forbidden"):
        return "no permission"
    code = getattr(error, "code", None)
    if type(error).__module__.startswith("gcsfs") and isinstance(code, int):
        return "no permission" if code in (401, 403) else f"HTTP {text.splitlines()[0]}"
    if type(error).__module__.partition(".")[0] in ("aiohttp", "google"):
        return f"{type(error).__name__}: {text}".splitlines()[0]
    return None


def write(path: Path, content: bytes) -> None:
    """Writes or replaces an object by one request.

    Raises:
      UserError: it cannot be written.
    """
    try:
        _fs(path).pipe_file(_name(path), content, consistency=_CHECKED)
    except Exception as error:  # any, as in `_check_bucket`
        why = refusal(error) or f"{type(error).__name__}: {error}".splitlines()[0]
        raise UserError(f"{path} cannot be written ({why})") from error


def is_whole(folder: Path) -> bool:
    """Whether no upload of a folder was cut off, or still goes on."""
    return not _fs(folder).exists(f"{_name(folder)}/{_MARKER}")


def is_used(path: Path) -> bool:
    """Whether there is anything at an address; what is left of an upload that was cut off counts as nothing."""
    return bool(path.exists()) and is_whole(path)


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Gives a folder on this machine to write into, which is uploaded when all went well, in place of what is there.

    Raises:
      UserError: it cannot be uploaded.
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
    """Puts a copy of a folder of this machine in place of all that is at `target`.

    Raises:
      UserError: it cannot be written.
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
    except Exception as error:  # any, as in `_check_bucket`
        raise UserError(f"{target} cannot be written ({refusal(error) or error}); give the same command again") from error


def remove(folder: Path, but: str = "") -> None:
    """Deletes all objects of a folder, but one that is named."""
    names = [name for name in _fs(folder).find(_name(folder)) if name != f"{_name(folder)}/{but}"]
    if names:
        _fs(folder).rm(names)


def move(folder: Path, target: Path) -> None:
    """Copies the objects of a folder to another name, and then deletes them."""
    names = list(sizes(folder))
    _fs(folder).copy([_name(folder / name) for name in names], [_name(target / name) for name in names])
    remove(folder)


def sizes(folder: Path) -> dict[str, int]:
    """Bytes of all objects of a folder by their names within it, in order."""
    found = _fs(folder).find(_name(folder), detail=True)
    return {name.removeprefix(f"{_name(folder)}/"): info["size"] for name, info in sorted(found.items())}


def mirror(folder: Path, root: Path) -> Path:
    """A copy of a folder on this machine, made once for what lies there now and checked against the store's own checksums.

    All processes of a machine share it: the first one fetches, the others wait for it.

    Args:
      folder: in a bucket.
      root: for the copies of all folders, on this machine.

    Raises:
      UserError: it cannot be read, other bytes come than the store has, or there is no room.
    """
    found = _fs(folder).find(_name(folder), detail=True)
    names = {name: name.removeprefix(f"{_name(folder)}/") for name in found}
    version = [[names[name], info["size"], info.get("crc32c"), info.get("etag")] for name, info in sorted(found.items())]
    digest = hashlib.sha256(json.dumps([str(folder), version]).encode()).hexdigest()[:16]
    target = root / "buckets" / digest
    if target.is_dir():
        return target
    from bertfam.storage.files import new_folder

    with alone(target):
        if not target.is_dir():
            with new_folder(target, first_wins=True) as partial:
                fetch(folder, names.values(), partial)
                for name, info in found.items():
                    _check_bytes(f"{SCHEME}{name}", partial / names[name], info)
    return target


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Waits while another process of this machine is in here with the same folder of this machine.

    Raises:
      UserError: nothing can be written beside it.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = open(folder.with_name(f".{folder.name}.lock"), "w")
    except OSError as error:
        raise UserError(f"{folder} cannot be written ({error.strerror}); name another place by BERTFAM_CACHE") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def fetch(folder: Path, names: Iterable[str], into: Path) -> None:
    """Copies objects of a folder, by their names within it, into a folder of this machine.

    Raises:
      UserError: they cannot be read.
    """
    wanted = list(names)
    for name in wanted:
        (into / name).parent.mkdir(parents=True, exist_ok=True)
    if not wanted:
        return
    try:
        _fs(folder).get([_name(folder / name) for name in wanted], [str(into / name) for name in wanted])
    except Exception as error:  # any, as in `_check_bucket`, but not of this machine's disk
        if (why := refusal(error)) is None:
            raise
        raise UserError(f"{folder} cannot be read ({why}); give the same command again") from error


def _check_bytes(address: str, path: Path, info: dict[str, Any]) -> None:
    import base64

    import google_crc32c

    checksum = google_crc32c.Checksum()
    with open(path, "rb") as file:
        while piece := file.read(1 << 22):
            checksum.update(piece)
    stated = info.get("crc32c")
    if path.stat().st_size != info["size"] or (stated and base64.b64encode(checksum.digest()).decode() != stated):
        raise UserError(f"{address} came with other bytes than the store has; give the same command again")


def _fs(path: Path) -> Any:
    return cast(Any, path).fs


def _name(path: Path) -> str:
    """BUCKET/OBJECT, as fsspec has it."""
    return str(path).removeprefix(SCHEME)
