"""Selection of the positions to predict: single tokens or whole words (for spans and n-grams see `span_selection`)."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from typing_extensions import override

from bertfam.corruption import keys, streams
from bertfam.corruption.sampling import draw_positions, in_random_order
from bertfam.corruption.token_ids import TokenIds
from bertfam.corruption.words import Words, find_words


class Selection(NamedTuple):
    """Positions to predict, ascending, in prediction slots.

    Attributes:
      positions: int64[n, slots]; 0 in unused slots, which come last.
      used: bool[n, slots].
      leads: int64[n, slots], slot of the first token of the unit (word, n-gram or span) that a slot belongs to.
    """

    positions: np.ndarray
    used: np.ndarray
    leads: np.ndarray

    def unit_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the first and the last position of the unit of each slot: int64[n, slots] each."""
        slots = np.arange(self.leads.shape[1])
        last = np.zeros_like(self.leads)
        row, slot = np.nonzero(self.used)
        np.maximum.at(last, (row, self.leads[row, slot]), slots[slot])
        last = np.take_along_axis(last, self.leads, axis=1)
        return np.take_along_axis(self.positions, self.leads, axis=1), np.take_along_axis(self.positions, last, axis=1)


class Choice(ABC):
    """Base class of the rules that select the positions to predict; a subclass is a frozen dataclass.

    Attributes:
      merges: True if adjacent units are merged, so that no position next to a unit is selected.
      needs_units: True if it reads marks of phrases and entities.
      needs_counts: True if it requires `fit`.
    """

    merges: ClassVar[bool] = False
    needs_units: ClassVar[bool] = False
    needs_counts: ClassVar[bool] = False

    def fit(self, counts: np.ndarray) -> "Choice":
        """Return the rule fitted to a text, given the counts of the vocabulary's tokens in it: int64[vocabulary]."""
        return self

    @abstractmethod
    def choose(
        self, rows: dict[str, np.ndarray], wanted: np.ndarray, slots: int, row_keys: np.ndarray, tokens: TokenIds
    ) -> Selection:
        """Select about `wanted` int64[n] positions of each row, at most `slots`; `rows` is as in `BertMasking.corrupt`."""


@dataclass(frozen=True)
class SingleTokens(Choice):
    """Single tokens, as in BERT: every set of `wanted` maskable positions is equally likely."""

    @override
    def choose(
        self, rows: dict[str, np.ndarray], wanted: np.ndarray, slots: int, row_keys: np.ndarray, tokens: TokenIds
    ) -> Selection:
        maskable = rows["maskable"]
        words = keys.bits(row_keys, streams.SELECTION, maskable.shape[1])
        positions, used = draw_positions(maskable, np.minimum(wanted, np.count_nonzero(maskable, axis=1)), slots, words)
        return Selection(positions, used, np.broadcast_to(np.arange(slots), used.shape))


@dataclass(frozen=True)
class WithReplacement(Choice):
    """Single tokens drawn with replacement (ELECTRA, as in the published code).

    Each of `wanted` draws is from all maskable positions, and a position that is drawn twice is predicted once. A row therefore
    has fewer predictions than `wanted`: k draws from m positions give m (1 - (1 - 1 / m) ** k) on average.
    """

    @override
    def choose(
        self, rows: dict[str, np.ndarray], wanted: np.ndarray, slots: int, row_keys: np.ndarray, tokens: TokenIds
    ) -> Selection:
        maskable = rows["maskable"]
        counts = np.count_nonzero(maskable, axis=1)
        # [n, slots]: index among the maskable positions, then the position
        nth = keys.integers(keys.bits(row_keys, streams.SELECTION, slots), np.maximum(counts, 1)[:, None])
        positions = np.take_along_axis(np.argsort(~maskable, axis=1, kind="stable"), nth, axis=1)
        row, draw = np.nonzero((np.arange(slots) < wanted[:, None]) & (counts > 0)[:, None])
        chosen = np.zeros(maskable.shape, bool)
        chosen[row, positions[row, draw]] = True
        return to_slots(chosen, np.broadcast_to(np.arange(maskable.shape[1]), maskable.shape), slots)


@dataclass(frozen=True)
class RareTokens(Choice):
    """Single tokens, with rare ones drawn more often: DistilBERT's masking, as in the published code (Sanh et al. 2019).

    The positions of a row are drawn one after another without replacement, each with a probability proportional to
    max(1, count) ** -exponent, where count is the number of occurrences of its token in the training text. The published code
    draws 15 % of the tokens of a whole batch at once, so a row with many rare tokens gets more predictions. Here each row has its
    own budget, since noise is a function of a single row: rare tokens are favoured within a row, but not one row over another.

    Attributes:
      exponent: 0 is equivalent to `SingleTokens`; 1 gives every token of the vocabulary about the same number of predictions.
    """

    needs_counts: ClassVar[bool] = True

    exponent: float = 0.7

    def __post_init__(self) -> None:
        if not 0 <= self.exponent < math.inf:
            raise ValueError(f"exponent {self.exponent} must be a number of at least 0")

    @override
    def fit(self, counts: np.ndarray) -> "WeightedTokens":
        return WeightedTokens(np.maximum(counts, 1).astype(np.float64) ** -self.exponent)

    @override
    def choose(
        self, rows: dict[str, np.ndarray], wanted: np.ndarray, slots: int, row_keys: np.ndarray, tokens: TokenIds
    ) -> Selection:
        raise AssertionError("call `fit` first")


@dataclass(frozen=True, eq=False)
class WeightedTokens(Choice):
    """Single tokens drawn one after another without replacement, in proportion to their weights (see `RareTokens`).

    Attributes:
      weights: float64[vocabulary], all positive.
    """

    weights: np.ndarray

    @override
    def choose(
        self, rows: dict[str, np.ndarray], wanted: np.ndarray, slots: int, row_keys: np.ndarray, tokens: TokenIds
    ) -> Selection:
        maskable = rows["maskable"]
        # Positions in the order of exponential variables of mean 1 / weight are such a sample (Efraimidis and Spirakis 2006).
        waits = -np.log1p(-keys.uniform(keys.bits(row_keys, streams.SELECTION, maskable.shape[1])))
        waits /= self.weights[rows["encoder_input_tokens"]]
        # Nonnegative floats are ordered as their bits.
        words = waits.view(np.uint64)
        positions, used = draw_positions(maskable, np.minimum(wanted, np.count_nonzero(maskable, axis=1)), slots, words)
        return Selection(positions, used, np.broadcast_to(np.arange(slots), used.shape))


@dataclass(frozen=True)
class WholeWords(Choice):
    """Whole words: BERT's whole word masking (Devlin et al., published with the code in May 2019).

    Words are selected in random order, and one that would exceed the budget is skipped. If every word exceeds it, the first of
    the smallest words is selected anyway, provided that the slots suffice, so that no row is without a prediction.
    """

    @override
    def choose(
        self, rows: dict[str, np.ndarray], wanted: np.ndarray, slots: int, row_keys: np.ndarray, tokens: TokenIds
    ) -> Selection:
        return whole_words(find_words(rows, tokens), rows["maskable"], wanted, slots, row_keys)


def whole_words(words: Words, maskable: np.ndarray, wanted: np.ndarray, slots: int, row_keys: np.ndarray) -> Selection:
    """Select whole words in random order (see `WholeWords`).

    Args:
      words: Words of the rows.
      maskable: bool[n, length], True at the positions that may be predicted.
      wanted: int64[n], the budget.
      slots: Number of prediction slots.
      row_keys: uint64[n], one per row.
    """
    n, length = words.sizes.shape
    order = in_random_order(words.sizes > 0, keys.bits(row_keys, streams.SELECTION, length))
    # [length, n]: sizes of the words in this order
    sizes = np.ascontiguousarray(np.take_along_axis(words.sizes, order, axis=1).T)
    taken = np.zeros((length, n), bool)
    room = room_for_one(words.sizes, wanted, slots)
    for rank in range(length):
        taken[rank] = sizes[rank] <= room
        room -= sizes[rank] * taken[rank]
        if not room.any() or not sizes[rank].any():
            break
    of_word = np.zeros((n, length), bool)
    np.put_along_axis(of_word, order, taken.T, axis=1)
    return to_slots(maskable & np.take_along_axis(of_word, words.number, axis=1), words.number, slots)


def room_for_one(sizes: np.ndarray, wanted: np.ndarray, slots: int) -> np.ndarray:
    """Return the budget, raised to the size of the smallest word where that is larger and the slots suffice: int64[n].

    Args:
      sizes: int64[n, words], 0 where there is no word.
      wanted: int64[n], the budget.
      slots: Number of prediction slots.
    """
    smallest = np.where(sizes > 0, sizes, slots + 1).min(axis=1)
    return np.where(smallest <= slots, np.maximum(wanted, smallest), wanted)


def to_slots(chosen: np.ndarray, units: np.ndarray, slots: int) -> Selection:
    """Assign selected positions to prediction slots.

    Args:
      chosen: bool[n, length], at most `slots` per row.
      units: int[n, length]; neighbouring selected positions with the same number belong to one unit.
      slots: Number of prediction slots.
    """
    row, position = np.nonzero(chosen)
    counts = np.count_nonzero(chosen, axis=1)
    begins = np.cumsum(counts) - counts
    positions = np.zeros((len(chosen), slots), np.int64)
    slot = np.arange(slots)
    used = slot < counts[:, None]
    positions[row, np.arange(len(row)) - np.repeat(begins, counts)] = position
    numbers = np.take_along_axis(units, positions, axis=1)
    opens = np.ones(used.shape, bool)
    opens[:, 1:] = (numbers[:, 1:] != numbers[:, :-1]) | ~used[:, 1:]
    return Selection(positions, used, np.maximum.accumulate(np.where(opens, slot, 0), axis=1))
