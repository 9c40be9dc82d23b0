"""The formats of text that people bring: a table of readers."""

import json
import os
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

from bertfam.data.corpora.text_lines import LONGEST_LINE, read_lines
from bertfam.errors import UserError

InputFormat = Literal["sentences", "paragraphs", "lines", "jsonl", "parquet"]
_Path = str | os.PathLike[str]


class Format(NamedTuple):
    """How a file holds documents.

    Attributes:
      summary: what is in the file, for help.
      read: path, encoding, field -> stripped non-blank lines of each document, streamed.
      splits: whether the lines of a document are split into sentences; else they are sentences.
      fields: whether the text is in a field that has a name.
      encoded: whether the file is text of some encoding.
    """

    summary: str
    read: Callable[[_Path, str, str], Iterator[list[str]]]
    splits: bool = True
    fields: bool = False
    encoded: bool = True


def named_format(path: _Path) -> InputFormat | None:
    """The format of fields that a file's name ends in, compressed or not; None where it ends in none."""
    name = os.fspath(path).lower().removesuffix(".gz").removesuffix(".zst")
    return next((kind for kind, told in INPUT_FORMATS.items() if told.fields and name.endswith(f".{kind}")), None)


def read_documents(path: _Path, encoding: str = "utf-8", field: str = "") -> Iterator[list[str]]:
    """Documents that a blank line (one of white space is blank) or the end of the file ends; see `read_lines`."""
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
        if lines := _lines_of(string_of(value, field, where, "name the text's with --text_field")):
            yield lines


def read_objects(path: _Path, encoding: str, fix: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """The JSON objects of a file that has one a line, each behind its place "file:line".

    Raises UserError for other lines, with `fix` at its end.
    """
    for number, line in enumerate(read_lines(path, encoding), 1):
        if not line:
            continue
        where = f"{path}:{number}"
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            problem = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
            raise UserError(f"{where}: no JSON ({problem}): jsonl has a JSON object a line{fix}") from error
        if not isinstance(value, dict):
            raise UserError(f"{where}: JSON {_json_kind(value)}: jsonl has a JSON object a line{fix}")
        yield where, value


def string_of(value: dict[str, Any], field: str, where: str, fix: str) -> str:
    """A string in a JSON object; raises UserError, which says the fix, where there is none."""
    if field not in value:
        raise UserError(f"{where}: no field {field!r} but {_listed(value)}: {fix}")
    if not isinstance(text := value[field], str):
        raise UserError(f"{where}: the field {field!r} is {_json_kind(text)}, not a string: {fix}")
    return text


def _read_parquet(path: _Path, encoding: str, field: str) -> Iterator[list[str]]:
    import pyarrow
    from pyarrow import parquet

    row = 0
    try:
        with open(path, "rb") as file, parquet.ParquetFile(file, pre_buffer=False, buffer_size=1 << 20) as table:
            schema = table.schema_arrow
            if schema.names.count(field) != 1:
                raise UserError(f"{path}: no column {field!r} but {_listed(schema.names)}: name the text's with --text_field")
            kind = schema.field(field).type
            value_kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
            if not (pyarrow.types.is_string(value_kind) or pyarrow.types.is_large_string(value_kind)):
                raise UserError(f"{path}: the column {field!r} is of {kind}, not of strings: name the text's with --text_field")
            for batch in table.iter_batches(batch_size=256, columns=[field], use_threads=False):
                for text in batch.column(0).to_pylist():
                    row += 1
                    if text is None:
                        raise UserError(f"{path}: row {row}: the column {field!r} is null, not a string")
                    lines = _lines_of(text)
                    if len(text) > LONGEST_LINE and max(map(len, lines), default=0) > LONGEST_LINE:
                        raise UserError(
                            f"{path}: row {row}: a line longer than {LONGEST_LINE:,} characters: break it up into lines"
                        )
                    if lines:
                        yield lines
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 after row {row}: write the file anew") from error
    except pyarrow.ArrowException as error:
        raise UserError(f"{path}: no Parquet file, or one that is damaged, after row {row}: fetch it again") from error
    except OSError as error:
        if error.errno is None:  # pyarrow's, of what is in the file
            raise UserError(f"{path}: no Parquet file, or one that is damaged, after row {row}: fetch it again") from error
        raise UserError(f"{path} cannot be read: {error.strerror}") from error


def _lines_of(text: str) -> list[str]:
    """Stripped non-blank lines of a string, `mended`."""
    text = mended(text).replace("\r\n", "\n").replace("\r", "\n")
    return [line for line in map(str.strip, text.split("\n")) if line]


def mended(text: str) -> str:
    """A string in which what is no character of a text (NUL, half a surrogate pair) is U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text.replace("\0", "\ufffd")


def _json_kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return kinds.get(type(value), "a number")


def _listed(names: Any) -> str:
    """At most five names, for a message."""
    names = list(names)
    return (", ".join(names[:5]) + (", ..." if len(names) > 5 else "")) or "none"


INPUT_FORMATS: dict[InputFormat, Format] = {
    "sentences": Format(
        "a sentence a line, a blank line ends a document (the default, BERT's published format)", read_documents, splits=False
    ),
    "paragraphs": Format("a paragraph a line, split into sentences, a blank line ends a document", read_documents),
    "lines": Format("a document a line, split into sentences", _read_lines),
    "jsonl": Format(
        "a JSON object a line, whose field --text_field is a document; its lines are split into sentences",
        _read_jsonl,
        fields=True,
    ),
    "parquet": Format(
        "a document a row, in the column --text_field; its lines are split into sentences",
        _read_parquet,
        fields=True,
        encoded=False,
    ),
}
