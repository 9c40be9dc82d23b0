"""File of vectors, one per text in the order of the input; an interrupted command resumes it."""

import io
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bertfam.errors import UserError
from bertfam.storage.partial_file import PartialFile

_DTYPE = np.dtype("<f4")
_AT_ONCE = 4096  # vectors in memory while a file is converted
COLUMN = "embedding"


class VectorFile:
    """File of vectors float32[width] that is complete or absent: .npy, .jsonl or .parquet.

    The partial file is a NumPy file without a number of rows, whatever the format.

    Attributes:
      done: Number of vectors that an interrupted command has written already.
    """

    def __init__(self, path: str | Path, source: dict[str, Any], width: int) -> None:
        """Open the file.

        Args:
          path: The file to write.
          source: Everything that determines the vectors, as JSON; another source starts over.
          width: Numbers of a vector.

        Raises:
          UserError: If the file exists or cannot be created, or its name has another extension.
        """
        extension = Path(path).suffix.lower()
        if extension not in _CONVERSIONS:
            raise UserError(
                f"--output={path}: the name must end in {' or '.join(_CONVERSIONS)}, which says how vectors are written"
            )
        self._convert, self._width = _CONVERSIONS[extension], width
        header = _header(0, width)
        self._file = PartialFile(path, source, header=header, end=width * _DTYPE.itemsize)
        self.done = self._count = self._file.done

    def append(self, vectors: np.ndarray) -> None:
        """Append vectors float32[n, width]."""
        self._file.append(vectors.astype(_DTYPE).tobytes())
        self._count += len(vectors)

    def close(self) -> None:
        """Close the file, which stays partial unless it is finished."""
        self._file.close()

    def finish(self) -> None:
        """Move the complete file to its place."""
        # NumPy leaves room in the header for the number of rows to grow.
        self._file.replace_header(_header(self._count, self._width))
        self._file.finish(self._convert)


def _header(count: int, width: int) -> bytes:
    """Return the header of a NumPy file; its size does not depend on `count`."""
    stream = io.BytesIO()
    values = {"descr": np.lib.format.dtype_to_descr(_DTYPE), "fortran_order": False, "shape": (count, width)}
    np.lib.format.write_array_header_1_0(stream, values)
    return stream.getvalue()


def _blocks(path: Path) -> Iterator[np.ndarray]:
    """Yield the vectors of a NumPy file, float32[n, width] at a time."""
    vectors = np.load(path, mmap_mode="r", allow_pickle=False)
    for begin in range(0, len(vectors), _AT_ONCE):
        yield np.array(vectors[begin : begin + _AT_ONCE])


def _write_jsonl(partial: Path, new: Path) -> None:
    with open(new, "w", encoding="utf-8") as file:
        for block in _blocks(partial):
            # The shortest decimals that are these float32 numbers.
            file.writelines(json.dumps({COLUMN: [float(str(number)) for number in row]}) + "\n" for row in block)


def _write_parquet(partial: Path, new: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    width = np.load(partial, mmap_mode="r", allow_pickle=False).shape[1]
    schema = pa.schema([(COLUMN, pa.list_(pa.float32(), width))])
    with parquet.ParquetWriter(new, schema) as writer:
        for block in _blocks(partial):
            column = pa.FixedSizeListArray.from_arrays(pa.array(block.reshape(-1)), width)
            writer.write_table(pa.table([column], schema=schema))


_CONVERSIONS: Mapping[str, Callable[[Path, Path], None] | None] = {
    ".npy": None,
    ".jsonl": _write_jsonl,
    ".parquet": _write_parquet,
}
