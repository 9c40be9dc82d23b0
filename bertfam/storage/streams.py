"""Files in object storage and behind any other protocol of fsspec (gs://, s3://, https://, ...), read as streams.

`bertfam.storage.buckets` reads and writes whole folders in gs:// buckets; here single files are found and read.
"""

import glob
import io
import os
import posixpath
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from typing_extensions import override

from bertfam.errors import TransientError, UserError
from bertfam.storage import buckets
from bertfam.storage.credentials import check_address
from bertfam.storage.faults import http_status, refusal

_BLOCK = 8 << 20  # bytes of a request, which takes about as long as the delay of a store
_SILENCE_SECONDS = 60  # of a web server; the time of a whole file has no limit
_WEB = ("http", "https")
_EXTRAS = {"s3": "s3", "s3a": "s3"}  # protocol -> extra of setup.py with its package
# The stores' names of what changes with the content of a file, the best first.
_VERSIONS = ("generation", "ETag", "etag", "LastModified", "last_modified", "updated", "mtime", "created")


@dataclass(frozen=True)
class StoredFile(os.PathLike[str]):
    """File in a store.

    Attributes:
      address: PROTOCOL://NAME.
      size: Size in bytes; 0 if the store does not report it.
      version: Generation, entity tag or modification time that the store reports; "" if it reports none.
    """

    address: str
    size: int
    version: str

    @override
    def __fspath__(self) -> str:
        return self.address

    @override
    def __str__(self) -> str:
        return self.address

    @property
    def name(self) -> str:
        """Name without its folder."""
        return self.address.rpartition("/")[2]


def is_address(path: str | os.PathLike[str]) -> bool:
    """Return True if a path has a protocol, and so is read through fsspec."""
    return "://" in os.fspath(path)


def find_stored(pattern: str) -> list[StoredFile]:
    """Return the files that match an address or a glob, sorted; empty if there is none.

    Raises:
      UserError: The store cannot be read, or the address is that of a folder.
      TransientError: The fault of the store may pass.
    """
    filesystem, name = _filesystem(pattern)
    head = pattern.removesuffix(name) if pattern.endswith(name) else f"{pattern.partition('://')[0]}://"
    if re.search(r"[^/]\*\*|\*\*[^/]", name):
        raise UserError(f"{pattern}: ** is a whole part of an address, for folders at any depth: write **/* in its place")
    with _refusals(pattern, passing=False):
        filesystem.invalidate_cache()
        infos = filesystem.glob(name, detail=True) if glob.has_magic(name) else {}
        if not infos:  # an existing name with glob characters is meant literally
            try:
                infos = {name: filesystem.info(name)}
            except FileNotFoundError as error:
                if _is_missing(error):
                    return []
                raise error.__cause__ or error from None
            if infos[name].get("type") == "directory":
                example = f"{pattern.rstrip('/')}/*.txt"
                raise UserError(f"{pattern} is a folder; name the files in it, for example {example}")
    files = {path: info for path, info in infos.items() if info.get("type") != "directory" and not path.endswith("/")}
    if pattern.partition("://")[0] in _WEB:
        files = {path: info for path, info in files.items() if _lies_below(path, name)}
    return [StoredFile(head + path, int(info.get("size") or 0), _version(info)) for path, info in sorted(files.items())]


def _lies_below(address: str, pattern: str) -> bool:
    """Return whether a link of a web server's index stays in the folder that a glob names: links may lead anywhere."""
    folder = re.split(r"[*?\[]", pattern)[0].rpartition("/")[0]
    return address == pattern or posixpath.normpath(unquote(address)).startswith(posixpath.normpath(unquote(folder)) + "/")


def open_binary(path: str | os.PathLike[str]) -> io.BufferedReader:
    """Open a local file or one in a store for reading.

    Raises:
      OSError: A local file cannot be read.
      UserError: A store refuses it; reading raises it too.
      TransientError: The fault of a store may pass; reading raises it too.
    """
    address = os.fspath(path)
    if not is_address(address):
        return open(address, "rb")
    filesystem, name = _filesystem(address)
    with _refusals(address):
        is_seekable = address.partition("://")[0] not in _WEB or _has_ranges(filesystem, name)
        file = filesystem.open(name, "rb", block_size=_BLOCK if is_seekable else 0)
        return io.BufferedReader(_Stream(file, address, is_seekable), 1 << 20)


class _Stream(io.RawIOBase):
    """Stream of a store."""

    def __init__(self, file: Any, address: str, is_seekable: bool) -> None:
        self._file, self._address, self._is_seekable = file, address, is_seekable

    @override
    def readable(self) -> bool:
        return True

    @override
    def seekable(self) -> bool:
        return self._is_seekable and bool(self._file.seekable())

    @override
    def readinto(self, buffer: Any) -> int:
        with _refusals(self._address):
            data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    @override
    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return int(self._file.seek(offset, whence))

    @override
    def tell(self) -> int:
        return int(self._file.tell())

    @override
    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def _has_ranges(filesystem: Any, name: str) -> bool:
    """Return False if a web server gives a file as a whole only: many of these do not say so in their headers."""
    from fsspec.asyn import sync

    async def request_byte() -> bool:
        session = await filesystem.set_session()
        async with session.get(filesystem.encode_url(name), headers={"Range": "bytes=0-0"}) as response:
            return bool(response.status != 200)

    return bool(sync(filesystem.loop, request_byte))


def _filesystem(address: str) -> tuple[Any, str]:
    """Return the file system of an address, and the name of the address there."""
    check_address(address)
    protocol = address.partition("://")[0]
    if not address.isprintable():
        raise UserError(f"{address!a} cannot be an address: it has characters that cannot be printed")
    if protocol in _WEB:
        _check_web_address(address)
    if buckets.is_remote(address):
        buckets.open_path(address)  # configures gcsfs and checks the bucket
    try:
        import fsspec

        filesystem, name = fsspec.core.url_to_fs(address, **(_web_options() if protocol in _WEB else {}))
    except ImportError as error:
        extra = _EXTRAS.get(protocol)
        fix = f"pip install 'bertfam[{extra}]'" if extra else str(error)
        raise UserError(f"{address} requires a package that is not installed: {fix}") from error
    except Exception as error:  # file systems check their addresses in ways of their own
        raise UserError(f"{address}: {error}; name a local file, or an address such as gs://BUCKET/NAME") from error
    return filesystem, str(name)


def _check_web_address(address: str) -> None:
    try:
        if urlsplit(address).hostname and urlsplit(address).port != 0:
            return
        problem = "no server"
    except ValueError as error:
        problem = str(error)
    raise UserError(f"{address} is no address of a web server ({problem}); write http://SERVER:PORT/NAME")


def _web_options() -> dict[str, Any]:
    """Return a limit on the silence of a web server, in place of aiohttp's five minutes for a whole file."""
    import aiohttp

    return {"client_kwargs": {"timeout": aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=_SILENCE_SECONDS)}}


@contextmanager
def _refusals(address: str, *, passing: bool = True) -> Iterator[None]:
    """Convert the errors of a store to one line: TransientError if the fault may pass, else UserError.

    Args:
      address: What is read.
      passing: A store's refusal of access may pass too, as in the middle of a command; that of a web server stays.
    """
    is_web = address.partition("://")[0] in _WEB
    try:
        yield
    except (UserError, TransientError):
        raise
    except Exception as error:  # stores, their clients, the network and the credentials raise their own types
        if _is_missing(error):
            raise UserError(f"no such file: {address}") from error
        refused = refusal(error)
        is_malformed = isinstance(error, ValueError)
        if refused and refused.passes and not is_malformed and (not refused.is_denied or (passing and not is_web)):
            raise TransientError(refused.reason, f"{address} cannot be read; run the same command again") from error
        why = refused.reason if refused else f"{type(error).__name__}: {error}".splitlines()[0]
        fix = (
            "check the address, or download the file first if it needs a login"
            if is_web
            else ("check the address and the credentials of this machine")
        )
        raise UserError(f"{address} cannot be read ({why}); {fix}") from error


def _is_missing(error: BaseException) -> bool:
    """Return True if there is no such file: fsspec turns every fault of a web server into a FileNotFoundError."""
    if not isinstance(error, FileNotFoundError):
        return http_status(error) in (404, 410)
    cause = error.__cause__
    return cause is None or _is_missing(cause) or not (isinstance(cause, OSError) or refusal(cause))


def _version(info: dict[str, Any]) -> str:
    return next((str(info[name]) for name in _VERSIONS if info.get(name)), "")
