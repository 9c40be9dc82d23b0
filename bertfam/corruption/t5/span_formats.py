"""Formats of a row's inputs and targets, given its noise: T5 (Raffel et al. 2020, table 3).

A format keeps, replaces or drops each token of a row. "Thank you for inviting me to your party last week ." with the noise
"for inviting" and "last" becomes

    NoiseToSentinels   Thank you <X> me to your party <Y> week .
    ClearToSentinels   <X> for inviting <Y> last <Z>
    MaskNoise          Thank you <X> <X> me to your party <X> week .
    DropNoise          Thank you me to your party week .
    DropClear          for inviting last
    ShuffleNoise       Thank you last for me to your party inviting week .
    KeepAll            Thank you for inviting me to your party last week .

followed by the end token. <X>, <Y>, <Z> are the vocabulary's sentinels <extra_id_0>, <extra_id_1>, <extra_id_2>.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from typing_extensions import override

from bertfam.corruption.masked_lm.replacement import mask_tokens
from bertfam.corruption.permutations import group_shuffle
from bertfam.corruption.t5.random_tokens import Counts
from bertfam.corruption.token_ids import TokenIds


class Raw(NamedTuple):
    """Clean rows and their noise.

    Attributes:
      tokens: int32[n, width].
      real: bool[n, width], False at padding.
      noise: bool[n, width], True at tokens of noise.
      row_keys: uint64[n], one per row.
    """

    tokens: np.ndarray
    real: np.ndarray
    noise: np.ndarray
    row_keys: np.ndarray


class Formatted(NamedTuple):
    """Formatted rows, not yet compacted.

    Attributes:
      values: int32[n, columns], token of each column.
      keep: bool[n, columns], False at columns to drop.
    """

    values: np.ndarray
    keep: np.ndarray


class SpanFormat(ABC):
    """Base class of the formats of inputs and targets; a subclass is a frozen dataclass.

    Attributes:
      sentinels: Number of sentinels it requires: "none", "one", or one for each of the "spans" or "clear" runs.
      has_noise_only: True if it drops all clear text.
    """

    sentinels: ClassVar[str] = "none"
    has_noise_only: ClassVar[bool] = False

    @property
    def aligned(self) -> bool:
        """True if every row is preceded by an empty run of clear text."""
        return False

    def sizes(self, raw: Raw, clear: np.ndarray) -> tuple[np.ndarray, int] | None:
        """Return the tokens that each position adds int64[n, width] and those that close a row; None if no row can be too long.

        Args:
          raw: Clean rows and their noise.
          clear: bool[n, width], True where runs of clear text begin.
        """
        return None

    @abstractmethod
    def most(self, lengths: np.ndarray, counts: Counts) -> np.ndarray:
        """Return the maximum length of formatted rows of `lengths` int64[...] tokens, without the end token: int64[...]."""

    @abstractmethod
    def write(self, raw: Raw, tokens: TokenIds) -> Formatted:
        """Format rows as inputs or targets."""


@dataclass(frozen=True)
class NoiseToSentinels(SpanFormat):
    """Clear text, with a sentinel of its own for each run of noise, in order."""

    sentinels: ClassVar[str] = "spans"

    @override
    def most(self, lengths: np.ndarray, counts: Counts) -> np.ndarray:
        return lengths - counts.noise + counts.spans if counts.exact else lengths

    @override
    def write(self, raw: Raw, tokens: TokenIds) -> Formatted:
        return _to_sentinels(raw.tokens, raw.noise, raw.real, tokens)


@dataclass(frozen=True)
class ClearToSentinels(SpanFormat):
    """Noise, with a sentinel of its own for each run of clear text, in order, so that a sentinel precedes each span of noise.

    Attributes:
      aligned: Handling of rows that begin with noise. False, as in the published code: no sentinel precedes that noise, and each
        later span follows a different sentinel than the one that replaces it in the inputs of `NoiseToSentinels`. True: the first
        sentinel precedes it, so that each span follows its own sentinel.
    """

    sentinels: ClassVar[str] = "clear"
    has_noise_only: ClassVar[bool] = True

    aligned: bool = False

    @override
    def sizes(self, raw: Raw, clear: np.ndarray) -> tuple[np.ndarray, int]:
        return raw.noise.astype(np.int64) + clear, 1

    @override
    def most(self, lengths: np.ndarray, counts: Counts) -> np.ndarray:
        return np.minimum(counts.noise + counts.clear, lengths) + (self.aligned and not counts.exact)

    @override
    def write(self, raw: Raw, tokens: TokenIds) -> Formatted:
        values, real, clear = raw.tokens, raw.real, raw.real & ~raw.noise
        if self.aligned:  # prepend an empty run of clear text to every row
            values, real, clear = (np.concatenate([part[:, :1], part], axis=1) for part in (values, real, clear))
            clear[:, 0] = real[:, 0]
        return _to_sentinels(values, clear, real, tokens)


@dataclass(frozen=True)
class MaskNoise(SpanFormat):
    """Text in which each token of noise becomes the first sentinel, or a random piece with probability `random_share`.

    The published code draws from all ids but the first three; here control tokens and sentinels are never drawn.

    Attributes:
      random_share: Share of the noise that becomes random pieces.
    """

    sentinels: ClassVar[str] = "one"

    random_share: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.random_share <= 1:
            raise ValueError(f"random_share {self.random_share} is not in [0, 1]")

    @override
    def most(self, lengths: np.ndarray, counts: Counts) -> np.ndarray:
        return lengths

    @override
    def write(self, raw: Raw, tokens: TokenIds) -> Formatted:
        mask, share = tokens.sentinels[0], self.random_share
        result = mask_tokens(raw.tokens, raw.noise, raw.row_keys, mask=mask, random_share=share, random_ids=tokens.pieces)
        return Formatted(result, raw.real)


@dataclass(frozen=True)
class DropNoise(SpanFormat):
    """Clear text only."""

    sentinels: ClassVar[str] = "none"

    @override
    def most(self, lengths: np.ndarray, counts: Counts) -> np.ndarray:
        return lengths - counts.noise if counts.exact else lengths

    @override
    def write(self, raw: Raw, tokens: TokenIds) -> Formatted:
        return Formatted(raw.tokens, raw.real & ~raw.noise)


@dataclass(frozen=True)
class DropClear(SpanFormat):
    """Noise only."""

    has_noise_only: ClassVar[bool] = True

    @override
    def sizes(self, raw: Raw, clear: np.ndarray) -> tuple[np.ndarray, int]:
        return raw.noise, 0

    @override
    def most(self, lengths: np.ndarray, counts: Counts) -> np.ndarray:
        return counts.noise

    @override
    def write(self, raw: Raw, tokens: TokenIds) -> Formatted:
        return Formatted(raw.tokens, raw.noise)


@dataclass(frozen=True)
class ShuffleNoise(SpanFormat):
    """Text in which the tokens of noise are shuffled among themselves; all orders are equally likely."""

    sentinels: ClassVar[str] = "none"

    @override
    def most(self, lengths: np.ndarray, counts: Counts) -> np.ndarray:
        return lengths

    @override
    def write(self, raw: Raw, tokens: TokenIds) -> Formatted:
        source = group_shuffle(np.where(raw.noise, 0, -1), raw.row_keys)
        return Formatted(np.take_along_axis(raw.tokens, source, axis=1), raw.real)


@dataclass(frozen=True)
class KeepAll(SpanFormat):
    """Whole text."""

    sentinels: ClassVar[str] = "none"

    @override
    def most(self, lengths: np.ndarray, counts: Counts) -> np.ndarray:
        return lengths

    @override
    def write(self, raw: Raw, tokens: TokenIds) -> Formatted:
        return Formatted(raw.tokens, raw.real)


def run_begins(inside: np.ndarray) -> np.ndarray:
    """Return True where a run of True begins in bool[n, width]: bool[n, width]."""
    begins = inside.copy()
    begins[:, 1:] &= ~inside[:, :-1]
    return begins


def _to_sentinels(values: np.ndarray, inside: np.ndarray, real: np.ndarray, tokens: TokenIds) -> Formatted:
    """Replace each run of `inside` bool[n, columns] by a sentinel."""
    begins = run_begins(inside)
    result = values.copy()
    row, place = np.nonzero(begins)
    counts = np.count_nonzero(begins, axis=1)
    result[row, place] = np.asarray(tokens.sentinels)[np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)]
    return Formatted(result, real & (~inside | begins))
