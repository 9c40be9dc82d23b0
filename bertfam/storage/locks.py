"""Locks by which one process at a time writes a folder, on local disks, network file systems and in buckets.

A lock is a small file, or an object in a bucket, that names its holder and changes while the holder lives. A process waits until
the lock is free or stale. It is stale if the holder was a process of this machine that has ended, or if it belongs to another
machine and has not changed for `STALE_SECONDS` by this process's own clock, so that clocks of machines are never compared.

A folder that is copied while a process writes it takes the lock along. Such a copy is stale too: it stands still while the lock
in the folder that its holder writes changes. Symbolic links and mounts that lead to that folder are no copies of it, and neither
is the folder itself under a new name.

`fcntl.flock` was considered. The system releases it with its process, but many network file systems keep it to one machine or
lack it, buckets have nothing like it, it cannot say who holds it, and forked workers keep it alive.
"""

import contextlib
import json
import os
import secrets
import socket
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from bertfam.errors import STORAGE_FAULT, UserError, printable
from bertfam.storage import buckets
from bertfam.storage.buckets import is_remote
from bertfam.storage.faults import cannot_write
from bertfam.storage.untrusted import parse_json

WAIT_SECONDS = 60.0  # for another process that writes the same folder
STALE_SECONDS = 45.0  # without a change, after which a lock of another machine is stale
_BEAT_SECONDS = 15.0  # between two changes by the holder
_QUIET_SECONDS = 2.0  # of waiting, after which it is reported
_MAX_MISSES = 100
_MAX_BYTES = 1 << 16  # of a lock
_POLL_SECONDS = 0.2
_SETTLE_SECONDS = 0.2  # after which a process that has replaced a stale lock reads who was last to do so
NAME = ".lock.json"


@dataclass(frozen=True)
class Holder:
    """Process that holds a lock.

    Attributes:
      host: name of its machine.
      machine: identity of the machine since its start, and of the container, within which `process` is unique.
      process: its process id.
      start: start time of the process in ticks of the machine; with it a reused process id is recognised. None if unknown.
      since: time at which it took the lock, in UTC, for messages only.
      token: secret that distinguishes all locks ever taken.
      beat: number of changes so far.
      folder: resolved path or address of the folder that the lock is in; None in locks of earlier versions.
      inode: device and inode of that folder; None in a bucket, and in locks of earlier versions.
    """

    host: str
    machine: str
    process: int
    start: int | None
    since: str
    token: str
    beat: int = 0
    folder: str | None = None
    inode: list[int] | None = None

    def content(self) -> bytes:
        """Return the content of the lock."""
        return (json.dumps(self.__dict__) + "\n").encode()

    @property
    def has_ended(self) -> bool:
        """True if it was a process of this machine that no longer runs."""
        return self.machine == _machine() and not _runs(self.process, self.start)

    def is_copied_to(self, path: Path) -> bool:
        """Return whether it is a process of this machine that writes another folder, and the lock at `path` is a copy.

        An equal lock in that folder is no proof, because `path` may lead to it. A lock there that is ahead of the one at `path`,
        which is read last, is proof.
        """
        if self.folder is None or self.machine != _machine():
            return False
        try:
            folder = buckets.open_path(self.folder) if is_remote(self.folder) else Path(self.folder)
            if _is_same_folder(path.parent, folder) or _inode(path.parent) == self.inode is not None:
                return False
            original, copied = (_parse(_read(lock)) for lock in (folder / path.name, path))
        except (OSError, ValueError, UserError):
            return False  # it cannot be known
        return original is not None and copied is not None and original.token == copied.token and original.beat > copied.beat

    def describe(self) -> str:
        """Return a noun phrase for messages."""
        return printable(f"process {self.process} on {self.host} (since {self.since} UTC)")


def _parse(content: bytes) -> Holder | None:
    """Return the holder that a lock names; None if the lock is damaged."""
    try:
        holder = Holder(**parse_json(content))
    except (ValueError, TypeError):
        return None
    texts = (holder.host, holder.machine, holder.since, holder.token, holder.folder or "")
    numbers = (holder.process, holder.beat, holder.start or 0)
    return holder if all(type(text) is str for text in texts) and all(type(number) is int for number in numbers) else None


def _read(path: Path) -> bytes:
    """Return the content of a lock; raise UserError for what is none, such as a pipe, whose reader would wait for ever."""
    if not is_remote(path):
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_BYTES:
            raise UserError(f"{path} is not a lock, which is a small regular file: delete it")
    return path.read_bytes()


@contextmanager
def hold(folder: Path, *, seconds: float | None = WAIT_SECONDS, named: Path | None = None) -> Iterator[None]:
    """Hold the lock within a folder, which is created if it is missing, and deleted at the end if it is still empty.

    Args:
      folder: a folder, local or in a bucket.
      seconds: longest time to wait for another process; None: any time.
      named: folder that messages name; by default `folder`.

    Raises:
      UserError: if another process holds the lock after that time, or the folder cannot be written.
    """
    with _held(folder / NAME, named or folder, seconds, "name another"):
        yield


@contextmanager
def hold_beside(folder: Path, *, seconds: float | None = WAIT_SECONDS, fix: str = "name another") -> Iterator[None]:
    """Hold the lock beside a folder that may be absent, or is replaced; parents that it creates are deleted if still empty.

    Args:
      folder: a folder, local or in a bucket.
      seconds: longest time to wait for another process; None: any time.
      fix: what to do where nothing can be written.

    Raises:
      UserError: if another process holds the lock after that time, or it cannot be written.
    """
    with _held(folder.parent / f".{folder.name}{NAME}", folder, seconds, fix):
        yield


@contextmanager
def _held(path: Path, folder: Path, seconds: float | None, fix: str) -> Iterator[None]:
    made = [] if is_remote(path) else [parent for parent in path.absolute().parents if not parent.exists()]  # innermost first
    lock = _Lock(path, folder)
    try:
        try:
            lock.acquire(seconds)
        except OSError as error:
            raise cannot_write(folder, error, fix) from error
        try:
            yield
        finally:
            lock.release()
    finally:
        for parent in made:
            with contextlib.suppress(OSError):
                parent.rmdir()


class _Lock:
    """One lock, held by this process from `acquire` to `release`."""

    def __init__(self, path: Path, folder: Path) -> None:
        """Prepare to lock; `folder` is the one that messages name."""
        self._path, self._folder = path, folder
        self._holder = Holder(
            socket.gethostname(),
            _machine(),
            os.getpid(),
            _start_time(os.getpid()),
            datetime.now(UTC).isoformat(" ", "seconds").removesuffix("+00:00"),
            secrets.token_hex(8),
        )
        self._released = threading.Event()
        self._changing = threading.Lock()  # held while the lock is changed or deleted: a change must not follow the release
        self._misses = 0  # attempts whose folder was gone

    def acquire(self, seconds: float | None) -> None:
        """Take the lock once it is free or stale; raise UserError if it is neither after the given time."""
        start = since = time.monotonic()
        before: bytes | None = None
        is_reported = False
        while not self._create():
            if (content := self._read()) is None:
                continue  # its holder has just released it
            if content != before:
                before, since = content, time.monotonic()
            if self._is_own(content):
                break  # the store created it although its answer was lost
            holder = _parse(content)
            is_free = holder is not None and (holder.has_ended or holder.is_copied_to(self._path))
            is_silent = (holder is None or holder.machine != _machine()) and time.monotonic() - since >= STALE_SECONDS
            if is_free or is_silent:
                if self._replace():
                    break
                continue
            name = holder.describe() if holder else "another process"
            waited = time.monotonic() - start
            if seconds is not None and waited >= seconds:
                raise UserError(f"{self._folder} is being written by {name}; wait until it has ended, or end it, or name another")
            if waited >= _QUIET_SECONDS and not is_reported:
                print(f"bertfam: waiting for {name}, which writes {self._folder}", file=sys.stderr, flush=True)
                is_reported = True
            time.sleep(_POLL_SECONDS)
        threading.Thread(target=self._beat, name="lock", daemon=True).start()

    def release(self) -> None:
        """Free the lock, unless another process has taken it."""
        with self._changing, contextlib.suppress(OSError, UserError):
            self._released.set()
            if self._is_own():
                self._path.unlink(missing_ok=True)

    def _beat(self) -> None:
        """Change the lock regularly; end this process if another one has taken it, so that only one of them writes."""
        while not self._released.wait(_BEAT_SECONDS):
            with self._changing, contextlib.suppress(Exception):  # an outage; the next change may succeed
                if self._released.is_set():
                    return
                content = self._read()
                if content is not None and not self._is_own(content):
                    other = _parse(content)
                    name = other.describe() if other else "another process"
                    print(
                        f"bertfam: error: {name} has taken the lock of {self._folder} "
                        f"while this process stood still; this one exits with {STORAGE_FAULT}",
                        file=sys.stderr,
                        flush=True,
                    )
                    os._exit(STORAGE_FAULT)
                self._holder = replace(self._holder, beat=self._holder.beat + 1)
                _write(self._path, self._holder)

    def _create(self) -> bool:
        """Create the lock; return False if it exists."""
        if is_remote(self._path):
            self._holder = replace(self._holder, folder=str(self._path.parent))
            return buckets.create(self._path, self._holder.content())
        folder = self._path.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._holder = replace(self._holder, folder=os.path.realpath(folder), inode=_inode(folder))
            handle = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        except (FileNotFoundError, FileExistsError) as error:
            # Another process may delete the empty folder between any two of these calls; or no folder or file can be created.
            if isinstance(error, FileNotFoundError) or not folder.is_dir():
                self._count_miss(error)
            return False
        try:
            with open(handle, "wb") as file:
                file.write(self._holder.content())
        except OSError:
            self._path.unlink(missing_ok=True)
            raise
        return True

    def _replace(self) -> bool:
        """Replace a stale lock; return False if another process did the same after this one, or has deleted the folder."""
        try:
            _write(self._path, self._holder)
        except FileNotFoundError as error:
            self._count_miss(error)
            return False
        time.sleep(_SETTLE_SECONDS)
        return self._is_own()

    def _count_miss(self, error: OSError) -> None:
        """Count an attempt whose folder was gone; raise its error after so many that no other process can be the cause."""
        self._misses += 1
        if self._misses > _MAX_MISSES:
            raise error

    def _is_own(self, content: bytes | None = None) -> bool:
        """Return whether the content, by default the present one, names this lock."""
        holder = _parse(content or self._read() or b"")
        return holder is not None and holder.token == self._holder.token

    def _read(self) -> bytes | None:
        try:
            return _read(self._path)
        except FileNotFoundError:
            return None


def _write(path: Path, holder: Holder) -> None:
    """Replace the content of a lock atomically."""
    if is_remote(path):
        buckets.write(path, holder.content())
        return
    new = path.with_name(f"{path.name}.{holder.token}")
    try:
        new.write_bytes(holder.content())
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)


def _inode(folder: Path) -> list[int] | None:
    """Return the device and inode of a local folder, which it keeps when it is renamed; None in a bucket."""
    if is_remote(folder):
        return None
    status = folder.stat()
    return [status.st_dev, status.st_ino]


def _is_same_folder(first: Path, second: Path) -> bool:
    """Return whether two paths or addresses lead to one folder."""
    if is_remote(first) or is_remote(second):
        return str(first).rstrip("/") == str(second).rstrip("/")
    return os.path.samefile(first, second)


@cache
def _machine() -> str:
    """Return an identity of this machine since its start and of this container, within which process ids are unique."""
    identity = [socket.gethostname()]
    for read in (lambda: Path("/proc/sys/kernel/random/boot_id").read_text().strip(), lambda: os.readlink("/proc/self/ns/pid")):
        with contextlib.suppress(OSError):  # other systems than Linux
            identity.append(read())
    return " ".join(identity)


def _runs(process: int, start: int | None) -> bool:
    """Return whether a process of this machine runs that had this start time."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # it belongs to another user
    now = _start_time(process)
    return now is None or start is None or now == start


def _start_time(process: int) -> int | None:
    """Return the start time of a running process in ticks; 0 for one that has ended and waits for its parent; None if unknown."""
    try:
        # The name of the program, in parentheses, may contain spaces.
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return 0 if fields[0] in "ZX" else int(fields[19])
