"""The folder in which a token cache is built: locked, and kept where the build is stopped, so that it can go on.

.NAME.partial/lock            held by the process that builds
.NAME.partial/journal.json    format, fingerprint, and what of each split is on the disk
.NAME.partial/cache/          the cache, which takes its place NAME when it is whole
"""

import errno
import fcntl
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from bertfam.data import vocabularies
from bertfam.data.token_cache.cache import FORMAT, difference
from bertfam.data.vocabularies import Vocabulary
from bertfam.errors import UserError
from bertfam.storage.buckets import is_remote
from bertfam.storage.files import check_writable

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG)


class BuildInterrupted(UserError):
    """What stops a build without spoiling what has been done."""


class BuildFolder:
    """The folder of one build, whose lock this process holds.

    Attributes:
      folder: all of it.
      cache: what will be the cache.
      parts: for what many machines write, until it is joined.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.cache, self.parts = folder, folder / "cache", folder / "parts"
        self._journal = folder / "journal.json"
        self._content: dict[str, Any] = {}
        with suppress(OSError, ValueError):  # none, or what a power cut has left of one
            content = json.loads(self._journal.read_text())
            self._content = content if isinstance(content, dict) else {}

    def start(self, fingerprint: dict[str, Any], vocabulary: Vocabulary) -> None:
        """Goes on with what is there of the same fingerprint, or starts anew, which is told where documents are lost by it."""
        begun = {"format": FORMAT, "fingerprint": fingerprint}
        there = {name: self._content.get(name) for name in begun}
        if there != begun or not self._has(vocabulary):
            if there != begun and self.documents:
                print(
                    f"starting anew in {self.folder}: what is there was built from something else ({difference(there, begun)})",
                    file=sys.stderr,
                    flush=True,
                )
            self.clear()
            vocabulary.save(self.cache / "vocab")
            self._content = begun | {"splits": {}}
            self._write()

    def done(self, corpus: str, split: str) -> dict[str, Any]:
        """What `record` has last been given; empty at first."""
        return self._content["splits"].get(f"{corpus}/{split}", {})

    def record(self, corpus: str, split: str, done: dict[str, Any]) -> None:
        """Notes what is on the disk; it is found by whoever goes on, whenever this process is killed."""
        self._content["splits"][f"{corpus}/{split}"] = done
        self._write()

    @property
    def documents(self) -> int:
        """How many documents are there."""
        return sum(done["counts"]["documents"] for done in self._content.get("splits", {}).values())

    @property
    def is_resumable(self) -> bool:
        """Whether there is anything to go on from."""
        return self.documents > 0 or (self.parts.is_dir() and any(self.parts.iterdir()))

    def finish(self, manifest: dict[str, Any], target: Path) -> None:
        """Puts the cache into its place, when all of it is on the disk."""
        write_durably(self.cache / "cache.json", json.dumps(manifest, indent=1) + "\n")
        for folder, _, names in os.walk(self.cache):
            for path in (*(Path(folder, name) for name in names), Path(folder)):
                _sync(path)
        os.replace(self.cache, target)
        _sync(target.parent)

    def clear(self) -> None:
        """Removes everything but the lock, the journal first: it must not tell of files that are gone."""
        self._content = {}
        self._journal.unlink(missing_ok=True)
        for path in self.folder.iterdir():
            if path.name != "lock":
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def remove(self) -> None:
        """Removes all of it; the lock goes last: from then on the folder may be another process'."""
        self.clear()
        (self.folder / "lock").unlink()
        self.folder.rmdir()

    def _has(self, vocabulary: Vocabulary) -> bool:
        """Whether the vocabulary of the cache is there whole; it is not where a kill came as the cache was put into its place."""
        try:
            return vocabularies.load(self.cache / "vocab").fingerprint == vocabulary.fingerprint
        except UserError:
            return False

    def _write(self) -> None:
        write_durably(self._journal, json.dumps(self._content) + "\n")


def write_durably(path: Path, text: str) -> None:
    """Writes or replaces a file; whatever happens, it has the old content or all of the new."""
    new = path.with_name(f"{path.name}.new")
    with open(new, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    """Returns when a file, or the list of what is in a folder, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # this file system does not do it for a folder
            raise
    finally:
        os.close(handle)


@contextmanager
def open_build_folder(target: Path) -> Iterator[BuildFolder]:
    """The folder to build `target` in, once no other process builds it.

    It vanishes at the end, and with it the parents that were made for it; but where the build is stopped (an interrupt, a full
    disk, a fault) and documents have been written, it stays.

    Raises:
      UserError: the folder cannot be made, or is no longer writable.
    """
    check_writable(target)
    made = [parent for parent in target.absolute().parents if not parent.exists()]  # the innermost first
    lock = None
    try:
        try:
            folder = _beside(target)
            lock = _locked(folder)
        except OSError as error:
            raise UserError(f"{target} cannot be written ({error.strerror}); name another") from error
        work, keep = BuildFolder(folder), False
        try:
            yield work
        except UserError as error:
            # Other text would have another fingerprint; but a file that cannot be read now may be readable later.
            keep = isinstance(error, BuildInterrupted) or isinstance(error.__cause__, OSError)
            raise
        except OSError as error:
            keep = True
            if error.errno in _FULL:
                raise BuildInterrupted(
                    f"{target} cannot be written ({error.strerror}); mend that and give the same command again: what has been "
                    f"done is kept in {work.folder}"
                ) from error
            raise
        except BaseException:
            keep = True
            raise
        finally:
            if not (keep and work.is_resumable):
                with suppress(OSError):
                    work.remove()
    finally:
        if lock:
            lock.close()
        for parent in made:
            with suppress(OSError):
                parent.rmdir()


def clear_finished(directory: str | Path) -> None:
    """Removes what is left beside a cache that is in its place, where the process that built it was killed right after that."""
    if is_remote(directory):
        return
    folder = _beside(Path(os.path.realpath(directory)))
    with suppress(OSError), open(folder / "lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # unless that process is at it
        BuildFolder(folder).remove()


def _beside(target: Path) -> Path:
    return target.with_name(f".{target.name}.partial")


def _locked(folder: Path) -> IO[str]:
    """The lock of a folder, which is made if need be; waits while another process has it."""
    waits = False
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "lock"
        try:
            lock = open(path, "a")
        except FileNotFoundError:
            continue  # its owner has just removed the folder
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not waits:
                print(f"waiting for the process that builds in {folder}", file=sys.stderr, flush=True)
            waits = True
            fcntl.flock(lock, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock.fileno()), path.stat()):
                return lock
        lock.close()  # of a folder that was removed meanwhile
