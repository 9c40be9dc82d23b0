"""Listing of MODEL_DIR/checkpoints as a table."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bertfam.errors import UserError, printable
from bertfam.storage.paths import to_path
from bertfam.training.checkpoints import manifest
from bertfam.training.checkpoints.cleanup import SET_ASIDE
from bertfam.training.checkpoints.retention import lines
from bertfam.training.checkpoints.selection import DELETED, entries, is_step, is_unfinished, steps
from bertfam.training.checkpoints.shapes import describe_error
from bertfam.training.checkpoints.store import Checkpoints

COMPLETE, DAMAGED, INCOMPLETE, ASIDE = "complete", "damaged", "incomplete", "set aside"


@dataclass(frozen=True)
class Row:
    """Row of the table: one checkpoint.

    Attributes:
      step: number of updates made.
      state: complete, damaged, incomplete (being written, or interrupted), or set aside (damaged, and skipped by a resumed run).
      fault: description of the damage; None if there is none.
      written: time of completion in ISO 8601; None if unknown.
      size: size in bytes.
      parts: networks and heads of a complete checkpoint, and "training state" if a run can resume from it.
      metrics: metrics of its step in metrics.jsonl, by split ("train" and "eval").
    """

    step: int
    state: str
    fault: str | None
    written: str | None
    size: int
    parts: tuple[str, ...]
    metrics: dict[str, dict[str, float]]

    def json(self) -> dict[str, Any]:
        """Return the row for --json."""
        return asdict(self)


def rows(model_dir: str | Path, *, verify: bool = False) -> list[Row]:
    """Return a row for each checkpoint of a MODEL_DIR, by step; `verify` reads every byte of them."""
    opened = Checkpoints(model_dir, read_only=True)
    directory = opened.directory
    logged = {split: lines(to_path(model_dir), split) for split in ("train", "eval")}

    def row(step: int, path: Path, state: str, fault: str | None = None) -> Row:
        metrics = {split: by_step[step] for split, by_step in logged.items() if step in by_step}
        parts: list[str] = []
        if state == COMPLETE:
            try:
                parts = sorted(opened.parts(step)) + ["training state"] * (path / "rest").is_dir()
            except UserError as error:
                state, fault = DAMAGED, f"its metadata cannot be read ({describe_error(error.__cause__ or error)})"
        return Row(step, state, fault, manifest.written(path), manifest.size(path), tuple(parts), metrics)

    result = []
    for step in steps(directory):
        path = directory / str(step)
        fault = manifest.fault(path, contents=verify, report=True)
        result.append(row(step, path, DAMAGED if fault else COMPLETE, fault))
    for path in entries(directory):
        number, dot, rest = path.name.partition(".")
        if is_step(number):
            if dot + rest == SET_ASIDE:
                result.append(row(int(number), path, ASIDE))
            elif is_unfinished(path) and not rest.endswith(DELETED):
                result.append(row(int(number), path, INCOMPLETE))
    opened.close()
    return sorted(result, key=lambda row: row.step)


def cells(rows: list[Row]) -> list[tuple[str, str, str, str, str, str]]:
    """Format the rows as texts, with a header first."""
    text_rows = [("step", "written", "size", "parts", "held out", "state")]
    for row in rows:
        metrics = "  ".join(f"{name} {value:.4g}" for name, value in row.metrics.get("eval", {}).items() if value is not None)
        text_rows.append(
            (
                f"{row.step:,}",
                (row.written or "-").replace("T", " ").removesuffix("+00:00"),
                f"{row.size / 1e6:,.1f} MB",
                ", ".join(row.parts) or "-",
                metrics or "-",
                row.state + (f": {row.fault}" if row.fault else ""),
            )
        )
    return text_rows


def table(rows: list[Row]) -> str:
    """Format the rows under a header line."""
    texts = [tuple(map(printable, line)) for line in cells(rows)]  # names of files and parts are a stranger's
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    padded = [[cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in texts]
    return "\n".join("  ".join(line).rstrip() for line in padded)
