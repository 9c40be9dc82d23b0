"""Local file of records that is complete or absent; an interrupted command resumes it.

Records are appended to .NAME.partial, beside .NAME.partial.json, which says what they were computed from. The complete file is
moved to NAME. A lock keeps a second command with the same NAME waiting: it would append to the same file. Whoever can write into
the folder can foresee these names, so links of these names are replaced, and not followed.
"""

import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bertfam.errors import UserError
from bertfam.storage import locks
from bertfam.storage.files import check_file, new_file, write_text


class PartialFile:
    """File of records, which stays partial until it is finished.

    Attributes:
      done: Number of records that an interrupted command has written already.
      partial: The file before it is finished.
    """

    def __init__(self, path: str | Path, source: dict[str, Any], *, header: bytes, end: bytes | int) -> None:
        """Open the file.

        Args:
          path: The file to write.
          source: Everything that determines the records, as JSON; another source starts over.
          header: Content before the first record.
          end: Bytes with which a record ends, and that it has nowhere else; or the size of a record in bytes.

        Raises:
          UserError: If the file exists or cannot be created, or another process writes it for a minute.
        """
        self._path, self._end = Path(path), end
        check_file(self._path, flag="--output")
        self.partial = self._path.with_name(f".{self._path.name}.partial")
        self._record = self._path.with_name(f".{self._path.name}.partial.json")
        with ExitStack() as held:
            held.enter_context(locks.hold_beside(self._path))
            check_file(self._path, flag="--output")  # another process may have finished it meanwhile
            self._open(json.dumps(source, sort_keys=True), header)
            self.done = self._whole_records(len(header))
            self._file.seek(0, os.SEEK_END)
            self._lock = held.pop_all()

    def _open(self, record: str, header: bytes) -> None:
        """Open the partial file of the same source, or start one."""
        if _is_plain(self._record) and _is_plain(self.partial) and self._record.read_bytes() == record.encode():
            self._file = open(self.partial, "r+b", opener=_open_unfollowed)
            return
        for name in (self.partial, self._record):
            if name.is_dir() and not name.is_symlink():
                raise UserError(f"{name} is a folder, where a file is written first; remove it, or name another file")
            name.unlink(missing_ok=True)
        self._file = open(self.partial, "x+b", opener=_open_unfollowed)
        with self._named_in_errors():
            self._file.write(header)
            self._file.flush()
        write_text(self._record, record)

    def append(self, records: bytes) -> None:
        """Append whole records."""
        with self._named_in_errors():
            self._file.write(records)
            self._file.flush()

    def close(self) -> None:
        """Close the file, which stays partial unless it is finished."""
        with self._lock, self._named_in_errors():  # records that a full disk has refused are written once more
            self._file.close()

    def replace_header(self, header: bytes) -> None:
        """Replace the content before the first record by another of the same size, after the last record."""
        with self._named_in_errors():
            self._file.seek(0)
            self._file.write(header)

    def finish(self, convert: Callable[[Path, Path], None] | None = None) -> None:
        """Move the complete file to its place.

        Args:
          convert: Writes the content of the file from that of the partial one: called with both paths. None: they are equal.

        Raises:
          UserError: If another file or a link has taken the place of the partial one.
        """
        with self._named_in_errors():
            self._file.flush()
            os.fsync(self._file.fileno())
        if not os.path.lexists(self.partial) or not os.path.samestat(os.fstat(self._file.fileno()), os.lstat(self.partial)):
            raise UserError(f"{self.partial} was removed or replaced, by another command with the same output, say; run it again")
        self._file.close()
        if convert:
            with new_file(self._path) as converted:
                convert(self.partial, converted)
                _sync(converted)
            self.partial.unlink()
        else:
            os.replace(self.partial, self._path)
        self._record.unlink(missing_ok=True)
        self._lock.close()

    @contextmanager
    def _named_in_errors(self) -> Iterator[None]:
        """Name the file in an OSError: those of writing name none."""
        try:
            yield
        except OSError as error:
            error.filename = error.filename or str(self._path)
            raise

    def _whole_records(self, begin: int) -> int:
        """Count the records from byte `begin` on that are written completely, and remove the rest of one that is not."""
        if isinstance(self._end, int):
            count = max(0, os.fstat(self._file.fileno()).st_size - begin) // self._end
            self._file.truncate(begin + count * self._end)
            return count
        self._file.seek(0)
        content = self._file.read()
        last = content.rfind(self._end, begin)
        whole = begin if last < 0 else last + len(self._end)
        self._file.truncate(whole)
        return content.count(self._end, begin, whole)


def _is_plain(path: Path) -> bool:
    """Return True for a regular file without a second name."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_nlink == 1


def _open_unfollowed(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def _sync(path: Path) -> None:
    with open(path, "rb+") as file:
        os.fsync(file.fileno())
