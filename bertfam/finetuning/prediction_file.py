"""File of predictions, one record per text in the order of the input; an interrupted command resumes it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bertfam.storage.partial_file import PartialFile


class PredictionFile:
    """File of text records that is complete or absent, see `PartialFile`.

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
        self._conversion = conversion
        self._file = PartialFile(path, source, header=header.encode(), end=end.encode())
        self.done = self._file.done

    def append(self, records: Sequence[str]) -> None:
        """Append records."""
        self._file.append("".join(records).encode())

    def close(self) -> None:
        """Close the file, which stays partial unless it is finished."""
        self._file.close()

    def finish(self) -> None:
        """Move the complete file to its place."""
        self._file.finish(self._convert if self._conversion else None)

    def _convert(self, partial: Path, new: Path) -> None:
        assert self._conversion
        new.write_bytes(self._conversion(partial.read_bytes().decode()).encode())
