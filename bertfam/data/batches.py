"""Batches as pure functions of the step: order, rows, corruption."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from bertfam.corruption import keys as random
from bertfam.corruption.token_ids import TokenIds
from bertfam.data.order import Order


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

    def rows(self, examples: np.ndarray, keys: np.ndarray) -> dict[str, np.ndarray]:
        """Rows of the examples int64[n], with what is drawn anew taken from keys uint64[n]."""
        ...


class Corruption(Protocol):
    """Noise: a pure function of rows and keys."""

    def corrupt(self, rows: dict[str, np.ndarray], keys: np.ndarray, tokens: TokenIds) -> dict[str, np.ndarray]:
        """Rows with their noise and targets."""
        ...


@dataclass(frozen=True)
class CorruptedBatches:
    """A `BatchSource` over examples.

    Attributes:
      order: which example is where.
      examples: the clean rows.
      corruption: the noise, drawn anew for each (epoch, example).
      tokens: the vocabulary's ids.
      key: what the noise depends on.
    """

    order: Order
    examples: Examples
    corruption: Corruption
    tokens: TokenIds
    key: int

    def rows(self, step: int, start: int, stop: int) -> dict[str, np.ndarray]:
        """See `BatchSource.rows`."""
        epochs, examples = self.order.index(step, np.arange(start, stop))
        padding = examples < 0
        rows = self.rows_of(epochs, np.maximum(examples, 0))
        if padding.any():
            for value in rows.values():
                value[padding] = 0
        return rows

    def rows_of(self, epochs: np.ndarray, examples: np.ndarray) -> dict[str, np.ndarray]:
        """The rows of examples int64[n] as they are in epochs int64[n]: [n, ...] each."""
        keys = random.fold(self.key, epochs, examples)
        return self.corruption.corrupt(self.examples.rows(examples, keys), keys, self.tokens)
