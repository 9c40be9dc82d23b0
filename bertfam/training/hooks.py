"""Hooks between steps: saving, evaluating, sampling and profiling. A hook may replace the state after an update."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol

import jax
import numpy as np

from bertfam.data.preview.visible import visible
from bertfam.data.text_data import HeldOut
from bertfam.data.vocabularies import Vocabulary
from bertfam.errors import UserError
from bertfam.multihost.preemption import Stop
from bertfam.objectives.objective import Predictions
from bertfam.storage.spool import Spool
from bertfam.training.checkpoints import Checkpoints
from bertfam.training.logs.metrics import Writer
from bertfam.training.logs.phase_timer import EVALUATING, PROFILING, SAMPLING, SAVING
from bertfam.training.stages import locate
from bertfam.training.state import TrainState
from bertfam.training.trainer import Trainer

_SAMPLES = 4  # rows
_MAX_TARGETS = 80  # about the masked tokens of a row of 512; a causal LM has a target at every position
# Name of each split of metrics.jsonl in the log.
HELD_OUT = {"eval": "held out", "eval_average": "held out, moving average"}


class Hook(Protocol):
    """Observer of the state between steps, which may replace it.

    Attributes:
      phase: name of its phase, such as "saving".
    """

    phase: ClassVar[str]

    def due(self, step: int) -> bool:
        """Return whether `after` runs once `step` updates are made."""
        ...

    def owed(self, step: int) -> bool:
        """Return whether a run resumed at `step` first runs `after`, which was due there but not finished."""
        ...

    def after(self, step: int, state: TrainState) -> TrainState:
        """Run after the update that led to `step`."""
        ...


@dataclass(frozen=True)
class Every:
    """Hook that runs every `interval` steps and at the last."""

    interval: int
    last: int

    def due(self, step: int) -> bool:
        """Return whether `after` runs once `step` updates are made."""
        return step == self.last or step % self.interval == 0

    def owed(self, step: int) -> bool:
        """Return whether a run resumed at `step` first runs `after`."""
        return False


@dataclass(frozen=True)
class SaveHook(Every):
    """Hook that flushes the metrics and starts a checkpoint, which is written while training continues."""

    phase: ClassVar[str] = SAVING
    checkpoints: Checkpoints
    writer: Writer

    def after(self, step: int, state: TrainState) -> TrainState:
        """Run after the update that led to `step`."""
        self.writer.flush()
        self.checkpoints.save(state)
        return state


@dataclass(frozen=True)
class EvaluateHook(Every):
    """Hook that writes and prints the scores on held-out rows.

    Attributes:
      scores: by split ("eval"), of the state after so many updates; None where it was cut short: the run is to end.
      writer: where they go.
      done: the steps whose scores are written.
    """

    phase: ClassVar[str] = EVALUATING
    scores: Callable[[int, TrainState], Mapping[str, Mapping[str, float]] | None]
    writer: Writer
    done: set[int] = field(default_factory=set)

    def owed(self, step: int) -> bool:
        """Return whether a run resumed at `step` first runs `after`."""
        return step > 0 and self.due(step) and step not in self.done

    def after(self, step: int, state: TrainState) -> TrainState:
        """Run after the update that led to `step`."""
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
    """Hook that shows predictions for some held-out rows in TensorBoard and prints the first.

    Attributes:
      samples: one text a row, of the state after so many updates.
      writer: where they go.
    """

    phase: ClassVar[str] = SAMPLING
    samples: Callable[[int, TrainState], list[str]]
    writer: Writer

    def after(self, step: int, state: TrainState) -> TrainState:
        """Run after the update that led to `step`."""
        texts = self.samples(step, state)
        self.writer.write_text(step, "samples", texts)
        for text in texts[:1]:
            print(f"step {step:,} sample  {text}", flush=True)
        return state


def profiled_steps(words: str | None, total: int) -> tuple[int, int] | None:
    """Return the first and last update that --profile_steps names in a run of `total`.

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
    """Hook that records a profile of some updates, for TensorBoard's profile plugin or Perfetto."""

    phase: ClassVar[str] = PROFILING

    def __init__(self, first: int, last: int, directory: Path) -> None:
        """A profile of the updates that lead to the steps `first` to `last`; written under `directory`."""
        self._first, self._last, self._directory = first, last, directory
        self._spool: Spool | None = None

    def due(self, step: int) -> bool:
        """Return whether `after` runs once `step` updates are made."""
        return step in (self._first - 1, self._last)

    def owed(self, step: int) -> bool:
        """Return whether a run resumed at `step` first runs `after`."""
        return False

    def after(self, step: int, state: TrainState) -> TrainState:
        """Run after the update that led to `step`."""
        if step < self._last:
            self._spool = Spool(self._directory)
            jax.profiler.start_trace(str(self._spool.folder))
        else:
            self.close()
        return state

    def close(self) -> None:
        """Write the recorded profile."""
        if self._spool:
            jax.profiler.stop_trace()
            self._spool.flush()
            self._spool.close()
            self._spool = None
            print(f"profile of the updates {self._first:,} to {self._last:,}: {self._directory}/plugins/profile", flush=True)


def make_hooks(
    trainer: Trainer,
    checkpoints: Checkpoints,
    evaluations: Sequence[HeldOut | None],
    vocabulary: Vocabulary,
    writer: Writer,
    stop: Stop,
    evaluated: Collection[int],
) -> list[Hook]:
    """Make the hooks of a run. Saving comes first, so that a slow hook after it cannot cost a step.

    Args:
      trainer: of the run.
      checkpoints: where it saves.
      evaluations: the held-out rows of each stage; None where there are too few.
      vocabulary: of the samples.
      writer: of scores and samples.
      stop: cuts an evaluation short.
      evaluated: the steps whose scores were written before.
    """
    run = trainer.run

    def held_out(updates: int) -> tuple[HeldOut, int]:
        stage, _ = locate(run.stages, updates - 1)
        rows = evaluations[stage]
        assert rows is not None
        return rows, stage

    def scores(updates: int, state: TrainState) -> dict[str, dict[str, float]] | None:
        found = {}
        for split, params in {"eval_average": state.average, "eval": state.params}.items():
            if params:
                measured = trainer.scores(params, *held_out(updates), stop, aux=state.aux)
                if measured is None:
                    return None
                found[split] = measured
        return found

    def samples(updates: int, state: TrainState) -> list[str]:
        return sample_texts(trainer.predictions(state.params, *held_out(updates)), vocabulary, _SAMPLES)

    hooks: list[Hook] = [SaveHook(run.checkpoint_every, run.total_steps, checkpoints, writer)]
    if all(evaluations):
        if run.eval_every:
            hooks.append(EvaluateHook(run.eval_every, run.total_steps, scores, writer, set(evaluated)))
        if run.sample_every:
            hooks.append(SampleHook(run.sample_every, run.total_steps, samples, writer))
    return hooks


def sample_texts(found: Predictions, vocabulary: Vocabulary, count: int) -> list[str]:
    """Format rows, one line each: the text as the model sees it, then target, best guess and its probability in order.

    Of more than `_MAX_TARGETS` targets so many are told, spread evenly from the first to the last.

    Args:
      found: NumPy arrays.
      vocabulary: of their ids.
      count: at most so many rows, the first ones that have a target.
    """
    texts = []
    for row in np.flatnonzero(found.weights.any(axis=1))[:count]:
        seen = vocabulary.decode(found.inputs[row][found.segments[row] > 0])
        slots = [slot for slot in np.argsort(found.positions[row], kind="stable") if found.weights[row, slot] > 0]
        if len(slots) > _MAX_TARGETS:
            slots = [slots[place] for place in np.linspace(0, len(slots) - 1, _MAX_TARGETS).round().astype(int)]
        targets, guesses = (vocabulary.pieces(ids[row, slots]) for ids in (found.targets, found.tokens))
        likely = found.probabilities[row, slots]
        told = [f"{target}: {guess} {share:.2f}" for target, guess, share in zip(targets, guesses, likely, strict=True)]
        texts.append(visible(f"{' '.join(seen.split())}  |  {', '.join(told)}"))
    return texts
