"""Batches as pure functions of the step: order, rows, corruption."""

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
    """Any rows of any step's global batch."""

    def rows(self, step: int, start: int, stop: int) -> dict[str, np.ndarray]:
        """Rows start .. stop-1 of the step's batch, a pure function of its arguments: [stop - start, ...] each."""
        ...


class Examples(Protocol):
    """Uncorrupted rows by index."""

    @property
    def warnings(self) -> list[str]:
        """What is amiss with the text, a line each."""
        ...

    def __len__(self) -> int: ...

    def rows(self, examples: np.ndarray, row_keys: np.ndarray) -> dict[str, np.ndarray]:
        """Rows of the examples int64[n], with what is drawn anew taken from keys uint64[n]."""
        ...


class Rows(Protocol):
    """An endless sequence of finished rows."""

    @property
    def warnings(self) -> list[str]:
        """What is amiss with the text, a line each."""
        ...

    def at(self, places: np.ndarray) -> dict[str, np.ndarray]:
        """The rows at the places int64[n], a pure function of them: [n, ...] each."""
        ...


@dataclass(frozen=True)
class CorruptedRows(Rows):
    """A `Rows` over examples.

    Attributes:
      order: which example is where.
      examples: the clean rows.
      corruption: the noise, drawn anew for each (epoch, example).
      tokens: the vocabulary's ids.
      key: what the noise depends on.
      dupe_factor: epoch e draws what epoch e modulo this number drew; None: every epoch draws anew.
    """

    order: Order
    examples: Examples
    corruption: Corruption
    tokens: TokenIds
    key: int
    dupe_factor: int | None = None

    @property
    @override
    def warnings(self) -> list[str]:
        return self.examples.warnings

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
        """The rows of examples int64[n] as they are in epochs int64[n]: [n, ...] each."""
        row_keys = keys.fold(self.key, epochs if self.dupe_factor is None else epochs % self.dupe_factor, examples)
        return self.corruption.corrupt(self.examples.rows(examples, row_keys), row_keys, self.tokens)


@dataclass(frozen=True)
class Batches(BatchSource):
    """A `BatchSource`: a sequence of rows, so many at a time."""

    sequence: Rows
    batch_size: int

    @override
    def rows(self, step: int, start: int, stop: int) -> dict[str, np.ndarray]:
        return self.sequence.at(step * self.batch_size + np.arange(start, stop, dtype=np.int64))


def gather_rows(sequences: Sequence[Rows], which: np.ndarray, places: np.ndarray) -> dict[str, np.ndarray]:
    """Rows out of several sequences with the same features: [n, ...] each.

    Args:
      sequences: where they come from.
      which: int64[n], the sequence of each row.
      places: int64[n], its place in that sequence.
    """
    result: dict[str, np.ndarray] = {}
    for index in np.unique(which) if len(which) else [0]:
        here = which == index
        for name, value in sequences[index].at(places[here]).items():
            if name not in result:
                result[name] = np.zeros((len(which), *value.shape[1:]), value.dtype)
            result[name][here] = value
    return result
