"""Hooks of every run: saving, evaluating and sampling."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from typing_extensions import override

from bertfam.data.text_data import HeldOut
from bertfam.data.vocabularies import Vocabulary
from bertfam.multihost.preemption import Stop
from bertfam.objectives.objective import Predictions
from bertfam.pages.visible import visible
from bertfam.training.checkpoints import Checkpoints
from bertfam.training.hooks.base import Hook, PeriodicHook
from bertfam.training.logs.metrics import Writer
from bertfam.training.logs.phase_timer import EVALUATING, SAMPLING, SAVING
from bertfam.training.stages import locate
from bertfam.training.state import TrainState
from bertfam.training.trainer import Trainer

_SAMPLES = 4  # rows
_MAX_TARGETS = 80  # about the masked tokens of a row of 512; a causal LM has a target at every position
# Name of each split of metrics.jsonl in the log.
HELD_OUT = {"eval_average": "held out, moving average", "eval": "held out"}


@dataclass(frozen=True)
class SaveHook(PeriodicHook):
    """Hook that flushes the metrics and starts a checkpoint, which is written while training continues."""

    phase: ClassVar[str] = SAVING
    checkpoints: Checkpoints
    writer: Writer

    @override
    def after(self, step: int, state: TrainState) -> TrainState:
        self.writer.flush()
        self.checkpoints.save(state)
        return state


@dataclass(frozen=True)
class EvaluateHook(PeriodicHook):
    """Hook that writes and prints the scores on held-out rows.

    Attributes:
      scores: computes the scores by split ("eval", after "eval/CORPUS" for each corpus of several) from the step and the state;
        None if the run stops before they are complete.
      writer: writer of the scores.
      evaluated: the scores that are written, by step.
      ends: returns from those scores the reason for which the run is complete before its last update, or None.
    """

    phase: ClassVar[str] = EVALUATING
    scores: Callable[[int, TrainState], Mapping[str, Mapping[str, float]] | None]
    writer: Writer
    evaluated: dict[int, Mapping[str, float]] = field(default_factory=dict)
    ends: Callable[[Mapping[int, Mapping[str, float]]], str | None] = lambda scores: None

    @override
    def owed(self, step: int) -> bool:
        return step > 0 and self.due(step) and step not in self.evaluated

    @override
    def end_reason(self, step: int) -> str | None:
        return self.ends(self.evaluated)

    @override
    def after(self, step: int, state: TrainState) -> TrainState:
        splits = self.scores(step, state)
        if splits is None:
            return state
        self.writer.write_all(step, splits)
        for split, title in HELD_OUT.items():
            if split in splits:
                values = "  ".join(f"{name} {value:.4g}" for name, value in splits[split].items())
                print(f"step {step:,} {title}  {values}", flush=True)
            corpora = {name: scores for name, scores in splits.items() if name.startswith(f"{split}/")}
            if corpora:
                losses = "  ".join(f"{name.partition('/')[2]} {scores['loss']:.4g}" for name, scores in corpora.items())
                print(f"step {step:,} {title}, loss by corpus  {losses}", flush=True)
        self.evaluated[step] = splits["eval"]
        return state


@dataclass(frozen=True)
class SampleHook(PeriodicHook):
    """Hook that shows predictions for some held-out rows in TensorBoard and prints the first.

    Attributes:
      samples: returns one text per row from the step and the state.
      writer: writer of the texts.
    """

    phase: ClassVar[str] = SAMPLING
    samples: Callable[[int, TrainState], list[str]]
    writer: Writer

    @override
    def after(self, step: int, state: TrainState) -> TrainState:
        texts = self.samples(step, state)
        self.writer.write_text(step, "samples", texts)
        for text in texts[:1]:
            print(f"step {step:,} sample  {text}", flush=True)
        return state


def make_hooks(
    trainer: Trainer,
    checkpoints: Checkpoints,
    evaluations: Sequence[HeldOut | None],
    vocabulary: Vocabulary,
    writer: Writer,
    stop: Stop,
    evaluated: Mapping[int, Mapping[str, float]],
) -> list[Hook]:
    """Make the hooks of a run, its own last. Saving comes first, so that a slow hook after it cannot cost a step.

    Args:
      trainer: trainer of the run.
      checkpoints: checkpoints to save to.
      evaluations: held-out rows of each stage; None for a stage that has too few.
      vocabulary: vocabulary to decode samples with.
      writer: writer of scores and samples.
      stop: request to stop, which may interrupt an evaluation.
      evaluated: scores that an earlier process has written, by step.
    """
    run = trainer.run

    def held_out(updates: int) -> tuple[HeldOut, int]:
        stage, _ = locate(run.stages, updates - 1)
        rows = evaluations[stage]
        assert rows is not None
        return rows, stage

    def scores(updates: int, state: TrainState) -> dict[str, dict[str, float]] | None:
        splits: dict[str, dict[str, float]] = {}
        for split, params in {"eval_average": state.average, "eval": state.params}.items():
            if params:
                rows, stage = held_out(updates)
                aux = run.objective_of(stage).evaluated_aux(state.carry, state.aux)
                measured = trainer.scores(params, rows, stage, stop, aux=aux)
                if measured is None:
                    return None
                splits |= {f"{split}/{name}": values for name, values in measured.corpora.items()}
                splits[split] = measured.values
        return splits

    def samples(updates: int, state: TrainState) -> list[str]:
        return sample_texts(trainer.predictions(state.params, *held_out(updates)), vocabulary, _SAMPLES)

    hooks: list[Hook] = [SaveHook(run.checkpoint_every, run.total_steps, checkpoints, writer)]
    if all(evaluations):
        if run.eval_every:
            hooks.append(EvaluateHook(run.eval_every, run.total_steps, scores, writer, dict(evaluated), run.end_reason))
        if run.sample_every:
            hooks.append(SampleHook(run.sample_every, run.total_steps, samples, writer))
    return [*hooks, *run.hooks]


def sample_texts(predictions: Predictions, vocabulary: Vocabulary, count: int) -> list[str]:
    """Format rows, one line each: the text as the model sees it, then target, best guess and its probability in order.

    At most `_MAX_TARGETS` targets of a row are shown, spread evenly from the first to the last.

    Args:
      predictions: predictions as NumPy arrays.
      vocabulary: vocabulary of their ids.
      count: largest number of rows; the first rows with a target are used.
    """
    texts = []
    for row in np.flatnonzero(predictions.weights.any(axis=1))[:count]:
        seen = vocabulary.decode(predictions.inputs[row][predictions.segments[row] > 0])
        slots = [slot for slot in np.argsort(predictions.positions[row], kind="stable") if predictions.weights[row, slot] > 0]
        if len(slots) > _MAX_TARGETS:
            slots = [slots[place] for place in np.linspace(0, len(slots) - 1, _MAX_TARGETS).round().astype(int)]
        targets, guesses = (vocabulary.pieces(ids[row, slots]) for ids in (predictions.targets, predictions.tokens))
        likely = predictions.probabilities[row, slots]
        shown = [f"{target}: {guess} {share:.2f}" for target, guess, share in zip(targets, guesses, likely, strict=True)]
        texts.append(visible(f"{' '.join(seen.split())}  |  {', '.join(shown)}"))
    return texts
