"""Base classes of the hooks that a run calls between its steps."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from bertfam.training.state import TrainState


class Hook(ABC):
    """Observer of the state between steps, which may replace it.

    A hook of your own is a frozen dataclass that gin binds to `Run.hooks`; it writes `due`, and `metrics` or `after`.

    Attributes:
      phase: name of its phase in the log, such as "saving", and of its lines in metrics.jsonl.
    """

    phase: ClassVar[str]

    @abstractmethod
    def due(self, step: int) -> bool:
        """Return whether the hook runs once `step` updates are made."""

    def owed(self, step: int) -> bool:
        """Return whether a run resumed at `step` first runs the hook, which was due there but not finished."""
        return False

    def end_reason(self, step: int) -> str | None:
        """Return the reason for which the run is complete after `step` updates, fewer than it has; None if it is not.

        All processes must return the same.
        """
        return None

    def after(self, step: int, state: TrainState) -> TrainState:
        """Run after the update that led to `step`; return the state to train on."""
        return state

    def metrics(self, step: int, state: TrainState) -> Mapping[str, float]:
        """Return the metrics by name that are written after the update that led to `step`; all processes call it."""
        return {}


@dataclass(frozen=True)
class PeriodicHook(Hook):
    """Hook that runs at regular steps.

    Attributes:
      interval: steps between two runs.
      last: last step of the training run, after which the hook always runs.
    """

    interval: int
    last: int

    @override
    def due(self, step: int) -> bool:
        return step == self.last or step % self.interval == 0
