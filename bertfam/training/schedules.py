"""Learning-rate schedules: frozen configs that give optax schedules once the length of the run is known.

The rate of the update that leads from step s to s + 1 is `schedule(s)`; s counts updates, never microbatches, and skipped
updates count. A schedule is a function of s alone: a resumed run has the rates of an uninterrupted one, and an extended run
has those of its new length.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
import optax
from typing_extensions import override


@dataclass(frozen=True)
class Schedule(ABC):
    """Linear warm-up to the peak, then the curve of the subclass, with `done` = s + 1 updates.

    rate(s) = peak * done / warmup_steps   while done <= warmup_steps, so that no update is wasted at the start
    rate(s) = peak * after_warmup(done)           afterwards

    Attributes:
      peak: the highest rate.
      warmup_steps: number of updates until the peak is reached; 0: no warm-up.
    """

    peak: float = 1e-4
    warmup_steps: int = 10_000

    def __post_init__(self) -> None:
        if not 0 <= self.peak < math.inf:
            raise ValueError(f"peak {self.peak} is not a valid rate; it must be finite and at least 0")
        if self.warmup_steps < 0:
            raise ValueError(f"warmup_steps {self.warmup_steps} is negative; use 0 for no warm-up")

    @property
    def rising_steps(self) -> int:
        """Number of updates before the rate reaches its peak."""
        return self.warmup_steps

    def build(self, total_steps: int) -> optax.Schedule:
        """Build the optax schedule of a run of `total_steps` updates: an int or an int32[] array -> float32[]."""

        def schedule(count: Any) -> Any:
            # The log calls this on the host, where the rate must not queue behind the device's work.
            xp = np if isinstance(count, int | np.integer) else jnp
            return self.peak * self._share(xp.asarray(count, xp.float32), total_steps, xp)

        return schedule

    def _share(self, count: Any, total: int, xp: Any) -> Any:
        """Return the share of the peak after `count` updates."""
        done = count + 1.0
        return xp.where(done <= self.warmup_steps, done / max(self.warmup_steps, 1), self.after_warmup(done, total, xp))

    @abstractmethod
    def after_warmup(self, done: Any, total: int, xp: Any) -> Any:
        """Return the share of the peak at the update number `done` of `total`, after the warm-up."""


@dataclass(frozen=True)
class ConstantRate(Schedule):
    """Constant rate at the peak after warm-up."""

    @override
    def after_warmup(self, done: Any, total: int, xp: Any) -> Any:
        return xp.ones_like(done)


@dataclass(frozen=True)
class Decay(Schedule):
    """Decay to a floor after warm-up: after_warmup(done) = floor + (1 - floor) * decay(done), which the subclass defines.

    Attributes:
      floor: the final share of the peak; warm-up starts below it.
    """

    floor: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.floor <= 1:
            raise ValueError(f"floor {self.floor} is not in [0, 1]; it is a share of the peak")

    @override
    def after_warmup(self, done: Any, total: int, xp: Any) -> Any:
        return self.floor + (1 - self.floor) * self.decay(done, total, xp)

    @abstractmethod
    def decay(self, done: Any, total: int, xp: Any) -> Any:
        """Return the decay, from 1 down towards 0."""


def _left(done: Any, start: int, total: int, xp: Any) -> Any:
    """Return the share of the updates from `start` to `total` that is left after `done`: from 1 to 0."""
    return xp.clip((total - done) / max(total - start, 1), 0.0, 1.0)


@dataclass(frozen=True)
class LinearDecay(Decay):
    """Linear decay to the floor at the end of the run: decay(done) = left = (total - done) / (total - warmup_steps).

    So peak 1, warm-up 4 and 10 steps give .25 .5 .75 1 .833 .667 .5 .333 .167 0.

    Attributes:
      variant: "joined" as above. "bert" and "electra" reproduce the published code: they count from 0, so that the first update
        has rate 0, and decay from step 0 on. In "bert" the rate drops where the warm-up of w steps ends: s / w, then
        1 - s / total; "electra" uses the product min(1, s / w) (1 - s / total).
    """

    variant: Literal["joined", "bert", "electra"] = "joined"

    @override
    def _share(self, count: Any, total: int, xp: Any) -> Any:
        if self.variant == "joined":
            return super()._share(count, total, xp)
        warmup = count / max(self.warmup_steps, 1)
        decay = self.floor + (1 - self.floor) * _left(count, 0, total, xp)
        if self.variant == "bert":
            return xp.where(count < self.warmup_steps, warmup, decay)
        return decay * xp.minimum(1.0, warmup) if self.warmup_steps else decay

    @override
    def decay(self, done: Any, total: int, xp: Any) -> Any:
        return _left(done, self.warmup_steps, total, xp)


@dataclass(frozen=True)
class PolynomialDecay(Decay):
    """Polynomial decay: decay(done) = left ** power, with `left` of `LinearDecay`; Longformer's continued pretraining uses 3.

    Attributes:
      power: exponent above 0; 1 is linear.
    """

    power: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.power < math.inf:
            raise ValueError(f"power {self.power} must be above 0; 1 is linear")

    @override
    def decay(self, done: Any, total: int, xp: Any) -> Any:
        return _left(done, self.warmup_steps, total, xp) ** self.power


@dataclass(frozen=True)
class CosineDecay(Decay):
    """Cosine decay: decay(done) = (1 - cos(pi left)) / 2, with `left` of `LinearDecay` (Loshchilov and Hutter 2017).

    Attributes:
      decay_share: share of the run's updates after which the rate stays at the floor, as GPT-3's does after 260 of 300 billion
        tokens (Brown et al. 2020, appendix B).
    """

    decay_share: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.decay_share <= 1:
            raise ValueError(f"decay_share {self.decay_share} is not in (0, 1]; it is a share of the run's updates")

    @override
    def decay(self, done: Any, total: int, xp: Any) -> Any:
        end = round(self.decay_share * total)
        return (1.0 - xp.cos(xp.float32(np.pi) * _left(done, self.warmup_steps, end, xp))) / 2


@dataclass(frozen=True)
class InverseSquareRoot(Decay):
    """Inverse square root: after_warmup(done) = max(floor, sqrt(warmup_steps / done)), whatever the length of the run.

    The defaults are T5's 1 / sqrt(max(done, 10,000)): a peak of 0.01 that holds for 10,000 updates. It is also the relative
    step of Adafactor (Shazeer and Stern 2018, section 8), min(0.01, 1 / sqrt(done)).

    Attributes:
      warmup: "flat" holds the peak until warmup_steps; "linear" leads up to it (Vaswani et al. 2017, section 5.3).
    """

    peak: float = 1e-2
    warmup: Literal["flat", "linear"] = "flat"

    @property
    @override
    def rising_steps(self) -> int:
        return self.warmup_steps if self.warmup == "linear" else 0

    @override
    def _share(self, count: Any, total: int, xp: Any) -> Any:
        return super()._share(count, total, xp) if self.warmup == "linear" else self.after_warmup(count + 1.0, total, xp)

    @override
    def after_warmup(self, done: Any, total: int, xp: Any) -> Any:
        return xp.maximum(self.floor, self.decay(done, total, xp))

    @override
    def decay(self, done: Any, total: int, xp: Any) -> Any:
        return xp.sqrt(xp.minimum(1.0, max(self.warmup_steps, 1) / done))


@dataclass(frozen=True)
class WarmupStableDecay(Decay):
    """Constant peak until the last `decay_steps` updates, then decay to the floor (Hu et al. 2024; Haegele et al. 2024).

    Attributes:
      decay_steps: number of updates of the decay, which never starts before the end of the warm-up; 0: no decay.
      tail: with `left` from 1 to 0 over the decay, "linear" is left, and "1-sqrt" is 1 - sqrt(1 - left).
    """

    decay_steps: int = 10_000
    tail: Literal["linear", "1-sqrt"] = "1-sqrt"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decay_steps < 0:
            raise ValueError(f"decay_steps {self.decay_steps} is negative; use 0 for no decay")

    @override
    def decay(self, done: Any, total: int, xp: Any) -> Any:
        start = max(total - self.decay_steps, self.warmup_steps)
        if start >= total:
            return xp.ones_like(done)
        left = _left(done, start, total, xp)
        return left if self.tail == "linear" else 1.0 - xp.sqrt(1.0 - left)


def joint_schedule(schedule: Schedule, stages: Sequence[tuple[int, Schedule | None]]) -> optax.Schedule:
    """Build the optax schedule of a run whose stages may have schedules of their own.

    Such a schedule has the length of its stage and counts from the stage's first update. The other stages share the run's
    schedule, which counts their updates alone and has their length.

    Args:
      schedule: schedule of the run.
      stages: number of updates and own schedule of each stage, in order.
    """
    shared = schedule.build(sum(steps for steps, own in stages if own is None))
    if all(own is None for _, own in stages):
        return shared
    ends = np.cumsum([steps for steps, _ in stages])
    parts, elsewhere = [], 0  # updates of stages with schedules of their own, before the present one
    for (steps, own), end in zip(stages, ends.tolist(), strict=True):
        parts.append((shared, elsewhere) if own is None else (own.build(steps), end - steps))
        elsewhere += 0 if own is None else steps

    def rate(count: Any) -> Any:
        if isinstance(count, int | np.integer):
            stage = min(int(np.searchsorted(ends, count, "right")), len(parts) - 1)
            part, before = parts[stage]
            return part(count - before)
        rates = jnp.stack([part(jnp.maximum(count - before, 0)) for part, before in parts])
        return rates[jnp.minimum(jnp.searchsorted(jnp.asarray(ends), count, side="right"), len(parts) - 1)]

    return rate
