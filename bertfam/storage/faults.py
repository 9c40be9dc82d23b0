"""Faults of storage: the reason that the system or a store gives, and whether the fault may pass by itself.

A disk that is full or a permission that is missing stays so until somebody acts. A store that does not answer, a network that is
interrupted or a wait that timed out may pass; so may a refusal of access in the middle of a command, since a store gives it
while credentials are renewed. Requests to buckets are retried (see `gcs`), and what remains is a `TransientError`.
"""

import errno
import os
import re
import socket
import ssl
from typing import NamedTuple

from bertfam.errors import TransientError, UserError

NO_ADDRESS = "its server has no address here: the name is wrong, or this machine has no network"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # of a full disk
_SEALED = (errno.EROFS, errno.EACCES, errno.EPERM)
_PASSING = {
    errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ECONNRESET, errno.ECONNABORTED, errno.ECONNREFUSED, errno.ENETDOWN,
    errno.ENETUNREACH, errno.ENETRESET, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.EAGAIN,
}  # fmt: skip
_PASSING_CODES = {401, 403, 408, 429, *range(500, 600)}
_DENIED = ("HTTP 401", "HTTP 403")
# TensorStore's messages.
_ERROR_CODE = re.compile(r"os_error_code='(\d+)'")
_HTTP_CODE = re.compile(r"http_response_code='(\d+)'")
_NETWORK = re.compile(r"CURL error[^\[;]*")


class Refusal(NamedTuple):
    """Reason of the system or a store for refusing to read or write.

    Attributes:
      reason: a few words, such as "No space left on device".
      passes: True if the fault may pass by itself.
    """

    reason: str
    passes: bool

    @property
    def is_denied(self) -> bool:
        """True if a store has refused access, which may be a mistake."""
        return self.reason.startswith(_DENIED)


def refusal(error: BaseException | None) -> Refusal | None:
    """Return the reason behind an error; None if the error has nothing to do with storage."""
    while error is not None:
        if isinstance(error, TransientError):
            return Refusal(error.reason, True)
        if refused := _of_system(error) or _of_bucket(error) or _of_tensorstore(str(error)):
            return refused
        error = error.__cause__
    return None


def reason(error: BaseException) -> str | None:
    """Return the reason behind an error in a few words; None if the error has nothing to do with storage."""
    refused = refusal(error)
    return refused.reason if refused else None


def explain(error: BaseException) -> BaseException:
    """Return a `TransientError` in the place of a library's own error if it is a fault of a bucket that may pass."""
    refused = _of_bucket(error) or (_of_tensorstore(str(error)) if isinstance(error, ValueError) else None)
    if refused is None or not refused.passes:
        return error
    return TransientError(refused.reason, f"{_first_line(error)}; run the same command again")


def http_status(error: BaseException) -> int | None:
    """Return the status that a web server has answered with; None if there was no answer, or for other errors."""
    status = getattr(error, "status", None) or getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) else None


def cannot_write(path: str | os.PathLike[str], error: OSError, fix: str = "name another") -> UserError:
    """Return the mistake of a path that the system cannot write, with what to do about the reason, or else `fix`."""
    cure = "free some space" if error.errno in FULL else "make it writable" if error.errno in _SEALED else ""
    fixes = ", or ".join(filter(None, (cure, fix)))
    return UserError(f"{path} cannot be written ({error.strerror}){'; ' * bool(fixes)}{fixes}")


def _of_system(error: BaseException) -> Refusal | None:
    if isinstance(error, TimeoutError):
        return Refusal(_first_line(error) or "timed out", True)
    if isinstance(error, OSError) and error.errno and error.errno < 0:  # of the look-up of a server's name
        return Refusal(NO_ADDRESS, error.errno == socket.EAI_AGAIN)
    inner = getattr(error, "os_error", error)  # of aiohttp, which keeps another library's number as that of a system's error
    if isinstance(inner, ssl.SSLError):
        return Refusal(f"the server answers without TLS, or with a certificate that is not trusted: {_first_line(inner)}", False)
    if isinstance(error, OSError) and error.errno:
        return Refusal(os.strerror(error.errno), error.errno in _PASSING)
    return None


def _of_bucket(error: BaseException) -> Refusal | None:
    """Read the errors of gcsfs, of web servers, of the network below them and of Google's credentials."""
    package, line = type(error).__module__.partition(".")[0], _first_line(error)
    if isinstance(error, OSError) and line.startswith("Forbidden"):
        return _of_code(403, line)
    if package == "gcsfs":
        code = getattr(error, "code", None)
        return _of_code(code, line) if isinstance(code, int) else Refusal(line, True)
    if package in ("aiohttp", "requests"):
        if status := http_status(error):
            return _of_code(status, getattr(error, "message", None) or str(status))
        if type(error).__name__ == "TooManyRedirects":
            return Refusal("the server sends from one address to another without end", False)
        is_address = isinstance(error, ValueError) or "NonHttpUrl" in type(error).__name__
        return Refusal(f"{type(error).__name__}: {line}", not is_address)
    if package == "google":
        return Refusal(f"{type(error).__name__}: {line}", type(error).__name__ in ("TransportError", "RefreshError"))
    return None


def _of_tensorstore(text: str) -> Refusal | None:
    if match := _ERROR_CODE.search(text):
        return Refusal(os.strerror(int(match[1])), int(match[1]) in _PASSING)
    if match := _HTTP_CODE.search(text):
        return _of_code(int(match[1]), match[1])
    if match := _NETWORK.search(text):
        return Refusal(match[0].strip(), True)
    return None


def _of_code(code: int, line: str) -> Refusal:
    text = "no permission" if code in (401, 403) else line.removesuffix(f", {code}")
    return Refusal(f"HTTP {code}, {text}" if text != str(code) else f"HTTP {code}", code in _PASSING_CODES)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0]
