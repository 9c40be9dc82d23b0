"""Starts of a run, a line of MODEL_DIR/starts.jsonl each: from which step, when, by which command, and who bound each value.

{"step": 0, "time": "2026-11-30T18:00:00+00:00", "command": ["bertfam", "pretrain", ...], "versions": {"bertfam": "0.1.0", ...},
"origins": {"Run.seed": "run.gin:3", ...}}

Values that config.gin has and a line does not are defaults, or, of a run that resumes from its own config.gin, as before. Runs
of earlier versions have no such file, and nothing but reports reads it.
"""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import jax

from bertfam.config import Config
from bertfam.config.lint import label
from bertfam.errors import UserError
from bertfam.storage.files import write_bytes
from bertfam.storage.untrusted import parse_json, read_bytes
from bertfam.version import __version__

NAME = "starts.jsonl"
_MOST = 1000  # lines that are kept, the newest


class Start(NamedTuple):
    """Start of a run.

    Attributes:
      step: number of updates made before.
      time: date and time in ISO 8601, UTC.
      command: words of the command line; () if a program started the run.
      versions: versions of bertfam and JAX, by name.
      origins: the file and line, or the flag, of each value that they bind, by its name in gin files.
    """

    step: int
    time: str
    command: tuple[str, ...]
    versions: dict[str, str]
    origins: dict[str, str]


def add(model_dir: Path, step: int, command: Sequence[str], config: Config) -> None:
    """Append a start to the file."""
    origins = {label(b): str(b.origin) for b in config.bindings.values() if b.origin.source not in config.saved_sources}
    versions = {"bertfam": __version__, "jax": jax.__version__}
    start = Start(step, datetime.now(UTC).isoformat(timespec="seconds"), tuple(command), versions, origins)
    path = model_dir / NAME
    lines = [*_lines(path)[1 - _MOST :], json.dumps(start._asdict()).encode()]
    write_bytes(path, b"".join(line + b"\n" for line in lines))


def read(model_dir: Path) -> list[Start]:
    """Read the starts, the first one first; lines that are damaged are left out."""
    return [start for line in _lines(model_dir / NAME) if (start := _parse(line))]


def _lines(path: Path) -> list[bytes]:
    """Return the lines of the file; [] if there is none, or it cannot be read."""
    try:
        return read_bytes(path).splitlines() if path.is_file() else []
    except UserError:
        return []


def _parse(line: bytes) -> Start | None:
    try:
        values: Any = parse_json(line)
        start = Start(**values)
    except (TypeError, ValueError):
        return None
    words: list[Any] = start.command if isinstance(start.command, list) else []
    is_sound = type(start.step) is int and start.step >= 0 and isinstance(start.time, str)
    is_sound = is_sound and all(isinstance(word, str) for word in words)
    for texts in (start.versions, start.origins):
        is_sound = is_sound and isinstance(texts, dict) and all(isinstance(value, str) for value in texts.values())
    return start._replace(command=tuple(words)) if is_sound else None
