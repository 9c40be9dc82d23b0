"""File of predictions, one record per text in the order of the input; an interrupted command resumes it.

Records are appended to .NAME.partial, beside .NAME.partial.json, which says what they were predicted from. The complete file is
moved to NAME.
"""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bertfam.storage.files import check_file, write_text


class PredictionFile:
    """File of records that is complete or absent.

    Attributes:
      done: Number of records that an interrupted command has written already.
    """

    def __init__(
        self,
        path: str | Path,
        source: dict[str, Any],
        *,
        header: str,
        end: str,
        conversion: Callable[[str], str] | None = None,
    ) -> None:
        """Open the file.

        Args:
          path: The file to write.
          source: Everything that determines the records, as JSON; another source starts over.
          header: Text before the first record: a line, or "".
          end: Text with which a record ends, and that it has nowhere else.
          conversion: Conversion of all records to the content of the file; None: they are that.

        Raises:
          UserError: If the file exists or cannot be created.
        """
        self._path, self._end, self._conversion = Path(path), end, conversion
        check_file(self._path, flag="--output")
        self._partial = self._path.with_name(f".{self._path.name}.partial")
        self._record = self._path.with_name(f".{self._path.name}.partial.json")
        text = json.dumps(source, sort_keys=True)
        if not (self._record.is_file() and self._partial.is_file() and self._record.read_text("utf-8") == text):
            self._partial.write_text(header, encoding="utf-8", newline="")
            write_text(self._record, text)
        self.done = self._whole_records(len(header.encode()))
        self._file = open(self._partial, "a", encoding="utf-8", newline="")

    def append(self, records: Sequence[str]) -> None:
        """Append records."""
        self._file.write("".join(records))
        self._file.flush()

    def close(self) -> None:
        """Close the file, which stays partial unless it is finished."""
        self._file.close()

    def finish(self) -> None:
        """Move the complete file to its place."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        if self._conversion:
            write_text(self._partial, self._conversion(self._partial.read_text("utf-8")))
        os.replace(self._partial, self._path)
        self._record.unlink()

    def _whole_records(self, begin: int) -> int:
        """Count the records from byte `begin` on that are written completely, and remove the rest of one that is not."""
        content, end = self._partial.read_bytes(), self._end.encode()
        last = content.rfind(end, begin)
        whole = begin if last < 0 else last + len(end)
        os.truncate(self._partial, whole)
        return content.count(end, begin, whole)
