"""Hook that makes a run's evaluations."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from typing_extensions import override

from bertfam.data.vocabularies import Vocabulary
from bertfam.errors import UserError
from bertfam.training.evaluations.base import Evaluation
from bertfam.training.evaluations.features import ModelFeatures, TextFeatures
from bertfam.training.hooks.base import Hook
from bertfam.training.state import TrainState
from bertfam.training.trainer import Trainer

DOWNSTREAM = "downstream"


@dataclass(frozen=True)
class DownstreamHook(Hook):
    """Hook that measures the model by `Run.evaluations`, and prints their metrics.

    Attributes:
      evaluations: The evaluations, each with what it has prepared.
      features: Computes features of texts from parameters.
      last: Last step of the run, after which all evaluations are made.
      done: Steps whose metrics are written.
    """

    phase: ClassVar[str] = DOWNSTREAM

    evaluations: tuple[tuple[Evaluation, Any], ...]
    features: TextFeatures
    last: int
    done: set[int] = field(default_factory=set)

    @override
    def due(self, step: int) -> bool:
        return any(self._is_due(evaluation, step) for evaluation, _ in self.evaluations)

    @override
    def owed(self, step: int) -> bool:
        return step > 0 and self.due(step) and step not in self.done

    @override
    def metrics(self, step: int, state: TrainState) -> Mapping[str, float]:
        found = dict[str, float]()
        for evaluation, content in self.evaluations:
            if self._is_due(evaluation, step):
                values = evaluation.measure(content, ModelFeatures(self.features, state.params))
                found |= {f"{evaluation.name}/{name}": float(value) for name, value in values.items()}
        self.done.add(step)
        print(f"step {step:,} {DOWNSTREAM}  " + "  ".join(f"{name} {value:.4g}" for name, value in found.items()), flush=True)
        return found

    def _is_due(self, evaluation: Evaluation, step: int) -> bool:
        return step == self.last or step % evaluation.every == 0


def open_evaluations(trainer: Trainer, vocabulary: Vocabulary) -> list[DownstreamHook]:
    """Read what a run's evaluations measure; return their hook, or [] if the run has none.

    Raises:
      UserError: Two have one name, a file has a mistake, or the model is no encoder.
    """
    evaluations = trainer.run.evaluations
    names = [evaluation.name for evaluation in evaluations]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"Run.evaluations has two named {twice!r}; give each a name of its own")
    if not evaluations:
        return []
    contents = [evaluation.read() for evaluation in evaluations]
    features = TextFeatures(trainer, vocabulary)
    prepared = tuple((one, one.prepare(content, features)) for one, content in zip(evaluations, contents, strict=True))
    return [DownstreamHook(prepared, features, trainer.run.total_steps)]
