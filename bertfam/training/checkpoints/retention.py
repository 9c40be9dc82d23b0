"""Retention policy of checkpoints.

Orbax's `AnyPreservationPolicy` of `LatestN`, `EveryNSteps` and `BestN` (orbax-checkpoint 0.12.8) was considered. `BestN` reads
metrics given to `save`, but here a step is evaluated after it is saved, and its score is read from metrics.jsonl.
"""

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Keep:
    """Checkpoints to keep when a newer one is complete.

    Attributes:
      newest: how many of the newest; None: all.
      every: those of every so many steps, for good; None: none.
      best: the name of a held-out metric, such as "mlm_loss": the step where it was best; of a loss the lowest is best, of
        anything else the highest. None: none.
    """

    newest: int | None = None
    every: int | None = None
    best: str | None = None

    def kept(self, there: Collection[int], scores: Mapping[int, float]) -> set[int]:
        """Return the steps to keep.

        Args:
          there: steps of the complete checkpoints.
          scores: the metric `best` by step, where it was measured.
        """
        if self.newest is None:
            return set(there)
        kept = set(sorted(there)[-self.newest :])
        if self.every:
            kept |= {step for step in there if step % self.every == 0}
        measured = [step for step in there if step in scores]
        if measured:
            sign = 1 if is_loss(str(self.best)) else -1
            # Of equal ones the newest.
            kept.add(min(measured, key=lambda step: (sign * scores[step], -step)))
        return kept


def is_loss(name: str) -> bool:
    """Return whether a lower value of a metric is better."""
    return name.endswith(("loss", "perplexity"))


def held_out(model_dir: Path, name: str) -> dict[int, float]:
    """Read a held-out metric by step, for all steps where metrics.jsonl has it."""
    return {step: line[name] for step, line in lines(model_dir, "eval").items() if math.isfinite(line.get(name) or math.nan)}


def lines(model_dir: Path, split: str) -> dict[int, dict[str, float]]:
    """Read the last line of metrics.jsonl for each step, "train" or "eval"; {} where there is none."""
    path = model_dir / "metrics.jsonl"
    found = {}
    for text in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            line = json.loads(text)
        except ValueError:  # half written
            continue
        if line.pop("split", None) == split:
            found[line.pop("step")] = line
    return found
