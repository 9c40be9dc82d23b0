"""Records of files with named fields: tab-separated, comma-separated, JSON lines and Parquet."""

import csv
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, cast, get_args

from bertfam.data.corpora.formats import ends_in, read_objects, replace_invalid
from bertfam.data.corpora.labelled.benchmark_records import BenchmarkFormat, read_benchmark
from bertfam.data.corpora.parquet_tables import is_list, is_text, read_rows
from bertfam.data.corpora.text_lines import LONGEST_LINE, check_encoding, read_lines
from bertfam.errors import UserError
from bertfam.plurals import listed, plural

RecordFormat = Literal["tsv", "csv", "jsonl", "parquet"]
_SHOWN = 8
_COLUMN = re.compile(r"{([^{}]+)}")
_JOINED = re.compile(r"(?:[^{}]*{[^{}]+})+[^{}]*")  # columns in braces, and text around them
# Separators of cells -> how a file with them is read.
_SEPARATORS = {
    "\t": "tabs separate its cells: give --format=tsv",
    ",": "commas separate its cells: give --format=csv",
    ";": "semicolons separate its cells, which bertfam does not read: separate them by tabs or commas",
}


def record_format(path: str | os.PathLike[str]) -> RecordFormat | None:
    """Return the format that a file name's extension (before .gz or .zst) denotes, or None."""
    return next((kind for kind in get_args(RecordFormat) if ends_in(path, f".{kind}")), None)


def read_records(
    path: str | os.PathLike[str],
    input_format: RecordFormat | BenchmarkFormat | None,
    encoding: str,
    *,
    header: bool = True,
    ragged: bool = False,
    columns: Mapping[str, str] | None = None,
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield (place, fields by name) for each record of a file; the place is "file:line", of Parquet "file: row N".

    Args:
      path: A plain, gzipped or zstd-compressed file, or a Parquet file.
      input_format: "tsv": cells are separated by tabs, and quotation marks are part of the text. "csv": cells are separated by
        commas, and may be in quotation marks and then hold commas and line ends. "jsonl": one JSON object per line. "parquet":
        see `read_table`. A `BenchmarkFormat`: see `read_benchmark`. None: as the file's extension says.
      encoding: Any codec of Python.
      header: True if the first line of a tsv or csv file names the columns; otherwise their names are "1", "2", ...
      ragged: Leave out lines with fewer cells than the first line, and cells beyond the last of its columns.
      columns: The columns that are read of a Parquet file, see `read_table`.

    Raises:
      UserError: If a record does not have the columns of the first line, the file is no such file, or its format is not known.
    """
    input_format = input_format or record_format(path)
    if input_format is None:
        hint = "; JSON lines are --format=jsonl" if ".json" in os.fspath(path).lower() else ""
        raise UserError(
            f"{path}: the name does not end in .tsv, .csv, .jsonl or .parquet; say what it is with --format (tsv, csv, jsonl or "
            f"parquet){hint}"
        )
    if input_format in get_args(BenchmarkFormat):
        yield from read_benchmark(path, cast(BenchmarkFormat, input_format), encoding)
        return
    if input_format == "jsonl":
        yield from read_objects(path, encoding)
        return
    if input_format == "parquet":
        yield from read_table(path, encoding, columns)
        return
    names: list[str] = []
    for where, cells in _cells(path, cast(RecordFormat, input_format), encoding):
        if not names:
            names = _checked_names(cells, where) if header else [str(number + 1) for number in range(len(cells))]
            if header:
                continue
        if ragged and len(cells) < len(names):
            continue
        if len(cells) != len(names) and not ragged:
            hint = "a tab within a cell divides it" if input_format == "tsv" else "a cell with a comma must be in quotation marks"
            if input_format == "tsv" and any(cell.startswith('"') for cell in cells):
                hint = "if a quoted cell holds a tab or a line end, as pandas writes it, save the file as csv"
            first = "the header names" if header else "the first line has"
            raise UserError(f"{where}: {plural(len(cells), 'column')}, and {first} {len(names)}; fix the line ({hint})")
        yield where, dict(zip(names, cells, strict=False))


def read_table(
    path: str | os.PathLike[str], encoding: str, columns: Mapping[str, str] | None
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield (place, values by column) for each row of a Parquet file; the place is "file: row N".

    Args:
      path: The file.
      encoding: UTF-8, as all strings of Parquet are.
      columns: Columns to read, or names with braces that join them, and the flags that name them; None: all columns of strings,
        numbers, booleans and lists of these.

    Raises:
      UserError: If the file is damaged, or a column is missing or has other values.
    """
    if check_encoding(encoding) != "utf-8":
        raise UserError(f"{path}: the strings of Parquet are UTF-8; leave --encoding={encoding} out")
    for row, values in read_rows(path, lambda schema: [(name,) for name in _table_columns(path, schema, columns)]):
        yield f"{path}: row {row}", values


def _table_columns(path: str | os.PathLike[str], schema: Any, columns: Mapping[str, str] | None) -> Collection[str]:
    """Return the columns of a schema of Arrow that are read."""
    if columns is None:
        return [field.name for field in schema if _is_plain(field.type) and schema.names.count(field.name) == 1]
    flags = {
        name: flag for given, flag in columns.items() for name in columns_of(schema.names, given, str(path), flag) or [given]
    }
    for name, flag in flags.items():
        if (count := schema.names.count(name)) != 1:
            problem = f"{count} columns are named {name!r}" if count else f"no column {name!r} but {listed(schema.names, _SHOWN)}"
            raise UserError(f"{path}: {problem}; name {'another' if count else 'one of them'} with {flag}")
        if not _is_plain(kind := schema.field(name).type):
            raise UserError(
                f"{path}: column {name!r} has type {kind!s:.80}; name one of strings, numbers or lists of them with {flag}, or "
                "write the file again"
            )
    return flags


def _is_plain(kind: Any) -> bool:
    """Return True for a type of Arrow of strings, numbers, booleans, nulls, or lists of them."""
    from pyarrow import types

    kind = kind.value_type if is_list(kind) else kind
    value_kind = kind.value_type if types.is_dictionary(kind) else kind
    is_number = types.is_integer(value_kind) or types.is_floating(value_kind) or types.is_boolean(value_kind)
    return bool(is_text(value_kind) or is_number or types.is_null(value_kind))


def field_of(record: Mapping[str, Any], name: str, where: str, flag: str) -> Any:
    """Return a field of a record; raise UserError, which names the flag, if the record has no such field."""
    if name not in record:
        known = listed(record, _SHOWN)
        header = next(iter(record), "")
        if len(record) == 1 and (separator := next((one for one in _SEPARATORS if one in header), None)):
            raise UserError(f"{where}: no column {name!r}, and the header is one cell, {header!r}; {_SEPARATORS[separator]}")
        hint = ""
        if name.isdecimal() and header != "1":
            hint = "; if the first line is no header, give --no_header"
        elif not name.isdecimal() and header == "1":
            hint = "; with --no_header columns are numbered from 1"
        raise UserError(f"{where}: no column {name!r} but {known}; name one of them with {flag}{hint}")
    return record[name]


def check_columns(record: Mapping[str, Any], names: Sequence[str], where: str, flag: str) -> None:
    """Raise UserError, which names the flag of the file, if a record lacks a column of a form of files that is published."""
    if missing := next((name for name in names if name not in record), None):
        raise UserError(
            f"{where}: no column {missing!r} but {listed(record, _SHOWN)}; {flag} reads files with the columns {', '.join(names)}"
        )


def text_of(record: Mapping[str, Any], name: str, where: str, flag: str) -> str:
    """Return the text of a column, or of a name with braces such as "{title}: {body}", without white space around it.

    Raises:
      UserError: As `field_of`, or if a field is no string.
    """
    if columns := columns_of(record, name, where, flag):
        return fill({column: text_of(record, column, where, flag) for column in columns}, name)
    value = field_of(record, name, where, flag)
    if value is None:
        raise UserError(f"{where}: the field {name!r} is null, and no string; drop such records, or fill them with ''")
    if not isinstance(value, str):
        raise UserError(f"{where}: the field {name!r} is no string; name one of strings with {flag}")
    return replace_invalid(value).strip()


def columns_of(record: Collection[str], name: str, where: str, flag: str) -> list[str]:
    """Return the columns that a name with braces joins; [] for the name of a column.

    Raises:
      UserError: If a brace has no pair.
    """
    if name in record or not ("{" in name or "}" in name):
        return []
    if not _JOINED.fullmatch(name):
        raise UserError(f"{where}: {flag}={name} has a brace without its pair; write {flag}='{{title}}: {{body}}', say")
    return _COLUMN.findall(name)


def fill(texts: Mapping[str, str], name: str) -> str:
    """Return a name with braces with the texts of its columns in their place."""
    return _COLUMN.sub(lambda column: texts[column[1]], name).strip()


def _cells(path: str | os.PathLike[str], input_format: RecordFormat, encoding: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the place and the cells of each record; a line of white space, without any separator, is none."""
    lines = read_lines(path, encoding, strip=False)
    if input_format == "tsv":
        numbered = ((f"{path}:{number}", line.split("\t")) for number, line in enumerate(lines, 1))
        yield from ((where, cells) for where, cells in numbered if len(cells) > 1 or cells[0].strip())
        return
    csv.field_size_limit(LONGEST_LINE)  # of the process; the default is 131,072 characters
    reader = csv.reader((f"{line}\n" for line in lines), strict=True)
    first = 1
    while True:
        try:
            cells = next(reader, None)
        except csv.Error as error:
            fix = "close the quotation marks, or double those within a cell"
            raise UserError(f"{path}:{first}: not a record of a csv file ({error}); {fix}") from error
        if cells is None:
            return
        if len(cells) > 1 or any(cell.strip() for cell in cells):
            yield f"{path}:{first}", cells
        first = reader.line_num + 1


def _checked_names(cells: list[str], where: str) -> list[str]:
    """Return the names of the columns; raise UserError if two are equal."""
    names = [cell.strip() for cell in cells]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(
            f"{where}: two columns are named {twice!r}; rename one of them, or give --no_header if the first line is a record too"
        )
    return names
