"""Google Cloud Storage by gcsfs, with other retries: at once first, then after growing delays, at most half a minute.

gcsfs (2026.9.0) waits up to two seconds before its first retry, which multiplies the time of a run whose store refuses some
requests, gives up at once when access is refused, and logs a traceback. Its own wrapper is left out here. An error that remains
is a `TransientError`, which no caller mistakes for a missing file: fsspec answers "no" when a file cannot be asked for.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import fsspec
from gcsfs.core import GCSFileSystem
from typing_extensions import override

from bertfam.errors import TransientError
from bertfam.storage.faults import refusal

_DELAYS = (0.0, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)  # seconds before each retry, on average
_DENIED_RETRIES = 4  # fewer, because a refusal of access may not pass


class RetryingFileSystem(GCSFileSystem):  # type: ignore[misc]
    """gcsfs with the retries of this module."""

    @override
    async def _request(self, method: str, path: str, *args: Any, **options: Any) -> Any:
        once = GCSFileSystem._request.__wrapped__
        return await _retried(lambda: once(self, method, path, *args, **options))

    @override
    async def _get_file_request(self, rpath: str, lpath: str, *args: Any, **options: Any) -> Any:
        once = GCSFileSystem._get_file_request.__wrapped__
        return await _retried(lambda: once(self, rpath, lpath, *args, **options))

    @override
    async def _isfile(self, path: str) -> bool:
        try:
            return bool((await self._info(path))["type"] == "file")
        except FileNotFoundError:
            return False


def register() -> None:
    """Make fsspec, and with it upath and etils, use `RetryingFileSystem` for gs:// addresses."""
    # Cached listings do not show what TensorStore or another process has written since.
    fsspec.config.conf.setdefault("gcs", {})["use_listings_cache"] = False
    for protocol in ("gs", "gcs"):
        fsspec.register_implementation(protocol, RetryingFileSystem, clobber=True)


async def _retried(request: Callable[[], Awaitable[Any]]) -> Any:
    for retry, delay in enumerate((*_DELAYS, None)):
        try:
            return await request()
        except Exception as error:
            refused = refusal(error)
            if refused is None or not refused.passes:
                raise
            if delay is None or (refused.is_denied and retry == _DENIED_RETRIES):
                raise TransientError(refused.reason, str(error).replace("\n", " ")) from error
        await asyncio.sleep(delay * random.uniform(0.5, 1.5))
