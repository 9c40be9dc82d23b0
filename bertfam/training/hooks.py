"""What happens between steps: a hook sees the state after each update where it is due, and may replace it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol

import jax

from bertfam.errors import UserError
from bertfam.storage.spool import Spool
from bertfam.training.checkpoints import Checkpoints
from bertfam.training.logs.metrics import Writer
from bertfam.training.logs.phase_timer import EVALUATING, PROFILING, SAMPLING, SAVING
from bertfam.training.state import TrainState

# What a split of metrics.jsonl is called when it is told.
HELD_OUT = {"eval": "held out", "eval_average": "held out, moving average"}


class Hook(Protocol):
    """Observes, or replaces, the state.

    Attributes:
      doing: what it does: "saving".
    """

    doing: ClassVar[str]

    def due(self, step: int) -> bool:
        """Whether `after` has anything to do once `step` updates are made."""
        ...

    def owed(self, step: int) -> bool:
        """Whether a run that goes on at `step` begins with `after`: it was due there, and was not done to its end."""
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

    def owed(self, step: int) -> bool:
        """See `Hook.owed`."""
        return False


@dataclass(frozen=True)
class SaveHook(Every):
    """Starts a checkpoint, behind the metrics that lead up to it; it is written while training goes on."""

    doing: ClassVar[str] = SAVING
    checkpoints: Checkpoints
    writer: Writer

    def after(self, step: int, state: TrainState) -> TrainState:
        """See `Hook.after`."""
        self.writer.flush()
        self.checkpoints.save(state)
        return state


@dataclass(frozen=True)
class EvaluateHook(Every):
    """Writes and prints the scores on held-out rows.

    Attributes:
      scores: by split ("eval"), of the state after so many updates; None where it was cut short: the run is to end.
      writer: where they go.
      done: the steps whose scores are written.
    """

    doing: ClassVar[str] = EVALUATING
    scores: Callable[[int, TrainState], Mapping[str, Mapping[str, float]] | None]
    writer: Writer
    done: set[int] = field(default_factory=set)

    def owed(self, step: int) -> bool:
        """See `Hook.owed`."""
        return step > 0 and self.due(step) and step not in self.done

    def after(self, step: int, state: TrainState) -> TrainState:
        """See `Hook.after`."""
        found = self.scores(step, state)
        if found is None:
            self.done.discard(step)  # what a process that went further had written was dropped when this one began
            return state
        self.writer.write_all(step, found)
        for split, scores in found.items():
            told = "  ".join(f"{name} {value:.4g}" for name, value in scores.items())
            print(f"step {step:,} {HELD_OUT[split]}  {told}", flush=True)
        self.done.add(step)
        return state


@dataclass(frozen=True)
class SampleHook(Every):
    """Shows what is predicted for some held-out rows in TensorBoard, and for the first of them here.

    Attributes:
      samples: one text a row, of the state after so many updates.
      writer: where they go.
    """

    doing: ClassVar[str] = SAMPLING
    samples: Callable[[int, TrainState], list[str]]
    writer: Writer

    def after(self, step: int, state: TrainState) -> TrainState:
        """See `Hook.after`."""
        texts = self.samples(step, state)
        self.writer.write_text(step, "samples", texts)
        for text in texts[:1]:
            print(f"step {step:,} sample  {text}", flush=True)
        return state


def profiled_steps(words: str | None, total: int) -> tuple[int, int] | None:
    """First and last of the updates that --profile_steps names, of a run of `total`.

    Raises:
      UserError: they are no such updates.
    """
    if words is None:
        return None
    first, _, last = words.partition("-")
    if not (first.isdecimal() and last.isdecimal() and 2 <= int(first) <= int(last)):
        raise UserError(f"--profile_steps={words}: write FIRST-LAST, such as 100-104; the first update, 1, compiles")
    if int(last) > total:
        raise UserError(f"--profile_steps={words}: the run has {total:,} updates; name some of them")
    return int(first), int(last)


class ProfileHook:
    """Records a profile of some updates, for TensorBoard's profile plugin or Perfetto."""

    doing: ClassVar[str] = PROFILING

    def __init__(self, first: int, last: int, directory: Path) -> None:
        """A profile of the updates that lead to the steps `first` to `last`; written under `directory`."""
        self._first, self._last, self._directory = first, last, directory
        self._spool: Spool | None = None

    def due(self, step: int) -> bool:
        """See `Hook.due`."""
        return step in (self._first - 1, self._last)

    def owed(self, step: int) -> bool:
        """See `Hook.owed`."""
        return False

    def after(self, step: int, state: TrainState) -> TrainState:
        """See `Hook.after`."""
        if step < self._last:
            self._spool = Spool(self._directory)
            jax.profiler.start_trace(str(self._spool.folder))
        else:
            self.close()
        return state

    def close(self) -> None:
        """Writes what was recorded."""
        if self._spool:
            jax.profiler.stop_trace()
            self._spool.flush()
            self._spool.close()
            self._spool = None
            print(f"profile of the updates {self._first:,} to {self._last:,}: {self._directory}/plugins/profile", flush=True)
