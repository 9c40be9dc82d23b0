"""What happens between steps: a hook sees the state after each update where it is due, and may replace it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from bertfam.training.checkpoints import Checkpoints
from bertfam.training.metrics import Writer
from bertfam.training.state import TrainState


class Hook(Protocol):
    """Observes, or replaces, the state.

    Attributes:
      doing: what it does, in a word: "saving".
    """

    doing: ClassVar[str]

    def due(self, step: int) -> bool:
        """Whether `after` has anything to do once `step` updates are made."""
        ...

    def after(self, step: int, state: TrainState) -> TrainState:
        """Runs after the update that led to `step`."""
        ...


@dataclass(frozen=True)
class Every:
    """Every `interval` steps, and at the last."""

    interval: int
    last: int

    def due(self, step: int) -> bool:
        """See `Hook.due`."""
        return step == self.last or step % self.interval == 0


@dataclass(frozen=True)
class EvaluateHook(Every):
    """Writes and prints the scores on held-out rows."""

    doing: ClassVar[str] = "evaluating"
    scores: Callable[[int, TrainState], dict[str, float]]
    writer: Writer

    def after(self, step: int, state: TrainState) -> TrainState:
        """See `Hook.after`."""
        scores = self.scores(step, state)
        self.writer.write(step, "eval", scores)
        print(f"step {step:,} held out  " + "  ".join(f"{name} {value:.4g}" for name, value in scores.items()), flush=True)
        return state


@dataclass(frozen=True)
class SaveHook(Every):
    """Starts a checkpoint; it is written while training goes on."""

    doing: ClassVar[str] = "saving"
    checkpoints: Checkpoints

    def after(self, step: int, state: TrainState) -> TrainState:
        """See `Hook.after`."""
        self.checkpoints.save(state)
        return state
