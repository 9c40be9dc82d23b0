"""Progress log: metrics, speed, utilisation and time left."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax

from bertfam.training.logs.metrics import Writer, check_finite, means
from bertfam.training.logs.phase_timer import COMPILING, TRAINING, WAITING, PhaseTimer
from bertfam.training.logs.stragglers import StragglerMonitor
from bertfam.training.run_plan import duration, si
from bertfam.training.step import EMPTY, NON_FINITE, SKIPPED, Metrics

# The host runs at most this many steps ahead of the device, and reads the metrics of older steps only. With fewer, a device whose
# steps take some milliseconds waits while the host writes a line.
_AHEAD = 4
# Share of an interval's time from which on the wait for data is shown.
_SHOWN_WAIT = 0.01


@dataclass(frozen=True)
class Rates:
    """Tokens and FLOPs of a step of a stage, and the peak FLOP/s of all devices; None if that is unknown."""

    tokens_per_step: int
    flops_per_step: int
    peak_flops: float | None


class ProgressLog:
    """Log that collects metrics without waiting for them and writes a line for every `every` steps once they are ready."""

    def __init__(
        self,
        writer: Writer,
        phase_timer: PhaseTimer,
        start: int,
        total: int,
        every: int,
        flops_after: Callable[[int], int],
        stragglers: StragglerMonitor | None = None,
        seen: Callable[[int], Mapping[str, float]] = lambda step: {},
    ) -> None:
        """Start the log of a run at step `start`.

        Args:
          writer: writer of the lines.
          phase_timer: timer of the phases; the speed counts training and waiting for data only.
          start: number of updates made before.
          total: number of updates of the whole run.
          every: updates between lines.
          flops_after: returns the FLOPs that are left after a step, from which the time left is estimated.
          stragglers: monitor of several processes; None for one process.
          seen: returns "tokens_seen" and "epoch" after a step, which each line then has.
        """
        self._writer, self._phase_timer, self._total, self._every, self._flops_after = (
            writer,
            phase_timer,
            total,
            every,
            flops_after,
        )
        self.stragglers = stragglers or StragglerMonitor()
        self._seen = seen
        self._start = self._step = start
        self._current: list[Metrics] = []
        self._due: deque[tuple[int, list[Metrics], dict[str, float]]] = deque()
        self._recent: deque[Metrics] = deque()
        self._begin = self._mark = phase_timer.seconds()
        self._tokens = self._flops = 0
        self.empty = 0  # number of written steps without any targets

    def busy(self) -> bool:
        """Return whether the devices are still computing the last update."""
        last: Any = self._recent[-1]["loss"].total if self._recent else None
        return last is not None and not last.is_ready()

    def add(self, metrics: Metrics, rates: Rates, learning_rate: float | None) -> None:
        """Count one update; a `learning_rate` ends an interval."""
        self._step += 1
        self._tokens += rates.tokens_per_step
        self._flops += rates.flops_per_step
        self._current.append(metrics)
        self._recent.append(metrics)
        for value in jax.tree.leaves(metrics):
            value.copy_to_host_async()  # fetching all values of an interval at its end would keep the device waiting
        if len(self._recent) > _AHEAD:
            jax.block_until_ready(self._recent.popleft())
        if learning_rate is not None:
            self._close_interval(rates.peak_flops, learning_rate)
        # Steps this old are finished. All processes read them at the same step, so that an error ends all of them there.
        while self._due and self._due[0][0] <= self._step - _AHEAD:
            self._write(*self._due.popleft())

    def write(self, step: int, split: str, values: Mapping[str, float]) -> None:
        """Write a separate line."""
        self._writer.write(step, split, values)

    def ends_interval(self, step: int) -> bool:
        """Return whether the update that leads to `step` ends an interval."""
        return step % self._every == 0 or step == self._total

    def flush(self) -> None:
        """Wait for and write all complete intervals."""
        while self._due:
            self._write(*self._due.popleft())

    def _close_interval(self, peak_flops: float | None, learning_rate: float) -> None:
        now = self._phase_timer.seconds()
        waiting, training = (now.get(name, 0.0) - self._mark.get(name, 0.0) for name in (WAITING, TRAINING))
        seconds = max(waiting + training, 1e-9)
        speed = {"tokens_per_second": self._tokens / seconds, "waiting_for_data": waiting / seconds}
        if peak_flops:
            speed["mfu"] = self._flops / seconds / peak_flops
        # Evaluating and saving will happen again, compiling will not.
        passed = sum(now[name] - self._begin.get(name, 0.0) for name in now if name != COMPILING)
        ahead = self._flops_after(self._step)
        left = ahead * passed / (self._flops_after(self._start) - ahead)
        values = {"learning_rate": learning_rate, **self._seen(self._step), **speed, "seconds_left": left}
        self.stragglers.report(self._step)
        self._due.append((self._step, self._current, values))
        self._current, self._mark, self._tokens, self._flops = [], now, 0, 0

    def _write(self, step: int, metrics: list[Metrics], values: dict[str, float]) -> None:
        metrics = jax.device_get(metrics)
        check_finite(step, metrics)
        scores = means(metrics)
        scores.pop(NON_FINITE, None)
        scores.pop(EMPTY, None)
        if empty := sum(int(step[EMPTY].total) for step in metrics if EMPTY in step):
            scores[EMPTY] = empty
            self.empty += empty
        if SKIPPED in scores:
            scores[SKIPPED] *= len(metrics)
        left = values.pop("seconds_left")
        self._writer.write(step, "train", scores | values)
        names = sorted(scores, key=lambda name: (name != "loss", name == "gradient_norm"))
        shown = "  ".join(f"{name} {scores[name]:.4g}" for name in names)
        mfu = f"  MFU {values['mfu']:.1%}" if "mfu" in values else ""
        rate = f"{values['tokens_per_second']:,.0f} tokens/s"
        if values["waiting_for_data"] >= _SHOWN_WAIT:
            rate += f" ({values['waiting_for_data']:.0%} waiting for data)"
        shown += f"  learning_rate {values['learning_rate']:.3g}"
        seen = f"  {si(values['tokens_seen']).rstrip()} tokens  epoch {values['epoch']:.3g}" if "epoch" in values else ""
        print(f"step {step:,}/{self._total:,}  {shown}{seen}  {rate}{mfu}  {duration(left)} left", flush=True)
