"""Held-out scores by a run's own objective and noise."""

import math
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from bertfam.errors import UserError
from bertfam.evaluation.suites.results import Result
from bertfam.studies.scores.score import Score, Trained
from bertfam.training.checkpoints import retention
from bertfam.training.evaluations.hook import DOWNSTREAM


@dataclass(frozen=True)
class HeldOut(Score):
    """Scores of a run's last evaluation, such as `mlm_loss`, and of its own `Run.evaluations`, such as probes.

    They cost nothing, but compare only arms with the same objective, noise and vocabulary.
    """

    name: ClassVar[str] = "held_out"
    compares_vocabularies: ClassVar[bool] = False

    @override
    def measure(self, trained: Trained) -> Result:
        scores = dict[str, float]()
        for split in ("eval", DOWNSTREAM):
            lines = retention.lines(trained.model_dir, split)
            last = lines[max(lines)] if lines else {}
            # "loss" is the sum of what the objective trains, whose terms have names of their own.
            scores |= {name: float(value) for name, value in last.items() if isinstance(value, int | float) and name != "loss"}
        if not any(map(math.isfinite, scores.values())):
            raise UserError(f"{trained.model_dir} has no held-out scores: give held-out text with --validation_input")
        return Result(scores, (), {})
