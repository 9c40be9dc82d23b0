"""Evaluation of a model on seqio tasks with metric functions, by seqio's own evaluator. Imports TensorFlow."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import seqio
import tensorflow as tf
from absl import logging

from bertfam.api import LanguageModel
from bertfam.data.rows.text_pairs import PairFrame
from bertfam.data.seqio_tasks.vocabulary import PieceVocabulary
from bertfam.decoding.prompts import prompt_format
from bertfam.decoding.strategies import Greedy, Limits
from bertfam.errors import UserError
from bertfam.evaluation.target_scores import log_likelihoods
from bertfam.plurals import plural
from bertfam.suggest import did_you_mean

_FEATURES = ("inputs", "targets")
_SUFFIX = "_by_bertfam"


def evaluate(
    model: LanguageModel,
    name: str,
    split: str,
    *,
    examples: int | None = None,
    max_new_tokens: int | None = None,
    batch_size: int = 32,
    mesh: Any = None,
) -> dict[str, dict[str, Any]]:
    """Compute the metrics of a registered task, or of each task of a mixture.

    The vocabulary is the model's, whatever the task was registered with. What is decoded is greedy; what is scored is
    log p(targets | inputs). Metric functions get their arguments as seqio says: (targets, predictions), (targets, scores), or
    (targets, predictions, aux_values) with the log-probability of each prediction as `scores`.

    Args:
      model: what predicts.
      name: of the task or mixture.
      split: of the task.
      examples: the first so many of each task; None: all.
      max_new_tokens: where predictions are cut; None: at as many tokens as the longest of the targets has.
      batch_size: examples at a time.
      mesh: devices that share them, see `decoding.generate`.

    Returns:
      for each task its metrics by name, and `examples`, how many there are.

    Raises:
      UserError: the task is not known, has no such split, or no metric function.
    """
    return {
        task.name: _Evaluation(model, max_new_tokens, batch_size, mesh).run(_of_model(task, model), split, examples)
        for task in _tasks(name, split)
    }


def _tasks(name: str, split: str) -> list[seqio.Task]:
    known = {*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()}
    if name not in known:
        hint = did_you_mean(name, known, "give the module that registers it with --module_import=MODULE")
        raise UserError(f"--task={name} is no registered seqio task{hint}")
    found = list(seqio.get_subtasks(seqio.get_mixture_or_task(name)))
    for task in found:
        if not set(_FEATURES) <= task.output_features.keys():
            raise UserError(
                f"task {task.name} has the features {', '.join(task.output_features)}: what is predicted needs inputs and targets"
            )
        if split not in task.splits:
            raise UserError(f"task {task.name} has no split {split}: give --split={' or --split='.join(map(str, task.splits))}")
        if not task.metric_objs:
            raise UserError(f"task {task.name} has no metric function: register it with metric_fns=[...]")
    return found


def _of_model(task: seqio.Task, model: LanguageModel) -> seqio.Task:
    """Return the task with the model's vocabulary; strings are tokenised and end with EOS."""
    vocabulary = PieceVocabulary(lambda: model.vocabulary)
    features = {
        name: seqio.Feature(
            vocabulary, add_eos=name == "targets" or prompt_format(model.config).ends_inputs, required=feature.required
        )
        for name, feature in task.output_features.items()
        if name in _FEATURES
    }
    mine = copy.copy(task)
    mine._output_features = features
    if any(task.output_features[name].dtype == tf.string for name in _FEATURES):
        ends = [seqio.preprocessors.tokenize, seqio.preprocessors.append_eos_after_trim]
        mine._preprocessor_constructor_args = (*task.preprocessors, *ends)
    mine._name = f"{task.name}{_SUFFIX}"
    return mine


@dataclasses.dataclass
class _Evaluation:
    """Evaluation of one task."""

    model: LanguageModel
    max_new_tokens: int | None
    batch_size: int
    mesh: Any

    def run(self, task: seqio.Task, split: str, examples: int | None) -> dict[str, Any]:
        """Return the metrics by name, and the number of examples."""
        most = self.model.config.max_length and self.model.config.max_length - len(self._lead)
        with _registered(task), _quiet():
            with _refusal(task, split):
                evaluator = seqio.Evaluator(
                    task.name,
                    feature_converter=_Unpadded(),
                    eval_split=split,
                    sequence_length=most and dict.fromkeys(_FEATURES, most),
                    num_examples=examples,
                    async_compute_metrics=False,
                )
            count = sum(1 for _ in evaluator.cached_task_datasets[task.name])
            if not count:
                raise UserError(f"the {split} split of the task {task.name.removesuffix(_SUFFIX)} has no example")
            future, _ = evaluator.evaluate(
                compute_metrics=True, predict_fn=self.predict, score_fn=self.score, predict_with_aux_fn=self.predict_with_scores
            )
            (metrics,) = future.result().values()
        return {**{name: _plain(value) for name, value in metrics.items()}, "examples": count}

    def predict(self, dataset: tf.data.Dataset) -> list[tuple[int, np.ndarray]]:
        """Implement seqio's `predict_fn`: (number, tokens) of each example."""
        return self._predicted(dataset)[0]

    def predict_with_scores(self, dataset: tf.data.Dataset) -> tuple[list[tuple[int, np.ndarray]], dict[str, list[float]]]:
        """Implement seqio's `predict_with_aux_fn`."""
        predictions, scores = self._predicted(dataset)
        return predictions, {"scores": scores}

    def score(self, dataset: tf.data.Dataset) -> list[tuple[int, float]]:
        """Implement seqio's `score_fn`: (number, log p(targets | inputs)) of each example."""
        numbers, inputs, targets = self._read(dataset)
        scores = log_likelihoods(self.model, inputs, targets, batch_size=self.batch_size)
        return list(zip(numbers, scores.tolist(), strict=True))

    def _predicted(self, dataset: tf.data.Dataset) -> tuple[list[tuple[int, np.ndarray]], list[float]]:
        numbers, inputs, targets = self._read(dataset)
        limits = Limits(self.max_new_tokens or max(map(len, targets)))
        written = self.model.generate(inputs, Greedy(), limits, batch_size=self.batch_size, mesh=self.mesh)
        # seqio makes one array of all predictions, and takes what stands behind the end for nothing.
        table = np.full((len(numbers), limits.max_new_tokens), self.model.vocabulary.token_ids.pad, np.int32)
        for row, (text,) in zip(table, written, strict=True):
            row[: len(text.tokens)] = text.tokens
        return list(zip(numbers, table, strict=True)), [text.log_probability for (text,) in written]

    def _read(self, dataset: tf.data.Dataset) -> tuple[list[int], list[np.ndarray], list[np.ndarray]]:
        found = [(int(number), example["inputs"], example["targets"]) for number, example in dataset.as_numpy_iterator()]
        numbers, inputs, targets = map(list, zip(*found, strict=True))
        inputs, targets = ([np.concatenate([self._lead, text]) for text in texts] for texts in (inputs, targets))
        return numbers, inputs, targets

    @property
    def _lead(self) -> np.ndarray:
        """Token that inputs and targets begin with, as in training (`PairFrame`): int32[0 or 1]."""
        config, tokens = self.model.config, self.model.vocabulary.token_ids
        start = prompt_format(config).frame_start(config)
        lead = None if start is None else PairFrame(tokens, start).lead
        return np.array([] if lead is None else [lead], np.int32)


class _Unpadded(seqio.PassThroughFeatureConverter):
    """Feature converter that adds no padding, which could not be distinguished from a token of its id."""

    TASK_FEATURES: ClassVar[dict[str, Any]] = {}
    pack = False


def _plain(value: Any) -> Any:
    """Convert a metric to a number, or to a string if it is not one."""
    value = getattr(value, "value", getattr(value, "textdata", value))
    try:
        return float(value)
    except (TypeError, ValueError):
        return str(value)


@contextmanager
def _refusal(task: seqio.Task, split: str) -> Iterator[None]:
    """Convert errors of reading and tokenising examples to UserError."""
    try:
        yield
    except (tf.errors.OpError, ValueError, OSError) as error:
        summary = next(iter(str(error).splitlines()), "")[:300]
        fix = "; strings need output_features=bertfam.data.seqio_tasks.tasks.PAIRS" if "Got string" in summary else ""
        name = task.name.removesuffix(_SUFFIX)
        raise UserError(f"--task={name} cannot be read of {split}: {summary}{fix}") from error


@contextmanager
def _registered(task: seqio.Task) -> Iterator[None]:
    """Register the task temporarily, as seqio's evaluator finds tasks by name."""
    seqio.TaskRegistry.add_provider(task.name, task)
    try:
        yield
    finally:
        seqio.TaskRegistry.remove(task.name)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence seqio's warnings that it logs nothing."""
    level = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(level)


def format_results(results: dict[str, dict[str, Any]]) -> Sequence[str]:
    """Format the results as lines of text."""
    lines = []
    for task, metrics in results.items():
        lines.append(f"{task}: {plural(metrics['examples'], 'example')}")
        lines += [
            f"  {name:<24} {value:.4f}" if isinstance(value, float) else f"  {name:<24} {value}"
            for name, value in metrics.items()
            if name != "examples"
        ]
    return lines
