"""Text infilling: spans of any length, none included, become one [MASK] each (BART, Lewis et al. 2020, section 2.2)."""

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

    Lengths are drawn until they hold ceil(rate W) of a row's W words; the last is cut to that. A length of 0 puts a [MASK]
    between words. Spans do not overlap, every arrangement of spans and other words is equally likely, and spans that touch are
    two [MASK]. (In fairseq spans overlap, and one that runs into the next swallows its [MASK].)

    Attributes:
      rate: the share of words that is taken out.
      mean_length: words of a span in the mean (lambda).
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
        # A [MASK] that would make a row too long is left out.
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

        # A row is a sequence of items, each a span or a word that stays: which are spans? [n, items]
        spans_of, taken = np.count_nonzero(used, axis=1), spans.sum(axis=1)
        width = length + spans.shape[1]
        items = np.arange(width) < (words - taken + spans_of)[:, None]
        is_span = draw(items, spans_of, keys.bits(row_keys, streams.FILL_PLACES, width))
        sizes = items.astype(np.int64)
        row, item = np.nonzero(is_span)
        sizes[row, item] = spans[used]
        first = (np.cumsum(sizes, axis=1) - sizes)[row, item]

        # [n, words + 1]: how many [MASK] stand before each word and before what follows the last; how many spans cover it
        places = np.zeros((n, length + 1), np.int64)
        covers = np.zeros((n, length + 2), np.int64)
        np.add.at(places, (row, first), 1)
        np.add.at(covers, (row, first), 1)
        np.add.at(covers, (row, first + sizes[row, item]), -1)
        covered = np.cumsum(covers, axis=1) > 0

        # [n, length + 1]: each position's word, and what follows the text; the last column is the end of the row
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
        """Draws the lengths of spans int64[n, spans] in words, in random order; which are used bool[n, spans].

        Args: words int64[n] and free places int64[n] of each row, places of a row, row_keys uint64[n].
        """
        wanted = np.ceil(self.rate * words).astype(np.int64)
        # So many draws hold enough words even when their sum is eight standard deviations below its mean.
        draws = math.ceil((4 + math.sqrt(16 + self.rate * length + 1)) ** 2 / self.mean_length)
        limits = _poisson_limits(self.mean_length)
        lengths = np.searchsorted(limits, keys.uniform(keys.bits(row_keys, streams.FILL_LENGTHS, draws)), side="right")
        before = np.cumsum(lengths, axis=1) - lengths
        used = before < wanted[:, None]
        lengths = np.where(used, np.minimum(lengths, wanted[:, None] - before), 0)
        # Each word taken out leaves a place free, but for the span's [MASK].
        inserts = used & (lengths == 0)
        free = free + lengths.sum(axis=1) - np.count_nonzero(lengths, axis=1)
        used &= ~inserts | (np.cumsum(inserts, axis=1) <= free[:, None])
        # The last span, which was cut, must not be the last in the row.
        order = in_random_order(used, keys.bits(row_keys, streams.FILL_ORDER, draws))
        return np.take_along_axis(lengths, order, axis=1), np.take_along_axis(used, order, axis=1)


@functools.cache
def _poisson_limits(mean: float) -> np.ndarray:
    """Where a uniform number passes from each length to the next: float64[lengths - 1], cut where doubles see no more."""
    lengths = np.arange(int(mean + 12 * math.sqrt(mean) + 30))
    shares = np.exp(lengths * math.log(mean) - mean - np.array([math.lgamma(length + 1) for length in lengths]))
    limits = np.cumsum(shares)[:-1]
    limits.flags.writeable = False
    return limits
