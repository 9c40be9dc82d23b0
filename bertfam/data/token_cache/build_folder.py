"""Folder in which a token cache is built: locked, and kept when the build is interrupted, so that it can be resumed.

.NAME.partial/.lock.json      held by the building process
.NAME.partial/journal.json    format, fingerprint, and the part of each split that is on the disk
.NAME.partial/cache/          the cache, which is renamed to NAME when it is complete
"""

import errno
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bertfam.data import vocabularies
from bertfam.data.parallel.worker_pool import WorkerKilled
from bertfam.data.token_cache import digests
from bertfam.data.token_cache.cache import FORMAT, difference
from bertfam.data.vocabularies import Vocabulary
from bertfam.errors import UserError
from bertfam.storage import locks
from bertfam.storage.buckets import is_remote
from bertfam.storage.files import check_writable, clear_folder, has_links
from bertfam.storage.paths import partial_folder
from bertfam.storage.untrusted import parse_json, read_bytes

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG)


class BuildFolder:
    """Folder of one build, whose lock this process holds.

    Attributes:
      folder: the build folder itself.
      cache: the folder that becomes the cache.
      parts: the folder of the parts written by other machines, until they are merged into the cache.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.cache, self.parts = folder, folder / "cache", folder / "parts"
        self._journal = folder / "journal.json"
        self._content: dict[str, Any] = {}
        with suppress(UserError, ValueError):  # missing, too large, or truncated by a power cut
            content = parse_json(read_bytes(self._journal))
            self._content = content if isinstance(content, dict) else {}

    def start(self, fingerprint: dict[str, Any], vocabulary: Vocabulary) -> None:
        """Resume a build of the same fingerprint, or start over; print a message if that discards documents."""
        expected = {"format": FORMAT, "fingerprint": fingerprint}
        stored = {name: self._content.get(name) for name in expected}
        # A file would be written through a link that somebody else has put there.
        if stored != expected or has_links(self.folder) or not self._has_vocabulary(vocabulary):
            if stored != expected and self.documents:
                change = difference(stored, expected)
                print(
                    f"starting over in {self.folder}: the unfinished build was of something else ({change})",
                    file=sys.stderr,
                    flush=True,
                )
            self.clear()
            vocabulary.save(self.cache / "vocab")
            self._content = expected | {"splits": {}}
            self._write()

    def done(self, corpus: str, split: str) -> dict[str, Any]:
        """Return the latest argument of `record` for a split; empty at first."""
        return self._content["splits"].get(f"{corpus}/{split}", {})

    def record(self, corpus: str, split: str, done: dict[str, Any]) -> None:
        """Record durably which part of a split is on the disk; a resumed build starts from there."""
        self._content["splits"][f"{corpus}/{split}"] = done
        self._write()

    @property
    def documents(self) -> int:
        """Number of documents on the disk."""
        return sum(done["counts"]["documents"] for done in self._content.get("splits", {}).values())

    @property
    def is_resumable(self) -> bool:
        """True if the folder holds documents or parts to resume from."""
        return self.documents > 0 or (self.parts.is_dir() and any(self.parts.iterdir()))

    def finish(self, manifest: dict[str, Any], target: Path) -> None:
        """Rename the cache to `target` once all of it is on the disk."""
        write_durably(self.cache / "cache.json", json.dumps(manifest | {"digests": True}, indent=1) + "\n")
        write_durably(self.cache / digests.NAME, digests.compute(self.cache))
        for folder, _, names in os.walk(self.cache):
            for path in (*(Path(folder, name) for name in names), Path(folder)):
                _sync(path)
        os.replace(self.cache, target)
        _sync(target.parent)

    def clear(self) -> None:
        """Delete everything except the lock; the journal goes first, so that it never names deleted files."""
        self._content = {}
        self._journal.unlink(missing_ok=True)
        clear_folder(self.folder, keep=(locks.NAME,))

    def _has_vocabulary(self, vocabulary: Vocabulary) -> bool:
        """Return True if the cache holds the vocabulary, which a process killed within `finish` may have moved already."""
        try:
            return vocabularies.load(self.cache / "vocab").fingerprint == vocabulary.fingerprint
        except UserError:
            return False

    def _write(self) -> None:
        write_durably(self._journal, json.dumps(self._content) + "\n")


def write_durably(path: Path, text: str) -> None:
    """Write or replace a file atomically, and return when it is on the disk."""
    new = path.with_name(f"{path.name}.new")
    with open(new, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # the file system does not support it for folders
            raise
    finally:
        os.close(handle)


@contextmanager
def open_build_folder(target: Path) -> Iterator[BuildFolder]:
    """Open the folder in which `target` is built, after waiting for any other process that builds it.

    The folder is deleted at the end, together with the parents that were created for it. It is kept if the build is interrupted
    (by a signal, a full disk or a bug) after documents have been written.

    Raises:
      UserError: if the folder cannot be created, or is no longer writable.
    """
    check_writable(target)
    folder = partial_folder(target)
    with _locked(folder, named=target, seconds=None):
        work, keep = BuildFolder(folder), False
        try:
            yield work
        except UserError as error:
            # Corrected text has another fingerprint, so nothing can be resumed; but an unreadable file may be readable later.
            keep = isinstance(error, WorkerKilled) or isinstance(error.__cause__, OSError)
            raise
        except OSError as error:
            keep = True
            if error.errno in _FULL:
                raise UserError(
                    f"{target} cannot be written ({error.strerror}); fix that and run the same command again: the documents "
                    f"written so far are kept in {work.folder}"
                ) from error
            raise
        except BaseException:
            keep = True
            raise
        finally:
            if not (keep and work.is_resumable):
                with suppress(OSError):
                    work.clear()


def clear_finished(directory: str | Path) -> None:
    """Delete the build folder of a finished cache, which a process killed at the end of its build leaves behind."""
    if is_remote(directory):
        return
    # Refused while that process is still at work, or where nothing may be written.
    with suppress(OSError, UserError):
        folder = partial_folder(Path(os.path.realpath(directory)))
        if folder.is_dir():
            with _locked(folder, named=folder, seconds=0):
                BuildFolder(folder).clear()


@contextmanager
def _locked(folder: Path, named: Path, seconds: float | None) -> Iterator[None]:
    """Hold the lock of a build folder, and delete the folder at the end if it is empty."""
    try:
        with locks.hold(folder, seconds=seconds, named=named):
            yield
    finally:
        with suppress(OSError):  # not empty, or another process has taken its lock
            folder.rmdir()
