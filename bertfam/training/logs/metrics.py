"""Metrics: exact sums on the device, read with a delay, written as JSON lines and to TensorBoard."""

import contextlib
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bertfam.errors import TrainingError, TransientError, UserError, warn
from bertfam.storage.faults import refusal
from bertfam.storage.files import write_bytes
from bertfam.storage.spool import Spool
from bertfam.training.integrity.digest import DIGEST
from bertfam.training.logs import metrics_file
from bertfam.training.logs.trackers import TrackedRuns, Tracker
from bertfam.training.step import NON_FINITE, Metrics


def means(metrics: list[Metrics]) -> dict[str, float]:
    """Compute the mean of each metric over steps, in float64; a metric whose weight is 0 is left out."""
    fetched = jax.device_get(metrics)
    result = {}
    for name in fetched[0] if fetched else ():
        total = sum(np.float64(step[name].total) for step in fetched)
        weight = sum(np.float64(step[name].weight) for step in fetched)
        if weight:
            result[name] = float(total / weight)
    return result


def weights(metrics: list[Metrics]) -> dict[str, float]:
    """Compute the sum of each metric's weights over steps, in float64."""
    fetched = jax.device_get(metrics)
    return {name: float(sum(np.float64(step[name].weight) for step in fetched)) for name in (fetched[0] if fetched else ())}


def check_finite(last: int, metrics: list[Metrics]) -> None:
    """Raise TrainingError for the first step whose `NON_FINITE` is set; `metrics` are those of the steps up to `last`."""
    for step, sums in enumerate(metrics, last - len(metrics) + 1):
        if NON_FINITE in sums and sums[NON_FINITE].total:
            loss, norm = float(sums["loss"].total), float(sums["gradient_norm"].total)
            raise TrainingError(
                f"the update that leads to step {step:,} has loss {loss:.4g} and gradient norm {norm:.4g}; "
                "neither it nor any later update is saved: lower the schedule's peak or the optimizer's clip_norm, try "
                "--gin.Execution.dtype='\"float32\"', or skip such updates by --gin.Run.non_finite='\"skip\"'"
            )


class MetricsWriter:
    """Writer of MODEL_DIR/metrics.jsonl, one object per line, and of TensorBoard event files beside it."""

    def __init__(self, model_dir: Path, step: int, trackers: Sequence[Tracker] = (), settings: Any = None) -> None:
        """Open both for a run at `step`, and the services of `trackers`, which get the run's `settings`.

        Lines that an interrupted run wrote for later steps are dropped, and so are incomplete scores of `step`, which lack their
        last line, "eval". Damaged lines are set aside with a warning, and another one says if all lines are dropped because no
        checkpoint is left.
        """
        self._spool = Spool(model_dir, metrics_file.NAME, metrics_file.DAMAGED)
        path = self._spool.folder / metrics_file.NAME
        metrics_file.check_extendable(path)
        if path.exists():
            damaged = metrics_file.DamagedLines()
            lines = list(metrics_file.read(path, damaged))
            if damaged.count:
                _set_aside(damaged, model_dir, path.with_name(metrics_file.DAMAGED))
            evaluated = any((line.step, line.split) == (step, "eval") for line in lines)
            kept = [line for line in lines if line.step < step or line.step == step and (evaluated or line.split[:4] != "eval")]
            if not step and (last := max((line.step for line in lines), default=0)):
                start = f"{model_dir} has no checkpoint: training starts anew, without these lines"
                warn([f"{path} reaches step {last:,}, but {start}"])
            write_bytes(path, b"".join(line.raw + b"\n" for line in kept))
        self._file = open(path, "a")
        self._fault: UserError | TransientError | None = None
        self._outage: TransientError | None = None  # because of which the newest lines are not in the bucket yet
        self._board = _Board(self._spool.folder, step)
        self._tracked = TrackedRuns(trackers, model_dir.name, self._spool.folder, settings)

    def write(self, step: int, split: str, values: Mapping[str, Any]) -> None:
        """Write a line with the step (number of updates), the split ("train" or "eval") and the values; `check` raises errors.

        Values that are lists are not shown in TensorBoard.
        """
        self.write_all(step, {split: values})

    def write_all(self, step: int, splits: Mapping[str, Mapping[str, Any]]) -> None:
        """Write a line for each split, all of them or none; `check` raises errors."""
        # JSON has no NaN.
        lines = [
            {"step": step, "split": split}
            | {name: value if isinstance(value, list) or math.isfinite(value) else None for name, value in values.items()}
            for split, values in splits.items()
        ]
        with self._catch_errors():
            self._file.write("".join(f"{json.dumps(line)}\n" for line in lines))
            self._file.flush()
            for split, values in splits.items():
                numbers = {name: value for name, value in values.items() if not isinstance(value, list)}
                if split != DIGEST:  # digests make no curve
                    curves = {f"{split}/{name}": value for name, value in numbers.items()}
                    self._board.write(step, curves)
                    self._tracked.write(step, curves)
        if not splits.keys() <= {"train", "hosts", DIGEST}:
            self.flush()

    def flush(self) -> None:
        """Upload the written lines if MODEL_DIR is in a bucket; called after scores and before checkpoints.

        What a fault that may pass has kept from the bucket is uploaded by the next call.
        """
        with self._catch_errors():
            try:
                self._spool.flush()
                self._outage = None
            except TransientError as error:
                self._outage = error

    def write_text(self, step: int, name: str, texts: Sequence[str]) -> None:
        """Show texts, one line each, in TensorBoard; `check` raises errors."""
        with self._catch_errors():
            self._board.write_text(step, name, texts)

    @contextlib.contextmanager
    def _catch_errors(self) -> Iterator[None]:
        try:
            yield
        except UserError as error:
            self._fault = self._fault or error
        except OSError as error:
            refused = refusal(error)
            failed, resumes = f"{self._file.name} cannot be written", "the same command resumes from the newest checkpoint"
            if refused and refused.passes:
                self._fault = self._fault or TransientError(refused.reason, f"{failed}; {resumes}")
            else:
                self._fault = self._fault or UserError(f"{failed} ({error.strerror}); once that is fixed, {resumes}")

    def failed(self) -> bool:
        """Return whether a line could not be written, for example because the disk is full."""
        return self._fault is not None

    def check(self) -> None:
        """Raise UserError or TransientError if a write failed.

        It is called once all processes have stopped, since only this one knows of the failure.
        """
        if self._fault:
            raise self._fault

    def close(self) -> None:
        """Flush and close both; warn about lines that could not be uploaded."""
        self.flush()
        self._tracked.close()
        if self._outage:
            warn([f"{self._outage.reason}: the newest lines of {self._file.name} could not be uploaded and are lost"])
        for file in (self._file, self._board):
            with contextlib.suppress(OSError):  # a failed write has been reported already
                file.close()
        self._spool.close()


class NoMetrics:
    """Writer that does nothing, for all processes but the first."""

    def write(self, step: int, split: str, values: Mapping[str, Any]) -> None:
        """Write nothing."""

    def write_all(self, step: int, splits: Mapping[str, Mapping[str, Any]]) -> None:
        """Write nothing."""

    def write_text(self, step: int, name: str, texts: Sequence[str]) -> None:
        """Write nothing."""

    def flush(self) -> None:
        """Do nothing."""

    def failed(self) -> bool:
        """Return False."""
        return False

    def check(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


Writer = MetricsWriter | NoMetrics


class _Board:
    """TensorBoard event file, to which every event is written before `write` returns.

    The `SummaryWriter` of tensorboardX writes in a thread, whose errors, such as a full disk, are not reported to the caller.
    """

    def __init__(self, model_dir: Path, step: int) -> None:
        """Open a new file; events of earlier files after `step` are hidden."""
        events_writer, self._event = _tensorboard()
        self._events = events_writer(str(model_dir / "events"))
        self._write(step=step + 1, session_log={"status": "START"})

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write an event; raises OSError on failure."""
        self._write(step=step, summary={"value": [{"tag": name, "simple_value": value} for name, value in values.items()]})

    def write_text(self, step: int, name: str, texts: Sequence[str]) -> None:
        """Write an event; raises OSError on failure."""
        # TensorBoard reads Markdown, where indented lines are verbatim.
        content = "\n".join(f"    {text}" for text in texts).encode()
        tensor = {"dtype": "DT_STRING", "string_val": [content], "tensor_shape": {"dim": [{"size": 1}]}}
        value = {"tag": name, "metadata": {"plugin_data": {"plugin_name": "text"}}, "tensor": tensor}
        self._write(step=step, summary={"value": [value]})

    def _write(self, **content: Any) -> None:
        self._events.write_event(self._event(wall_time=time.time(), **content))
        self._events.flush()

    def close(self) -> None:
        """Close the file; raises OSError on failure."""
        self._events.close()


def _tensorboard() -> tuple[Any, Any]:
    """Import tensorboardX's EventsWriter and Event without its optional imports."""
    # They are for figures and for event files in a bucket.
    absent = [name for name in ("torch", "google.cloud.storage") if name not in sys.modules]
    sys.modules |= dict.fromkeys(absent)  # type: ignore[arg-type]
    try:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event
    finally:
        for name in absent:
            del sys.modules[name]
    return EventsWriter, Event


def _set_aside(damaged: metrics_file.DamagedLines, model_dir: Path, path: Path) -> None:
    """Append damaged lines to the file for them, and warn: metrics are observations, and training needs none of them."""
    metrics_file.check_extendable(path)
    with open(path, "ab") as file:
        file.write(b"".join(raw + b"\n" for raw in damaged.content))
    first, count = damaged.first, damaged.count
    lines = f"line {first} is" if count == 1 else f"{count} lines, the first line {first}, are"
    warn([f"{model_dir / metrics_file.NAME}: {lines} damaged, and set aside in {path.name}; the run continues without"])
