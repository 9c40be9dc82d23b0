"""Learning-rate schedules: frozen configs that give optax schedules once the length of the run is known.

The rate of the update that leads from step s to s + 1 is `schedule(s)`; s counts updates, never microbatches.
"""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax


@dataclass(frozen=True)
class LinearDecay:
    """Linear warm-up to the peak, then linear decay to zero at the end of the run.

    rate(s) = peak * min((s + 1) / warmup_steps, 1)                       for s < warmup_steps
    rate(s) = peak * (total - (s + 1)) / (total - warmup_steps)           afterwards

    so peak 1, warm-up 4 and 10 steps give .25 .5 .75 1 .833 .667 .5 .333 .167 0: no update is wasted at the start.

    Attributes:
      peak: the highest rate.
      warmup_steps: the updates until it is reached; 0 starts at the decay.
    """

    peak: float = 1e-4
    warmup_steps: int = 10_000

    def __post_init__(self) -> None:
        if self.peak < 0 or self.warmup_steps < 0:
            raise ValueError(f"peak {self.peak} and warmup_steps {self.warmup_steps} must not be negative")

    def build(self, total_steps: int) -> optax.Schedule:
        """The optax schedule of a run of `total_steps` updates."""

        def schedule(count: Any) -> Any:
            # On the host, for the log, nothing may queue behind the device's work.
            xp = np if isinstance(count, int) else jnp
            done = xp.asarray(count, xp.float32) + 1.0
            warmup = done / max(self.warmup_steps, 1)
            decay = (total_steps - done) / max(total_steps - self.warmup_steps, 1)
            return self.peak * xp.where(done <= self.warmup_steps, warmup, xp.clip(decay, 0.0, 1.0))

        return schedule
