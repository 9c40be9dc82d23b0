"""Input formats: a table of readers.

Parquet is read by pyarrow and JSON by the standard library. `datasets` (Hugging Face) and `pandas` read the same files, but
neither is a dependency of bertfam.
"""

import json
import os
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

from bertfam.data.corpora.parquet_tables import is_text, read_rows
from bertfam.data.corpora.text_lines import LONGEST_LINE, read_lines
from bertfam.errors import UserError
from bertfam.plurals import listed

InputFormat = Literal["sentences", "paragraphs", "lines", "jsonl", "parquet"]
_SHOWN = 5  # names of fields in a message
_Path = str | os.PathLike[str]
_TABLE = (
    "{} are text too; write its column of text as JSON lines (pandas.read_csv(FILE{}).to_json(NEW, orient='records', "
    "lines=True)), and give --input_format=jsonl --text_field=COLUMN"
)
# Endings of names of files that are often taken for text -> what to do about them.
_FIXES = {
    (".jsonl", ".ndjson"): "give --input_format=jsonl if it is what its name says",
    (".json",): "give --input_format=jsonl if it has one JSON object per line; a list becomes such lines by jq -c '.[]'",
    (".parquet",): "give --input_format=parquet if it is what its name says",
    (".csv",): _TABLE.format("commas and quotation marks", ""),
    (".tsv",): _TABLE.format("tabs and all columns", ", sep='\\t'"),
    (".html", ".htm", ".xml"): "tags are text too; extract its text first",
}


class Format(NamedTuple):
    """Format of documents in a file.

    Attributes:
      summary: Description of the file's contents, for --help.
      read: Function of path, encoding and field that yields the stripped non-blank lines of each document.
      splits: True if the lines of a document are split into sentences; otherwise each line is a sentence.
      fields: True if the text is in a named field.
      encoded: True if the file is text in some encoding.
    """

    summary: str
    read: Callable[[_Path, str, str], Iterator[list[str]]]
    splits: bool = True
    fields: bool = False
    encoded: bool = True


def fix_by_name(path: _Path) -> str:
    """Return what to do about a file whose name says that it is no plain text, before .gz or .zst; "" for any other."""
    return next((fix for endings, fix in _FIXES.items() if ends_in(path, endings)), "")


def ends_in(path: _Path, endings: str | tuple[str, ...]) -> bool:
    """Return True if a file's name has one of these endings, in any case, before .gz or .zst."""
    return os.fspath(path).lower().removesuffix(".gz").removesuffix(".zst").endswith(endings)


def read_documents(path: _Path, encoding: str = "utf-8", field: str = "") -> Iterator[list[str]]:
    """Yield documents, which end at a blank line (white space counts as blank) or at the end of the file; see `read_lines`."""
    document: list[str] = []
    for line in read_lines(path, encoding):
        if line:
            document.append(line)
        elif document:
            yield document
            document = []
    if document:
        yield document


def _read_lines(path: _Path, encoding: str, field: str) -> Iterator[list[str]]:
    return ([line] for line in read_lines(path, encoding) if line)


def _read_jsonl(path: _Path, encoding: str, field: str) -> Iterator[list[str]]:
    for where, value in read_objects(path, encoding):
        if lines := _lines_of(string_field(value, field, where, "name the text's with --text_field")):
            yield lines


def read_objects(path: _Path, encoding: str, fix: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (place, value) for each JSON object of a file with one object per line; the place is "file:line".

    Raises UserError for any other line, with `fix` at the end of its message.
    """
    for number, line in enumerate(read_lines(path, encoding), 1):
        if not line:
            continue
        where = f"{path}:{number}"
        if line.startswith("["):
            fix = f", and a list becomes such lines by jq -c '.[]'{fix}"
        try:
            value = json.loads(line, object_pairs_hook=_object)
        except (ValueError, RecursionError) as error:
            other = "nested too deeply" if isinstance(error, RecursionError) else "a number has too many digits"
            problem = error.msg if isinstance(error, json.JSONDecodeError) else other
            raise UserError(f"{where}: not JSON ({problem}); jsonl needs one JSON object per line{fix}") from error
        if not isinstance(value, dict):
            raise UserError(f"{where}: JSON value is {_json_kind(value)}; jsonl needs one JSON object per line{fix}")
        yield where, value


class _Repeating(dict[str, Any]):
    """JSON object with names that occur several times.

    Attributes:
      repeated: these names.
    """

    repeated: frozenset[str]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) == len(pairs):
        return value
    repeating = _Repeating(value)
    names = [name for name, _ in pairs]
    repeating.repeated = frozenset(name for name in names if names.count(name) > 1)
    return repeating


def string_field(value: dict[str, Any], field: str, where: str, fix: str) -> str:
    """Return a string field of a JSON object: of this name or, if there is none, at this path of names with dots between.

    Raises:
      UserError: If it is missing or not a string; the message ends in `fix`.
    """
    if isinstance(value, _Repeating) and field in value.repeated:
        raise UserError(f"{where}: the field {field!r} is there twice; keep one of them")
    text = value[field] if field in value else _nested_field(value, field, where, fix)
    if not isinstance(text, str):
        inside = [f"{field}.{name}" for name, part in text.items() if isinstance(part, str)] if isinstance(text, dict) else []
        example = f", such as {listed(inside, _SHOWN)}" if inside else ""
        raise UserError(f"{where}: the field {field!r} is {_json_kind(text)}, not a string; {fix}{example}")
    return text


def _nested_field(value: dict[str, Any], path: str, where: str, fix: str) -> Any:
    """Return the value at a path of names with dots between, such as translation.en."""
    names = path.split(".")
    inner: Any = value
    for number, name in enumerate(names):
        outer = ".".join(names[:number])
        if not isinstance(inner, dict):
            raise UserError(f"{where}: no field {path!r}: {outer!r} is {_json_kind(inner)}, not an object; {fix}")
        if name not in inner:
            missing = f"{name!r} in {outer!r}" if number else repr(path)
            raise UserError(f"{where}: no field {missing} but {listed(inner, _SHOWN)}; {fix}")
        inner = inner[name]
    return inner


def _read_parquet(path: _Path, encoding: str, field: str) -> Iterator[list[str]]:
    for row, values in read_rows(path, lambda schema: [_column(path, schema, field)]):
        text = values[field]
        if text is None:
            raise UserError(f"{path}: row {row}: column {field!r} is null, not a string; drop such rows, or fill them with ''")
        lines = _lines_of(text)
        if len(text) > LONGEST_LINE and max(map(len, lines), default=0) > LONGEST_LINE:
            raise UserError(f"{path}: row {row}: a line longer than {LONGEST_LINE:,} characters; break it into lines")
        if lines:
            yield lines


def _column(path: _Path, schema: Any, field: str) -> tuple[str, ...]:
    """Return the column of strings of this name, or the column and the fields of structs in it at this path.

    Raises:
      UserError: If there is none, or there are several.
    """
    if schema.names.count(field) > 1:
        raise UserError(f"{path}: {schema.names.count(field)} columns are named {field!r}; write the file with one of them")
    leaves = {".".join(leaf): (leaf, kind) for leaf, kind in _leaves(schema)}
    names: tuple[str, ...] = (field,)
    if field in schema.names:
        kind = schema.field(field).type
    elif field in leaves:
        names, kind = leaves[field]
    else:
        raise UserError(f"{path}: no column {field!r} but {listed(leaves, _SHOWN)}; name the text's with --text_field")
    if not is_text(kind):
        texts = [name for name, (_, other) in leaves.items() if name != field and is_text(other)]
        fix = (
            f"name the text's with --text_field, such as {listed(texts, _SHOWN)}"
            if texts
            else f"no other column has strings: {_as_text(kind)}"
        )
        raise UserError(f"{path}: column {field!r} has type {kind}, not string; {fix}")
    return names


def _leaves(schema: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the names and the type of each column that is no struct, and of the fields of those that are."""
    from pyarrow import types

    pending: list[tuple[tuple[str, ...], Any]] = [((field.name,), field.type) for field in reversed(schema)]
    while pending:
        names, kind = pending.pop()
        if types.is_struct(kind):
            pending += [((*names, field.name), field.type) for field in reversed(list(kind))]
        else:
            yield names, kind


def _as_text(kind: Any) -> str:
    """Return how a column of another type of Arrow becomes text."""
    from pyarrow import types

    if types.is_nested(kind):
        return "join the values of each row into one string, and write the file again"
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return "make its bytes strings (by pyarrow's cast('string')), and write the file again"
    return "write the file again with the text in a column"


def _lines_of(text: str) -> list[str]:
    """Return the stripped non-blank lines of a string, after `replace_invalid`."""
    text = replace_invalid(text).replace("\r\n", "\n").replace("\r", "\n")
    return [line for line in map(str.strip, text.split("\n")) if line]


def replace_invalid(text: str) -> str:
    """Replace everything that is not a valid text character (NUL, lone surrogates) by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text.replace("\0", "\ufffd")


def _json_kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return kinds.get(type(value), "a number")


INPUT_FORMATS: dict[InputFormat, Format] = {
    "sentences": Format(
        "one sentence per line, documents end at a blank line (the default, BERT's published format)",
        read_documents,
        splits=False,
    ),
    "paragraphs": Format("one paragraph per line, split into sentences; documents end at a blank line", read_documents),
    "lines": Format("one document per line, split into sentences", _read_lines),
    "jsonl": Format(
        "one JSON object per line, whose field --text_field is a document; its lines are split into sentences",
        _read_jsonl,
        fields=True,
    ),
    "parquet": Format(
        "one document per row, in the column --text_field; its lines are split into sentences",
        _read_parquet,
        fields=True,
        encoded=False,
    ),
}
