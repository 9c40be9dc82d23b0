"""Sizes of the pages of a Parquet column, read from their headers: the sizes in the footer may be others.

pyarrow (21.0) unpacks a page as a whole into as many bytes as its header states, and has no function that returns the headers.
They are structures in Thrift's compact protocol (parquet.thrift of the Parquet format, 2.11).
"""

from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT, _UUID = range(1, 14)
_SIZES = {_BYTE: 1, _DOUBLE: 8, _UUID: 16}  # bytes
_DEEPEST = 16  # levels of structures
_LONGEST_NUMBER = 10  # bytes of 7 bits
# Fields of a PageHeader, and of the headers of data pages in it.
_UNPACKED, _PACKED, _DATA_PAGES, _VALUES = 2, 3, (5, 8), 1


class Page(NamedTuple):
    """Sizes of a page.

    Attributes:
      packed, unpacked: Bytes as it is in the file, and unpacked.
      values: Number of values in it; 0 of a dictionary.
    """

    packed: int
    unpacked: int
    values: int


def read_pages(file: BinaryIO, start: int, size: int, values: int) -> Iterator[Page]:
    """Yield the pages of a column in a row group in order.

    Args:
      file: The Parquet file.
      start: Position of the first page.
      size: Bytes of all pages and their headers.
      values: Number of values in the data pages, after which pyarrow reads no further page.

    Raises:
      ValueError or OverflowError: A header is damaged.
    """
    place = start
    while place < start + size and values > 0:
        file.seek(place)
        header = _struct(file)
        packed, unpacked = header.get((_PACKED,), -1), header.get((_UNPACKED,), -1)
        count = sum(header.get((kind, _VALUES), 0) for kind in _DATA_PAGES)
        if packed < 0 or unpacked < 0 or count < 0:
            raise ValueError(f"the page at byte {place} has no size")
        yield Page(packed, unpacked, count)
        place = file.tell() + packed if file.tell() > place else start + size
        values -= count


def _struct(file: BinaryIO, depth: int = 0) -> dict[tuple[int, ...], int]:
    """Read a structure; return its whole numbers, and those of structures in it, by the path of their fields."""
    if depth > _DEEPEST:
        raise ValueError("structures are nested too deeply")
    numbers, field = dict[tuple[int, ...], int](), 0
    while (byte := _bytes(file, 1)[0]) != 0:
        field = field + (byte >> 4) if byte >> 4 else _signed(file)
        kind = byte & 15
        if kind in (_I16, _I32, _I64):
            numbers[field,] = _signed(file)
        elif kind == _STRUCT:
            numbers |= {(field, *path): number for path, number in _struct(file, depth + 1).items()}
        elif kind not in (_TRUE, _FALSE):  # these are in the type
            _skip(file, kind, depth)
    return numbers


def _skip(file: BinaryIO, kind: int, depth: int) -> None:
    """Skip a value of a type."""
    if kind in (_TRUE, _FALSE):
        _bytes(file, 1)
    elif kind in (_I16, _I32, _I64):
        _unsigned(file)
    elif kind in _SIZES:
        _bytes(file, _SIZES[kind])
    elif kind == _BINARY:
        file.seek(_unsigned(file), 1)
    elif kind in (_LIST, _SET):
        byte = _bytes(file, 1)[0]
        for _ in range(byte >> 4 if byte >> 4 < 15 else _unsigned(file)):
            _skip(file, byte & 15, depth + 1)
    elif kind == _MAP:
        if count := _unsigned(file):
            byte = _bytes(file, 1)[0]
            for _ in range(count):
                _skip(file, byte >> 4, depth + 1)
                _skip(file, byte & 15, depth + 1)
    elif kind == _STRUCT:
        _struct(file, depth + 1)
    else:
        raise ValueError(f"there is no type {kind}")


def _signed(file: BinaryIO) -> int:
    number = _unsigned(file)
    return (number >> 1) ^ -(number & 1)


def _unsigned(file: BinaryIO) -> int:
    number = 0
    for place in range(_LONGEST_NUMBER):
        byte = _bytes(file, 1)[0]
        number |= (byte & 127) << (7 * place)
        if byte < 128:
            return number
    raise ValueError("a number is too long")


def _bytes(file: BinaryIO, count: int) -> bytes:
    content = file.read(count)
    if len(content) < count:
        raise ValueError("the file ends within the header of a page")
    return content
