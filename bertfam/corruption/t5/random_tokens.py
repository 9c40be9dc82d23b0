"""Noise of independent tokens, or of a prefix: T5 (Raffel et al. 2020, sections 3.2.1 and 3.3)."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from typing_extensions import override

from bertfam.corruption import keys, streams

_DEVIATIONS = 4  # one row in 30,000 exceeds this


class Counts(NamedTuple):
    """Amount of noise in rows of n tokens: int64[...] each.

    Attributes:
      noise: Tokens of noise.
      spans: Runs of noise.
      clear: Runs of clear tokens.
      exact: True if every row has this noise and at most these runs; False if they are upper bounds for nearly all rows.
    """

    noise: np.ndarray
    spans: np.ndarray
    clear: np.ndarray
    exact: bool


class Noise(ABC):
    """Base class of the distributions of noise tokens; a subclass is a frozen dataclass.

    Attributes:
      is_exact: True if all rows of a length have the same noise, so that their `counts` are exact.
    """

    is_exact: ClassVar[bool] = False

    @property
    def begins_rows(self) -> bool:
        """True if a row may begin with noise."""
        return True

    @property
    def notes(self) -> tuple[str, ...]:
        """Properties of the published noise that may surprise, a line each."""
        return ()

    @property
    def has_short_rows(self) -> bool:
        """True if clean rows lose a token where targets would otherwise be longer than inputs, as published."""
        return False

    @property
    def published_density(self) -> float | None:
        """Share of noise by which published target lengths are looked up; None if there are none."""
        return None

    @abstractmethod
    def counts(self, lengths: np.ndarray) -> Counts:
        """Return the amount of noise in rows of `lengths` int64[...] tokens."""

    @abstractmethod
    def draw(self, lengths: np.ndarray, width: int, row_keys: np.ndarray) -> np.ndarray:
        """Draw the noise of rows.

        Args:
          lengths: int64[n], tokens of each row, at most `width`.
          width: Positions of a row.
          row_keys: uint64[n], one per row.

        Returns:
          bool[n, width], True at noise.
        """


@dataclass(frozen=True)
class RandomTokens(Noise):
    """Independent tokens, each with the same probability; a row may have no noise, or begin and end with noise.

    Attributes:
      density: Probability that a token is noise.
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
        # The bounds are four standard deviations above the mean.
        share, n = self.density, np.asarray(lengths, np.int64)
        begins = share * (1 - share)  # probability that a span begins at a position after the first
        noise = _most(n * share, n * begins, n)
        spans = _most(share + n * begins, n * np.maximum(begins * (1 - 3 * begins), 0), (n + 1) // 2)
        return Counts(noise, spans, np.minimum(spans + 1, (n + 1) // 2), exact=False)

    @override
    def draw(self, lengths: np.ndarray, width: int, row_keys: np.ndarray) -> np.ndarray:
        noise = keys.uniform(keys.bits(row_keys, streams.SELECTION, width)) < self.density
        return noise & (np.arange(width) < lengths[:, None])


@dataclass(frozen=True)
class RandomPrefix(Noise):
    """Prefix of p tokens, p uniform in 1 .. n - 1: the input of a prefix language model; a row of one token has no noise."""

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
    """Return an upper bound, exceeded only rarely, of counts with this mean and variance float64[...]: int64[...]."""
    return np.minimum(np.ceil(mean + _DEVIATIONS * np.sqrt(variance)).astype(np.int64), at_most)
