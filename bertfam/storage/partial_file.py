"""Local file of records that is complete or absent; an interrupted command resumes it.

Records are appended to .NAME.partial, beside .NAME.partial.json, which says what they were computed from. The complete file is
moved to NAME.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
          UserError: If the file exists or cannot be created.
        """
        self._path, self._end = Path(path), end
        check_file(self._path, flag="--output")
        self.partial = self._path.with_name(f".{self._path.name}.partial")
        self._record = self._path.with_name(f".{self._path.name}.partial.json")
        text = json.dumps(source, sort_keys=True)
        if not (self._record.is_file() and self.partial.is_file() and self._record.read_text("utf-8") == text):
            self.partial.write_bytes(header)
            write_text(self._record, text)
        self.done = self._whole_records(len(header))
        self._file = open(self.partial, "ab")

    def append(self, records: bytes) -> None:
        """Append whole records."""
        self._file.write(records)
        self._file.flush()

    def close(self) -> None:
        """Close the file, which stays partial unless it is finished."""
        self._file.close()

    def finish(self, convert: Callable[[Path, Path], None] | None = None) -> None:
        """Move the complete file to its place.

        Args:
          convert: Writes the content of the file from that of the partial one: called with both paths. None: they are equal.
        """
        self._file.close()
        if convert:
            with new_file(self._path) as converted:
                convert(self.partial, converted)
                _sync(converted)
            self.partial.unlink()
        else:
            _sync(self.partial)
            os.replace(self.partial, self._path)
        self._record.unlink()

    def _whole_records(self, begin: int) -> int:
        """Count the records from byte `begin` on that are written completely, and remove the rest of one that is not."""
        if isinstance(self._end, int):
            count = max(0, self.partial.stat().st_size - begin) // self._end
            os.truncate(self.partial, begin + count * self._end)
            return count
        content = self.partial.read_bytes()
        last = content.rfind(self._end, begin)
        whole = begin if last < 0 else last + len(self._end)
        os.truncate(self.partial, whole)
        return content.count(self._end, begin, whole)


def _sync(path: Path) -> None:
    with open(path, "rb+") as file:
        os.fsync(file.fileno())
