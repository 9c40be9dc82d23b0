"""Rows of Parquet files, with some of their columns, read by pyarrow in a bounded memory."""

import functools
import io
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bertfam.data.corpora.parquet_pages import read_pages
from bertfam.data.corpora.text_lines import LONGEST_LINE, other_file
from bertfam.errors import UserError
from bertfam.plurals import plural
from bertfam.storage.streams import open_binary

# Bytes of a column in a row group, and the ratio to its compressed bytes; beyond both it is refused.
_UNPACKED, _RATIO = 64 << 20, 100
# Values of a column of lists in a row group, of which runs of equal ones take no bytes.
_LISTED = 64 << 20
# Rows that are read at once: all may be the same long entry of a dictionary. More are hardly faster.
_BATCH = 8
_READING: dict[str, Any] = {"pre_buffer": False, "buffer_size": 1 << 20}
# First bytes of a compressed file -> the command that unpacks it. Pages of Parquet are compressed one by one.
_UNPACKED_BY = {b"\x1f\x8b": "gunzip -k", b"\x28\xb5\x2f\xfd": "unzstd"}
_Path = str | os.PathLike[str]
# Names of a column and of the fields of structs in it.
Column = tuple[str, ...]


def read_rows(path: _Path, select: Callable[[Any], Sequence[Column]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (number, values by column) for each row of a Parquet file; rows are counted from 1.

    A value is a string, a number, a boolean, None or a list of them. The name of a field of a struct has dots: "outer.inner".

    Args:
      path: The file.
      select: Function of the schema of Arrow that returns the columns to read.

    Raises:
      UserError: If the file is damaged, or unpacks to so much more than its size that it cannot be text.
    """
    import pyarrow

    row = 0
    try:
        with _open_seekable(path) as file:
            table, columns = _open_table(file, select)
            fields = [".".join(column) for column in columns]
            for field in fields:
                _check_unpacked_size(path, table.metadata, field)
            for batch in _batches(path, file, table, fields):
                values = (_values(batch.column(name), inner, path, row) for name, *inner in columns)
                for cells in zip(*values, strict=True):
                    row += 1
                    yield row, dict(zip(fields, cells, strict=True))
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 after row {row}; write the file again") from error
    except pyarrow.ArrowException as error:
        raise _damaged(path, row) from error
    except OSError as error:
        if error.errno is None:  # pyarrow's own, about the contents of the file
            raise _damaged(path, row) from error
        raise UserError(f"{path} cannot be read: {error.strerror}") from error


def is_text(kind: Any) -> bool:
    """Return True for a type of Arrow whose values are strings."""
    from pyarrow import types

    value_kind = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_string(value_kind) or types.is_large_string(value_kind) or types.is_string_view(value_kind))


def is_list(kind: Any) -> bool:
    """Return True for a type of Arrow whose values are lists."""
    from pyarrow import types

    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _open_table(file: io.BufferedReader, select: Callable[[Any], Sequence[Column]]) -> tuple[Any, Sequence[Column]]:
    """Return the open table and its selected columns.

    Lists of strings stay numbers of entries of a dictionary, because a small file may have a list of the same long entry.
    """
    from pyarrow import parquet

    table = parquet.ParquetFile(file, **_READING)
    columns = select(table.schema_arrow)
    kinds = {name: table.schema_arrow.field(name).type for name, *_ in columns}
    lists = tuple(f"{name}." for name, kind in kinds.items() if is_list(kind) and is_text(kind.value_type))
    if not lists:
        return table, columns
    paths = [table.schema.column(number).path for number in range(len(table.schema))]
    leaves = [path for path in paths if path.startswith(lists)]
    return parquet.ParquetFile(file, metadata=table.metadata, read_dictionary=leaves, **_READING), columns


def _batches(path: _Path, file: io.BufferedReader, table: Any, fields: list[str]) -> Iterator[Any]:
    """Yield the rows of some columns in batches; each row group is checked before it is read."""
    for group in range(table.num_row_groups):
        for field in fields:
            _check_pages(path, file, table.metadata, group, field)
        yield from table.iter_batches(batch_size=_BATCH, row_groups=[group], columns=fields, use_threads=False)


def _values(array: Any, inner: Sequence[str], path: _Path, row: int) -> Iterator[Any]:
    """Yield the values of a column, or of a field of the structs in it, in the rows after the given number of rows."""
    if is_list(array.type):
        return (_list_of(scalar, f"{path}: row {number}") for number, scalar in enumerate(array, row + 1))
    values = (scalar.as_py() for scalar in array)
    return (functools.reduce(lambda fields, name: fields and fields[name], inner, value) for value in values) if inner else values


def _list_of(scalar: Any, where: str) -> list[Any] | None:
    """Return a list in which equal entries of a dictionary are one object.

    Raises:
      UserError: If it has more values or characters than a line of JSON has.
    """
    from pyarrow import types

    values = scalar.values
    if values is None:
        return None
    size = 2 * len(values)  # at least a character and a comma each
    if size <= LONGEST_LINE and types.is_dictionary(values.type):
        numbers = values.indices.to_pylist()
        entries = {number: values.dictionary[number].as_py() for number in set(numbers) if number is not None}
        size = sum(len(str(entries.get(number))) + 1 for number in numbers)
        if size <= LONGEST_LINE:
            return [entries.get(number) for number in numbers]
    if size > LONGEST_LINE:
        raise UserError(f"{where}: a list with more than {LONGEST_LINE:,} characters; drop the row, or divide it")
    result: list[Any] = values.to_pylist()
    return result


def _open_seekable(path: _Path) -> io.BufferedReader:
    """Open a Parquet file, which is read out of order."""
    file = open_binary(path)
    if not file.seekable():
        file.close()
        raise UserError(
            f"{path}: Parquet is read out of order, and this web server has no ranges; download the file, and name that"
        )
    return file


def _damaged(path: _Path, row: int) -> UserError:
    with open_binary(path) as file:
        start = file.read(300)
    if not start:
        return UserError(f"{path} is empty, and no Parquet file: leave it out, for example by a glob that ends in *.parquet")
    if command := next((command for magic, command in _UNPACKED_BY.items() if start.startswith(magic)), ""):
        return UserError(f"{path}: a Parquet file is not compressed as a whole; unpack it by {command}")
    other = "" if start.startswith(b"PAR1") else other_file(start)
    fix = f"this is {other}" if other else "download it again"
    return UserError(f"{path}: not a Parquet file, or damaged after row {row}; {fix}")


def _check_unpacked_size(path: _Path, metadata: Any, field: str) -> None:
    """Raise UserError if a piece of a column becomes so much larger when it is unpacked that it cannot be text.

    A page is unpacked as a whole, and 33 KB of zstd may be a page of 1 GiB. The sizes are those that the footer states.
    """
    for number in range(metadata.num_row_groups):
        for column in _columns(metadata, number, field):
            _check_size(path, metadata, number, field, column.total_compressed_size, column.total_uncompressed_size)


def _check_pages(path: _Path, file: io.BufferedReader, metadata: Any, number: int, field: str) -> None:
    """Raise UserError as `_check_unpacked_size` does, by the headers of the pages of a row group: its footer may lie.

    Columns of lists may have many more values than rows, and their number is checked too.
    """
    for column in _columns(metadata, number, field):
        start, values = column.data_page_offset, 0
        if column.has_dictionary_page and column.dictionary_page_offset > 0:
            start = min(start, column.dictionary_page_offset)
        try:
            for page in read_pages(file, start, column.total_compressed_size, column.num_values):
                _check_size(path, metadata, number, field, page.packed, page.unpacked)
                values += page.values
        except (ValueError, OverflowError) as error:
            raise _damaged(path, sum(metadata.row_group(before).num_rows for before in range(number))) from error
        if column.path_in_schema != field and values > _LISTED:
            rows = plural(metadata.row_group(number).num_rows, "row")
            raise UserError(
                f"{path}: the lists of column {field!r} have {values:,} values in row group {number}, of {rows}; write the file "
                f"again with row groups of at most {_LISTED:,} values"
            )


def _columns(metadata: Any, number: int, field: str) -> Iterator[Any]:
    """Yield the columns of a row group whose path is `field`, and of the values of lists in it."""
    group = metadata.row_group(number)
    for column in map(group.column, range(group.num_columns)):
        if column.path_in_schema == field or column.path_in_schema.startswith(f"{field}."):
            yield column


def _check_size(path: _Path, metadata: Any, number: int, field: str, packed: int, unpacked: int) -> None:
    if unpacked > max(_UNPACKED, _RATIO * packed):
        raise UserError(
            f"{path}: {packed:,} bytes of column {field!r} become {unpacked:,} when they are unpacked, more than {_RATIO} times "
            f"as many, in row group {number}, of {plural(metadata.row_group(number).num_rows, 'row')}: write the file again with "
            f"row groups of less text than {_UNPACKED >> 20} MiB"
        )
