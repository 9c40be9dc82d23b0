"""Retention policy of checkpoints.

Orbax's `AnyPreservationPolicy` of `LatestN`, `EveryNSteps` and `BestN` (orbax-checkpoint 0.12.8) was considered. `BestN` reads
metrics given to `save`, but here a step is evaluated after it is saved, and its score is read from metrics.jsonl.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertfam.training.logs import metrics_file


@dataclass(frozen=True)
class Keep:
    """Checkpoints to keep when a newer one is complete.

    Attributes:
      newest: number of newest checkpoints to keep; None keeps all.
      every: keep those whose step is a multiple of this, for good; None keeps none of them.
      best: held-out metric whose best checkpoint to keep, such as "mlm_loss"; the lowest loss or perplexity is best, the highest
        value of any other metric. None keeps none.
    """

    newest: int | None = None
    every: int | None = None
    best: str | None = None

    def kept(self, steps: Collection[int], scores: Mapping[int, float]) -> set[int]:
        """Return the steps to keep.

        Args:
          steps: steps of the complete checkpoints.
          scores: the metric `best` by step, for the evaluated steps.
        """
        if self.newest is None:
            return set(steps)
        kept = set(sorted(steps)[-self.newest :])
        if self.every:
            kept |= {step for step in steps if step % self.every == 0}
        best = self.best_of(steps, scores)
        return kept if best is None else kept | {best}

    def best_of(self, steps: Collection[int], scores: Mapping[int, float]) -> int | None:
        """Return the step with the best score, the newest of equal ones; None if none of the steps has a score."""
        evaluated, sign = [step for step in steps if step in scores], _sign(str(self.best))
        return min(evaluated, key=lambda step: (sign * scores[step], -step), default=None)


def is_loss(name: str) -> bool:
    """Return whether a lower value of a metric is better."""
    return name.endswith(("loss", "perplexity"))


def _sign(name: str) -> int:
    """Return 1 if a lower value of a metric is better, and -1 if a higher one is."""
    return 1 if is_loss(name) else -1


def evaluations_since_best(scores: Mapping[int, Mapping[str, Any]], name: str) -> int:
    """Count the evaluations after the first one with the best value of a metric; a value that is not finite is never the best.

    Args:
      scores: the held-out scores by step.
      name: the metric.
    """
    best, count = math.inf, 0
    for step in sorted(scores):
        value = scores[step].get(name)
        signed = _sign(name) * value if isinstance(value, int | float) and math.isfinite(value) else math.inf
        best, count = (signed, 0) if signed < best else (best, count + 1)
    return count


def held_out(model_dir: Path, name: str) -> dict[int, float]:
    """Read a held-out metric from metrics.jsonl, by step; steps without a finite value are left out."""
    values = {step: line.get(name) for step, line in lines(model_dir, "eval").items()}
    return {step: value for step, value in values.items() if isinstance(value, int | float) and math.isfinite(value)}


def lines(model_dir: Path, split: str) -> dict[int, dict[str, Any]]:
    """Read the lines of a split ("train", "eval") from metrics.jsonl, by step; the last line of a step counts."""
    return {line.step: line.values for line in metrics_file.read(model_dir / metrics_file.NAME) if line.split == split}
