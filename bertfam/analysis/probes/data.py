"""Targets of probes as arrays: the tokens of their spans, labels and word types."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from bertfam.analysis.probes.control import baselines, control_labels
from bertfam.analysis.probes.targets import TargetSentence
from bertfam.analysis.subject import TextRows, TokenRow
from bertfam.analysis.words import word_spans, words_of_tokens
from bertfam.errors import UserError

UNKNOWN = -1  # label that no training target has


class SpanTokens(NamedTuple):
    """Tokens of the spans of some targets.

    Attributes:
      tokens: int64[n], numbers of tokens, one span after another.
      segments: int64[n], the span of each, numbered from 0.
    """

    tokens: np.ndarray
    segments: np.ndarray


@dataclass(frozen=True)
class ProbeSplit:
    """Targets to train on, or held-out ones.

    Attributes:
      rows: the rows that have targets.
      positions: int64[n] for each row, the positions of the tokens of its spans. These tokens are numbered in this order.
      tokens: int64[m], numbers of the tokens of all spans, one span after another.
      sizes: int64[targets, spans], tokens of each span.
      labels: int32[targets], numbers of the labels, `UNKNOWN` for those that no training target has.
      types: word type of each target: the words of its first span.
      skipped: targets that are left out, in sentences too long for a row or with spans without tokens.
    """

    rows: list[TokenRow]
    positions: list[np.ndarray]
    tokens: np.ndarray
    sizes: np.ndarray
    labels: np.ndarray
    types: list[str]
    skipped: int

    @property
    def token_count(self) -> int:
        """Number of different tokens of all spans."""
        return sum(map(len, self.positions))

    @cached_property
    def _starts(self) -> np.ndarray:
        return np.concatenate([[0], np.cumsum(self.sizes.sum(axis=1))])

    def span_tokens(self, chosen: np.ndarray) -> SpanTokens:
        """Return the tokens of the spans of targets int64[n]."""
        counts = self.sizes[chosen].sum(axis=1)
        # Consecutive numbers from the start of each target.
        shift = np.repeat(self._starts[chosen] - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts)
        sizes = self.sizes[chosen].ravel()
        return SpanTokens(self.tokens[shift + np.arange(len(shift))], np.repeat(np.arange(len(sizes)), sizes))


@dataclass(frozen=True)
class ProbeData:
    """Targets of a task.

    Attributes:
      classes: names of the labels.
      train, held_out: the targets to train on, and the others.
    """

    classes: tuple[str, ...]
    train: ProbeSplit
    held_out: ProbeSplit

    @property
    def spans(self) -> int:
        """Number of spans of a target, 1 or 2."""
        return self.train.sizes.shape[1]

    def labels(self, split: ProbeSplit) -> np.ndarray:
        """Return the labels of a split's targets, and their labels in the control task: int32[2, targets]."""
        known = [*self.train.types, *self.held_out.types]
        return np.stack([split.labels, control_labels(split.types, known, self.train.labels)])

    @property
    def seen(self) -> float:
        """Share of the held-out targets whose word type a training target has: a bound of memorising."""
        known = set(self.train.types)
        return sum(name in known for name in self.held_out.types) / len(self.held_out.types)

    def baselines(self) -> dict[str, float]:
        """Return accuracies without hidden states; see `control.baselines`."""
        return baselines((self.train.types, self.train.labels), (self.held_out.types, self.held_out.labels))


def encode_targets(name: str, rows: TextRows, train: Sequence[TargetSentence], held_out: Sequence[TargetSentence]) -> ProbeData:
    """Encode the sentences of a task, words with one space between them.

    Args:
      name: name of the task, for messages.
      rows: encoder of texts.
      train: the sentences to train on.
      held_out: the others.

    Raises:
      UserError: there are no two labels, or no target fits into a row.
    """
    classes = tuple(sorted({target.label for sentence in train for target in sentence.targets}))
    if len(classes) < 2:
        raise UserError(f"--{name} has only the label {classes[0]!r}: probes tell two labels or more apart")
    numbers = {label: number for number, label in enumerate(classes)}
    splits = [_encode(f"{name}{suffix}", rows, own, numbers) for suffix, own in (("", train), (" held out", held_out))]
    if (spans := splits[0].sizes.shape[1]) != splits[1].sizes.shape[1]:
        raise UserError(f"the training targets of --{name} have {spans} spans, and the held-out ones have not")
    return ProbeData(classes, *splits)


def _encode(name: str, encoder: TextRows, sentences: Sequence[TargetSentence], numbers: Mapping[str, int]) -> ProbeSplit:
    rows, positions, types = list[TokenRow](), list[np.ndarray](), list[str]()
    tokens, sizes, labels = list[np.ndarray](), list[list[int]](), list[int]()
    count = 0
    for sentence in sentences:
        row = encoder.row(" ".join(sentence.words))
        if row.is_cut:
            continue
        word = words_of_tokens(row, word_spans(sentence.words))
        places = [[np.flatnonzero((word >= first) & (word < end)) for first, end in target.spans] for target in sentence.targets]
        kept = [(target, own) for target, own in zip(sentence.targets, places, strict=True) if all(map(len, own))]
        if not kept:
            continue
        used = np.unique(np.concatenate([place for _, own in kept for place in own]))
        for target, own in kept:
            tokens += [count + np.searchsorted(used, place) for place in own]
            sizes.append([len(place) for place in own])
            labels.append(numbers.get(target.label, UNKNOWN))
            types.append(" ".join(sentence.words[slice(*target.spans[0])]))
        rows.append(row)
        positions.append(used)
        count += len(used)
    if not labels:
        raise UserError(f"no sentence of {name} has targets and fits into rows of {encoder.length} tokens")
    total = sum(len(sentence.targets) for sentence in sentences)
    return ProbeSplit(
        rows,
        positions,
        np.concatenate(tokens),
        np.array(sizes),
        np.array(labels, np.int32),
        types,
        total - len(labels),
    )
