"""Which tokens are noise, each by itself or all of a beginning: T5 (Raffel et al. 2020, sections 3.2.1 and 3.3)."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from typing_extensions import override

from bertfam.corruption import keys, streams

_DEVIATIONS = 4  # one row in 30,000 has more


class Counts(NamedTuple):
    """How much of rows of n tokens is noise: int64[...] each.

    Attributes:
      noise: tokens of noise.
      spans: runs of them.
      clear: runs of tokens that are none.
      exact: whether these are the numbers of every row; else of nearly all rows the most.
    """

    noise: np.ndarray
    spans: np.ndarray
    clear: np.ndarray
    exact: bool


class Noise(ABC):
    """Base class of the ways to draw the tokens that are noise; a subclass is a frozen dataclass.

    Attributes:
      is_exact: True if all rows of a length have the same `counts`.
    """

    is_exact: ClassVar[bool] = False

    @property
    def has_short_rows(self) -> bool:
        """True if a row is a token shorter where its targets would be longer than its inputs, as published."""
        return False

    @property
    def published_density(self) -> float | None:
        """The share of noise by which published numbers of targets are looked up; None where there are none."""
        return None

    @abstractmethod
    def counts(self, lengths: np.ndarray) -> Counts:
        """Return how much of rows of `lengths` int64[...] tokens is noise."""

    @abstractmethod
    def draw(self, lengths: np.ndarray, width: int, row_keys: np.ndarray) -> np.ndarray:
        """Draw the noise of rows.

        Args:
          lengths: int64[n], tokens of each row, at most `width`.
          width: places of a row.
          row_keys: uint64[n], one a row.

        Returns:
          bool[n, width], True at noise.
        """


@dataclass(frozen=True)
class RandomTokens(Noise):
    """Each token by itself with the same probability; a row may have no noise, and begin and end with it.

    Attributes:
      density: the probability.
    """

    density: float = 0.15

    def __post_init__(self) -> None:
        if not 0 < self.density <= 1:
            raise ValueError(f"density {self.density} is not in (0, 1]")

    @property
    @override
    def published_density(self) -> float:
        return self.density

    @override
    def counts(self, lengths: np.ndarray) -> Counts:
        # The most is four standard deviations above the mean.
        share, n = self.density, np.asarray(lengths, np.int64)
        begins = share * (1 - share)  # how likely it is that a span begins, behind the first place
        noise = _most(n * share, n * begins, n)
        spans = _most(share + n * begins, n * np.maximum(begins * (1 - 3 * begins), 0), (n + 1) // 2)
        return Counts(noise, spans, np.minimum(spans + 1, (n + 1) // 2), exact=False)

    @override
    def draw(self, lengths: np.ndarray, width: int, row_keys: np.ndarray) -> np.ndarray:
        noise = keys.uniform(keys.bits(row_keys, streams.SELECTION, width)) < self.density
        return noise & (np.arange(width) < lengths[:, None])


@dataclass(frozen=True)
class RandomPrefix(Noise):
    """The first p tokens, p uniform in 1 .. n - 1: what a prefix language model reads; a row of one token has none."""

    @override
    def counts(self, lengths: np.ndarray) -> Counts:
        n = np.asarray(lengths, np.int64)
        one = np.minimum(n, 1)
        return Counts(n, one, one, exact=False)

    @override
    def draw(self, lengths: np.ndarray, width: int, row_keys: np.ndarray) -> np.ndarray:
        drawn = 1 + keys.integers(keys.bits(row_keys, streams.SELECTION, 1)[:, 0], np.maximum(lengths - 1, 1))
        return np.arange(width) < np.where(lengths > 1, drawn, 0)[:, None]


def _most(mean: np.ndarray, variance: np.ndarray, at_most: np.ndarray) -> np.ndarray:
    """What a count of this mean and variance float64[...] hardly ever exceeds: int64[...]."""
    return np.minimum(np.ceil(mean + _DEVIATIONS * np.sqrt(variance)).astype(np.int64), at_most)
