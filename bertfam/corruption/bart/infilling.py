"""Text infilling: each span, which may be empty, becomes one [MASK] (BART, Lewis et al. 2020, section 2.2)."""

import functools
import math
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from bertfam.corruption import keys, streams
from bertfam.corruption.bart.token_noise import FramedRows, TokenNoise
from bertfam.corruption.sampling import draw, in_random_order
from bertfam.corruption.token_ids import TokenIds


@dataclass(frozen=True)
class TextInfilling(TokenNoise):
    """Spans of whole words whose lengths are Poisson distributed, each replaced by a single [MASK].

    Lengths are drawn until their sum reaches ceil(rate W) for a row of W words; the last is shortened to that sum. A span of
    length 0 inserts a [MASK] between words. Spans do not overlap, every arrangement of spans and other words is equally likely,
    and adjacent spans give two [MASK]. (In fairseq spans may overlap, and a span that runs into the next one removes its [MASK].)

    Attributes:
      rate: Share of the words that are replaced.
      mean_length: Mean length of a span in words (lambda).
    """

    rate: float = 0.3
    mean_length: float = 3.0

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ValueError(f"rate {self.rate} is not in (0, 1]")
        if not 0 < self.mean_length <= 100:
            raise ValueError(f"mean_length {self.mean_length} is not in (0, 100]")

    @override
    def apply(self, rows: FramedRows, row_keys: np.ndarray, tokens: TokenIds) -> tuple[np.ndarray, np.ndarray]:
        # A [MASK] that would make the row too long is omitted.
        return self._fill(*rows, row_keys, tokens.require("mask", "TextInfilling"), tokens.pad)

    def _fill(
        self,
        tokens: np.ndarray,
        inside: np.ndarray,
        begins: np.ndarray,
        real: np.ndarray,
        row_keys: np.ndarray,
        mask: int,
        pad: int,
    ) -> tuple[np.ndarray, np.ndarray]:
        n, length = tokens.shape
        begins = begins & inside
        begins[:, :1] |= inside[:, :1]
        begins[:, 1:] |= inside[:, 1:] & ~inside[:, :-1]
        words = np.count_nonzero(begins, axis=1)
        spans, used = self._spans(words, length - np.count_nonzero(real, axis=1), length, row_keys)

        # [n, items]: a row is a sequence of items, each a span or a word that is kept; `is_span` marks the spans.
        spans_of, taken = np.count_nonzero(used, axis=1), spans.sum(axis=1)
        width = length + spans.shape[1]
        items = np.arange(width) < (words - taken + spans_of)[:, None]
        is_span = draw(items, spans_of, keys.bits(row_keys, streams.FILL_PLACES, width))
        sizes = items.astype(np.int64)
        row, item = np.nonzero(is_span)
        sizes[row, item] = spans[used]
        first = (np.cumsum(sizes, axis=1) - sizes)[row, item]

        # [n, words + 1]: number of [MASK] before each word, and before the token after the last; number of spans that cover it
        places = np.zeros((n, length + 1), np.int64)
        covers = np.zeros((n, length + 2), np.int64)
        np.add.at(places, (row, first), 1)
        np.add.at(covers, (row, first), 1)
        np.add.at(covers, (row, first + sizes[row, item]), -1)
        covered = np.cumsum(covers, axis=1) > 0

        # [n, length + 1]: word of each position; the last column is the end of the row
        word = np.pad(np.cumsum(begins, axis=1) - 1, ((0, 0), (0, 1)), mode="edge")
        keep = np.pad(real & ~(inside & np.take_along_axis(covered, np.maximum(word[:, :-1], 0), axis=1)), ((0, 0), (0, 1)))
        ends = np.zeros((n, length + 1), bool)
        ends[:, 1:] = inside
        ends[:, :-1] &= ~inside
        at = np.pad(begins, ((0, 0), (0, 1))) | ends
        masks = np.where(at, np.take_along_axis(places, np.maximum(word + ends, 0), axis=1), 0)
        target = np.cumsum(masks, axis=1) + np.cumsum(keep, axis=1) - 1
        counts = np.count_nonzero(keep, axis=1) + masks.sum(axis=1)
        result = np.where(np.arange(length) < counts[:, None], mask, pad).astype(np.int32)
        row, position = np.nonzero(keep)
        result[row, target[row, position]] = tokens[row, position]
        return result, counts

    def _spans(self, words: np.ndarray, free: np.ndarray, length: int, row_keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Draw the lengths of spans.

        Args:
          words: int64[n], words of each row.
          free: int64[n], unused positions of each row.
          length: Positions of a row.
          row_keys: uint64[n], one per row.

        Returns:
          Lengths in words int64[n, spans], in random order, and a mask of the spans that are used bool[n, spans].
        """
        wanted = np.ceil(self.rate * words).astype(np.int64)
        # So many draws cover enough words even if their sum is eight standard deviations below its mean.
        draws = math.ceil((4 + math.sqrt(16 + self.rate * length + 1)) ** 2 / self.mean_length)
        limits = _poisson_limits(self.mean_length)
        lengths = np.searchsorted(limits, keys.uniform(keys.bits(row_keys, streams.FILL_LENGTHS, draws)), side="right")
        before = np.cumsum(lengths, axis=1) - lengths
        used = before < wanted[:, None]
        lengths = np.where(used, np.minimum(lengths, wanted[:, None] - before), 0)
        # Each replaced word frees a position, and each span's [MASK] takes one.
        inserts = used & (lengths == 0)
        free = free + lengths.sum(axis=1) - np.count_nonzero(lengths, axis=1)
        used &= ~inserts | (np.cumsum(inserts, axis=1) <= free[:, None])
        # Shuffled, so that the shortened span is not always the last of its row.
        order = in_random_order(used, keys.bits(row_keys, streams.FILL_ORDER, draws))
        return np.take_along_axis(lengths, order, axis=1), np.take_along_axis(used, order, axis=1)


@functools.cache
def _poisson_limits(mean: float) -> np.ndarray:
    """Return the cumulative Poisson distribution, up to the precision of doubles: float64[lengths - 1]."""
    lengths = np.arange(int(mean + 12 * math.sqrt(mean) + 30))
    shares = np.exp(lengths * math.log(mean) - mean - np.array([math.lgamma(length + 1) for length in lengths]))
    limits = np.cumsum(shares)[:-1]
    limits.flags.writeable = False
    return limits
