"""Lines of metrics.jsonl, which a damaged disk may have changed: only sound lines are used.

A sound line is a JSON object with a step, a split, and values that are numbers, lists or null.
"""

import errno
import io
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

from bertfam.errors import UserError
from bertfam.storage.buckets import is_remote
from bertfam.storage.faults import reason

NAME = "metrics.jsonl"
DAMAGED = "metrics.damaged.jsonl"  # lines that were set aside
_LONGEST = 16 << 20  # bytes of a line; the digests of a large model on many hosts take less
_BEGINNING = 200  # bytes that are kept of a longer line
_MOST_DAMAGED = 64 << 20  # bytes of damaged lines that are kept


class Line(NamedTuple):
    """Line of metrics.jsonl.

    Attributes:
      step: number of updates.
      split: "train", "eval", ...
      values: the metrics.
      raw: the line itself, without its end.
    """

    step: int
    split: str
    values: dict[str, Any]
    raw: bytes


@dataclass
class DamagedLines:
    """Lines that are not sound.

    Attributes:
      first: number of the first of them, from 1; 0 if there is none.
      count: number of them.
      content: the lines without their ends, up to a total size; of a line that is too long the beginning and the length.
    """

    first: int = 0
    count: int = 0
    content: list[bytes] = field(default_factory=list)
    _size: int = 0

    def add(self, number: int, raw: bytes) -> None:
        """Add a line by its number, from 1."""
        self.first = self.first or number
        self.count += 1
        self._size += len(raw)
        if self._size <= _MOST_DAMAGED:
            self.content.append(raw)


def read(path: Path, damaged: DamagedLines | None = None) -> Iterator[Line]:
    """Read the sound lines of a metrics.jsonl, line by line; none if it does not exist.

    Args:
      path: the file.
      damaged: gets the other lines. The last line is not among them if its end is missing, because a killed process leaves such
        a line, unless it is too long or has a NUL, which a power loss leaves.

    Raises:
      UserError: if it cannot be read.
    """
    check_extendable(path)
    if not path.exists():
        return
    damaged = damaged or DamagedLines()
    try:
        with io.BytesIO(path.read_bytes()) if is_remote(path) else open(path, "rb") as file:
            for number, raw in enumerate(_raw_lines(file), 1):
                if line := _parse(raw.removesuffix(b"\n")):
                    yield line
                elif raw.endswith(b"\n") or b"\0" in raw:
                    damaged.add(number, raw.removesuffix(b"\n"))
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror or reason(error)}); move it away to continue without it"
        ) from error


def _raw_lines(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines with their ends; in the place of a line that is too long its beginning, its length and an end."""
    while raw := file.readline(_LONGEST):
        if len(raw) == _LONGEST and not raw.endswith(b"\n"):
            start, rest = file.tell() - len(raw), raw
            while rest and not rest.endswith(b"\n"):
                _skip_hole(file)
                rest = file.readline(_LONGEST)
            raw = b"%b ... (%d bytes)\n" % (raw[:_BEGINNING].rstrip(b"\0"), file.tell() - start)
        yield raw


def _skip_hole(file: IO[bytes]) -> None:
    """Pass over a part of a file for which the disk holds no data: a power loss, or a stranger, may leave terabytes of it."""
    position = file.tell()
    try:
        descriptor = file.fileno()
        before = os.lseek(descriptor, 0, os.SEEK_CUR)
        try:
            position = os.lseek(descriptor, position, os.SEEK_DATA)
        finally:
            os.lseek(descriptor, before, os.SEEK_SET)  # `file` has read ahead
        file.seek(position)
    except OSError as error:
        if error.errno == errno.ENXIO:  # there is no data after it
            file.seek(0, os.SEEK_END)


def check_extendable(path: Path) -> None:
    """Raise UserError if a file of a MODEL_DIR that a run extends is a link, to another file, or no regular file."""
    if not is_remote(path) and path.is_symlink():
        raise UserError(f"{path} is a link; move it away to continue without it, or put the file itself there")
    if path.exists() and not path.is_file():  # reading a pipe waits for ever
        raise UserError(f"{path} is not a regular file; move it away to continue without it")


def _parse(raw: bytes) -> Line | None:
    try:
        values = json.loads(raw)
    except (ValueError, RecursionError):  # not JSON, not UTF-8, or brackets without end
        return None
    if not isinstance(values, dict):
        return None
    step, split = values.pop("step", None), values.pop("split", None)
    is_sound = type(step) is int and step >= 0 and isinstance(split, str)
    is_sound = is_sound and all(value is None or isinstance(value, int | float | list) for value in values.values())
    return Line(step, split, values, raw) if is_sound else None
