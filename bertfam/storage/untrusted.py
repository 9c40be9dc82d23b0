"""Bounded reading of files in folders that others wrote: regular files inside the folder, of limited size and depth.

`json` alone has no limits: 200 MB of nested lists become gigabytes of objects, and 100,000 levels a RecursionError.
"""

import codecs
import json
import os
import re
import stat
import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from bertfam.errors import UserError
from bertfam.storage.buckets import is_remote
from bertfam.storage.faults import reason

Value = TypeVar("Value")

MAX_BYTES = 64 * 2**20  # the largest published tokenizer.json of the supported families has 17 MB
_MAX_VALUES = 4_000_000  # at most some 100 bytes of memory each
_MAX_DEPTH = 100
_MAX_NAME = 255
# Quoted text up to its end, or up to the end of the file; possessive, so that it takes linear time.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_KINDS = {dict: "an object", list: "a list", str: "a text", int: "a whole number", bool: "true or false", float: "a number"}


def file_in(folder: Path, name: str) -> Path:
    """Return the path of a file of a folder by a name that a file of the folder states.

    Raises:
      UserError: If the name is a path, or not a name that a file can have.
    """
    if not name or name in (".", "..") or any(character in name for character in "/\\\0") or len(os.fsencode(name)) > _MAX_NAME:
        raise UserError(f"{folder} names {shown(name)} as one of its files: a file of a folder is named without a path")
    return folder / name


def check_file(path: Path, max_bytes: int | None = MAX_BYTES) -> None:
    """Check a file of a folder before it is opened.

    A link may lead to a file in the same folder, or, as in the Hugging Face hub's own cache, from snapshots/REVISION to blobs.

    Args:
      path: The file; its parent is the folder.
      max_bytes: The largest size; None for files that are not read as a whole.

    Raises:
      UserError: If the file is missing, is not a regular file, lies outside its folder, or is larger than `max_bytes`.
    """
    try:
        status = path.stat()
        if not is_remote(path):
            if not stat.S_ISREG(status.st_mode):
                raise UserError(f"{path} is not a regular file: put the file itself there")
            if path.is_symlink():  # any other file lies in its folder
                _check_inside(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({_reason(error)})") from error
    if max_bytes is not None:
        check_size(path, status.st_size, max_bytes)


def check_subfolder(folder: Path) -> None:
    """Raise UserError if a folder that belongs to another one is a link out of it."""
    if not is_remote(folder) and folder.is_symlink() and folder.is_dir():
        _check_inside(folder)


def check_size(path: Path | str, size: int, max_bytes: int = MAX_BYTES) -> None:
    """Raise UserError if a file that is read as a whole has more than `max_bytes`."""
    if size > max_bytes:
        raise UserError(
            f"{path} has {size / 2**20:,.0f} MiB, and such a file has at most {max_bytes / 2**20:,.0f} MiB: "
            "is it the file that it is named after?"
        )


def read_bytes(path: Path) -> bytes:
    """Read a file of a folder as a whole.

    Raises:
      UserError: As `check_file`, or if the file cannot be read.
    """
    check_file(path)
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({_reason(error)})") from error


def read_text(path: Path) -> str:
    """Read a UTF-8 file of a folder as a whole, without a byte-order mark.

    Raises:
      UserError: As `read_bytes`, or if the file is not UTF-8.
    """
    raw = read_bytes(path)
    _check_encoding(path, raw)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not UTF-8 at byte {error.start}: check that it is the file of a vocabulary or model"
        ) from error


def _check_encoding(path: Path, raw: bytes) -> None:
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UserError(f"{path} is UTF-16, as Windows programs save text: convert it, for example with iconv -f UTF-16 -t UTF-8")


def read_json(path: Path) -> dict[str, Any]:
    """Read a file of a folder that holds a JSON object.

    Raises:
      UserError: As `read_bytes`, or if the file holds something else.
    """
    raw = read_bytes(path)
    _check_encoding(path, raw)
    try:
        content = parse_json(raw)
    except ValueError as error:  # not JSON, or not UTF-8
        raise UserError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} does not hold a JSON object")
    return content


def parse_json(raw: bytes) -> Any:
    """Parse JSON in UTF-8 in memory and time in proportion to its size.

    Raises:
      ValueError: If it is not JSON, is nested too deeply, holds too many values, a text that is not Unicode, or a name twice.
    """
    text = raw.decode("utf-8-sig")
    structure = _STRING.sub(b"", raw)
    brackets = structure.translate(None, _NOT_BRACKETS)
    if structure.count(b",") + len(brackets) > _MAX_VALUES:
        raise ValueError(f"it holds more than {_MAX_VALUES:,} values")
    import numpy as np  # here, because commands' --help imports this module and must be light

    codes = np.frombuffer(brackets, np.uint8)
    depth = np.cumsum(np.where((codes == ord("[")) | (codes == ord("{")), 1, -1), dtype=np.int64)
    if depth.max(initial=0) > _MAX_DEPTH:
        raise ValueError(f"it is nested more than {_MAX_DEPTH} levels deep")
    content = json.loads(text, object_pairs_hook=_object)
    if _SURROGATE.search(raw):
        json.dumps(content, ensure_ascii=False).encode()  # half of a surrogate pair is no text
    return content


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"an object has {shown(repeated)} twice; keep one of them")
    return content


def typed(content: Mapping[str, Any], name: str, kind: type[Value], where: object) -> Value | None:
    """Return a value of a JSON object, or None where it is absent or null.

    Raises:
      UserError: If it has another type; the message begins with `where`.
    """
    value = content.get(name)
    if value is None or (isinstance(value, kind) and not (kind is int and isinstance(value, bool))):
        return value
    raise UserError(f"{where}: {name} is {shown(value)}, and must be {_KINDS.get(kind, kind.__name__)}")


def name_fault(name: str) -> str | None:
    """Return what a name for terminals, tables and JSON must not have, but has, such as "a line end"; None if all is well."""
    categories = {"Cc": "a control character", "Cs": "half of a surrogate pair"}
    found = next((character for character in name if unicodedata.category(character) in categories), None)
    if found is None:
        return None
    return "a line end" if found in "\n\r" else categories[unicodedata.category(found)]


def check_class_names(owner: str, classes: Iterable[str]) -> None:
    """Raise UserError if the names of classes in a configuration are no texts, or one has a `name_fault`."""
    for name in classes:
        fault = name_fault(name) if isinstance(name, str) else "another type than text"
        if fault:
            raise UserError(f"{owner}.classes has the name {shown(name)} with {fault}; rename the class")


def shown(value: Any) -> str:
    """Return a value from a file as a message shows it, in at most some 60 characters."""
    text = repr(value[:60] if isinstance(value, str | list) else value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _check_inside(path: Path) -> None:
    folder, target = Path(os.path.realpath(path.parent)), Path(os.path.realpath(path, strict=True))
    is_hub_blob = folder.parent.name == "snapshots" and target.parent == folder.parent.parent / "blobs"
    if not (target.is_relative_to(folder) or is_hub_blob):
        kind, copy = ("folder", "cp -r --dereference") if target.is_dir() else ("file", "cp --dereference")
        raise UserError(f"{path} is a link out of its folder: put the {kind} itself there ({copy})")


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or reason(error) or "it does not exist"
    return str(error)
