"""The log of a run: metrics read late, speed, utilisation, time left."""

import time
from collections import deque
from dataclasses import dataclass

import jax

from bertfam.training.metrics import MetricsWriter, is_ready, means
from bertfam.training.plan import duration
from bertfam.training.step import Metrics

# The host runs at most this many steps ahead of the device, and reads only what is older.
_AHEAD = 2


@dataclass(frozen=True)
class Rates:
    """What a step of the current stage is worth."""

    tokens_per_step: int
    flops_per_step: int
    peak_flops: float | None


class ProgressLog:
    """Collects each step's metrics without waiting for them; writes a line every `every` steps once they are there."""

    def __init__(self, writer: MetricsWriter, start: int, total: int, every: int) -> None:
        self._writer, self._total, self._every = writer, total, every
        self._step = self._logged = start
        self._current: list[Metrics] = []
        self._due: deque[tuple[int, list[Metrics], dict[str, float]]] = deque()
        self._recent: deque[Metrics] = deque()
        self._mark = time.monotonic()
        self._paused = 0.0
        self._training_seconds, self._trained = 0.0, 0

    def pause(self, seconds: float) -> None:
        """Takes time that was not training (compiling, evaluating, saving) out of the rates."""
        self._paused += seconds

    def add(self, metrics: Metrics, rates: Rates, learning_rate: float | None) -> None:
        """Counts one update; `learning_rate` is given at steps that end an interval."""
        self._step += 1
        self._current.append(metrics)
        self._recent.append(metrics)
        if len(self._recent) > _AHEAD:
            jax.block_until_ready(self._recent.popleft())
        if learning_rate is not None:
            self._close_interval(rates, learning_rate)
        while self._due and is_ready(self._due[0][1][-1]):
            self._write(*self._due.popleft())

    def ends_interval(self, step: int) -> bool:
        """Whether the update that leads to `step` ends an interval."""
        return step % self._every == 0 or step == self._total

    def flush(self) -> None:
        """Waits for and writes all complete intervals."""
        while self._due:
            self._write(*self._due.popleft())

    def _close_interval(self, rates: Rates, learning_rate: float) -> None:
        now = time.monotonic()
        steps = self._step - self._logged
        seconds = max(now - self._mark - self._paused, 1e-9)
        self._training_seconds += seconds
        self._trained += steps
        speed = {"tokens_per_second": steps * rates.tokens_per_step / seconds}
        if rates.peak_flops:
            speed["mfu"] = steps * rates.flops_per_step / seconds / rates.peak_flops
        left = (self._total - self._step) * self._training_seconds / self._trained
        values = {"learning_rate": learning_rate, **speed, "seconds_left": left}
        self._due.append((self._step, self._current, values))
        self._current, self._logged, self._mark, self._paused = [], self._step, now, 0.0

    def _write(self, step: int, metrics: list[Metrics], values: dict[str, float]) -> None:
        scores = means(metrics)
        left = values.pop("seconds_left")
        self._writer.write(step, "train", scores | values)
        shown = "  ".join(f"{name} {value:.4g}" for name, value in scores.items())
        mfu = f"MFU {values['mfu']:.1%}" if "mfu" in values else "MFU -"
        rate = f"{values['tokens_per_second']:,.0f} tokens/s"
        print(f"step {step:,}/{self._total:,}  {shown}  {rate}  {mfu}  {duration(left)} left", flush=True)
