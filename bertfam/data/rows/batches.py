"""Batches as pure functions of the step: order, rows, corruption."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from typing_extensions import override

from bertfam.corruption import keys
from bertfam.corruption.corruption import Corruption
from bertfam.corruption.token_ids import TokenIds
from bertfam.data.rows.order import Order


class BatchSource(Protocol):
    """Random access to the rows of every step's global batch."""

    def rows(self, step: int, start: int, stop: int) -> dict[str, np.ndarray]:
        """Return rows start .. stop-1 of the step's batch, a pure function of its arguments: [stop - start, ...] each."""
        ...

    def row_length(self, step: int) -> int | None:
        """Return the length of the rows of the step's batch, equal on every host; None: that of all rows of the stage."""
        return None


class Examples(Protocol):
    """Uncorrupted rows by index."""

    @property
    def warnings(self) -> list[str]:
        """Problems of the text, one line each."""
        ...

    def __len__(self) -> int: ...

    def rows(self, examples: np.ndarray, row_keys: np.ndarray) -> dict[str, np.ndarray]:
        """Return the rows of examples int64[n], with random draws from the keys uint64[n]: [n, ...] each.

        A row's key is that of its epoch folded with its example, so that rows of an epoch can agree on draws (`keys.unfold`).
        """
        ...


class Rows(ABC):
    """Base class of endless sequences of finished rows."""

    @abstractmethod
    def by_corpus(self) -> tuple["CorruptedRows", ...]:
        """Return the rows of each corpus."""

    @property
    def warnings(self) -> list[str]:
        """Problems of the text, one line each."""
        return [line for part in self.by_corpus() for line in part.examples.warnings]

    @abstractmethod
    def at(self, places: np.ndarray) -> dict[str, np.ndarray]:
        """Return the rows at places int64[n] of the sequence, a pure function of them: [n, ...] each."""

    @property
    def epoch_rows(self) -> float:
        """Number of rows of an epoch; with several corpora, of the one whose text is used up first."""
        return float(sum(len(part.examples) for part in self.by_corpus()))

    def corpus_at(self, places: np.ndarray) -> np.ndarray:
        """Return the index in `by_corpus` of the row at each place int64[n]: int64[n]."""
        return np.zeros_like(places)


@dataclass(frozen=True)
class CorruptedRows(Rows):
    """Rows of one corpus, with noise.

    Attributes:
      order: Order of the examples.
      examples: Clean rows.
      corruption: Noise, drawn for each (epoch, example).
      tokens: Ids of the vocabulary.
      key: Key of the noise.
      dupe_factor: Number of epochs after which the draws repeat: epoch e has the draws of epoch e modulo this number. None: every
        epoch has draws of its own.
    """

    order: Order
    examples: Examples
    corruption: Corruption
    tokens: TokenIds
    key: int
    dupe_factor: int | None = None

    @override
    def by_corpus(self) -> tuple["CorruptedRows", ...]:
        return (self,)

    @override
    def at(self, places: np.ndarray) -> dict[str, np.ndarray]:
        epochs, examples = self.order.index(places)
        padding = examples < 0
        rows = self.rows_of(epochs, np.maximum(examples, 0))
        if padding.any():
            for value in rows.values():
                value[padding] = 0
        return rows

    def rows_of(self, epochs: np.ndarray, examples: np.ndarray) -> dict[str, np.ndarray]:
        """Return the rows of examples int64[n] in epochs int64[n]: [n, ...] each."""
        row_keys = keys.fold(self.key, epochs if self.dupe_factor is None else epochs % self.dupe_factor, examples)
        return self.corruption.corrupt(self.examples.rows(examples, row_keys), row_keys, self.tokens)


@dataclass(frozen=True)
class Batches(BatchSource):
    """Consecutive rows of a sequence as batches.

    Attributes:
      sequence: The rows.
      batch_size: Rows of a global batch.
      first: Place in the sequence of the first row of the first batch.
    """

    sequence: Rows
    batch_size: int
    first: int = 0

    def place(self, step: int) -> int:
        """Return the place in the sequence of the first row of a step's batch."""
        return self.first + step * self.batch_size

    @property
    def row_counts(self) -> dict[int, int]:
        """Number of rows of an epoch by their length; {} if all have that of the stage."""
        return {}

    def tokens(self, steps: int, length: int) -> int:
        """Return the tokens, padding included, of the first `steps` batches of rows of a stage with this length."""
        return steps * self.batch_size * length

    @override
    def rows(self, step: int, start: int, stop: int) -> dict[str, np.ndarray]:
        return self.sequence.at(self.place(step) + np.arange(start, stop, dtype=np.int64))


def gather_rows(sequences: Sequence[Rows], which: np.ndarray, places: np.ndarray) -> dict[str, np.ndarray]:
    """Gather rows from several sequences with the same features: [n, ...] each.

    Args:
      sequences: The sequences.
      which: int64[n], index of the sequence that a row comes from.
      places: int64[n], place of the row in that sequence.
    """
    result: dict[str, np.ndarray] = {}
    for index in np.unique(which) if len(which) else [0]:
        here = which == index
        for name, value in sequences[index].at(places[here]).items():
            if name not in result:
                result[name] = np.zeros((len(which), *value.shape[1:]), value.dtype)
            result[name][here] = value
    return result
