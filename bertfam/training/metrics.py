"""Metrics: exact sums on the device, read late, written as JSON lines and to TensorBoard."""

import contextlib
import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bertfam.errors import TrainingError, UserError
from bertfam.files import write_text
from bertfam.training.step import NON_FINITE, Metrics


def means(metrics: list[Metrics]) -> dict[str, float]:
    """Merges steps' sums in float64 and divides; a metric without any weight is left out."""
    fetched = jax.device_get(metrics)
    result = {}
    for name in fetched[0] if fetched else ():
        total = sum(np.float64(step[name].total) for step in fetched)
        weight = sum(np.float64(step[name].weight) for step in fetched)
        if weight:
            result[name] = float(total / weight)
    return result


def check_finite(last: int, metrics: list[Metrics]) -> None:
    """Raises TrainingError at the first of the steps that lead up to `last` whose `NON_FINITE` is set; their metrics are here."""
    for step, sums in enumerate(metrics, last - len(metrics) + 1):
        if NON_FINITE in sums and sums[NON_FINITE].total:
            loss, norm = float(sums["loss"].total), float(sums["gradient_norm"].total)
            raise TrainingError(
                f"the update that leads to step {step:,} has loss {loss:.4g} and gradient norm {norm:.4g}; "
                "neither it nor what came after it was saved: lower the schedule's peak or the optimizer's clip_norm, try "
                "--gin.Execution.dtype='\"float32\"', or go on without such updates by --gin.Run.non_finite='\"skip\"'"
            )


class MetricsWriter:
    """MODEL_DIR/metrics.jsonl, one object a line, and TensorBoard event files beside it."""

    def __init__(self, model_dir: Path, step: int) -> None:
        """Opens both for a run that stands at `step`; what an interrupted run wrote beyond it is dropped."""
        path = model_dir / "metrics.jsonl"
        if path.exists():
            kept = [line for line in path.read_text().splitlines() if _step(line) <= step]
            write_text(path, "".join(f"{line}\n" for line in kept))
        self._file = open(path, "a")
        self._board = _summary_writer()(str(model_dir), purge_step=step + 1)

    def write(self, step: int, split: str, values: Mapping[str, Any]) -> None:
        """Adds one line: the step (updates made), the split ("train" or "eval") and the values.

        Raises:
          UserError: it cannot be written: the disk is full, say.
        """
        # NaN is no JSON.
        line = {name: value if math.isfinite(value) else None for name, value in values.items()}
        try:
            self._file.write(json.dumps({"step": step, "split": split, **line}) + "\n")
            self._file.flush()
        except OSError as error:
            raise UserError(
                f"{self._file.name} cannot be written ({error.strerror}); when that is mended, the same command goes on from the "
                "newest checkpoint"
            ) from error
        for name, value in values.items():
            self._board.add_scalar(f"{split}/{name}", value, step)

    def close(self) -> None:
        """Flushes and closes both."""
        with contextlib.suppress(OSError):  # what cannot be written has been told
            self._file.close()
        self._board.close()


class NoMetrics:
    """Takes the place of a `MetricsWriter` on all processes of a run but the first, which writes for all."""

    def write(self, step: int, split: str, values: Mapping[str, Any]) -> None:
        """Writes nothing."""

    def close(self) -> None:
        """Has nothing to close."""


Writer = MetricsWriter | NoMetrics


def _summary_writer() -> Any:
    """tensorboardX's writer; on its import it takes torch along where that is installed, which it needs for figures only."""
    absent = "torch" not in sys.modules
    if absent:
        sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        from tensorboardX import SummaryWriter
    finally:
        if absent:
            del sys.modules["torch"]
    return SummaryWriter


def _step(line: str) -> int:
    """The step of a line; a half-written one counts as beyond every step."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return 2**62
