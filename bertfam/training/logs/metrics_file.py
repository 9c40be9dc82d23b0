"""Lines of metrics.jsonl, which a damaged disk may have changed: only sound lines are used.

A sound line is a JSON object with a step, a split, and values that are numbers, lists or null.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from bertfam.errors import UserError
from bertfam.storage.buckets import is_remote
from bertfam.storage.faults import reason

NAME = "metrics.jsonl"
DAMAGED = "metrics.damaged.jsonl"  # lines that were set aside


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


class MetricsFile(NamedTuple):
    """Contents of a metrics.jsonl.

    Attributes:
      lines: the sound lines.
      damaged: the others by their number, from 1; the last line is not among them if its end is missing, because a killed process
        leaves such a line.
    """

    lines: list[Line]
    damaged: dict[int, bytes]


def read(path: Path) -> MetricsFile:
    """Read a metrics.jsonl; empty if it does not exist.

    Raises:
      UserError: if it cannot be read.
    """
    result = MetricsFile([], {})
    check_extendable(path)
    if not path.exists():
        return result
    try:
        *complete, last = path.read_bytes().split(b"\n")
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror or reason(error)}); move it away to continue without it"
        ) from error
    for number, raw in enumerate(complete, 1):
        line = _parse(raw)
        if line:
            result.lines.append(line)
        else:
            result.damaged[number] = raw
    if line := _parse(last):
        result.lines.append(line)
    return result


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
