"""Selection of spans and n-grams of whole words to predict."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from bertfam.corruption import keys, streams
from bertfam.corruption.masked_lm.selection import Choice, Selection, room_for_one, to_slots
from bertfam.corruption.sampling import in_random_order
from bertfam.corruption.token_ids import TokenIds
from bertfam.corruption.words import find_words

_MOST_WORDS = 1000


def _check_longest(words: int) -> None:
    if not 1 <= words <= _MOST_WORDS:
        raise ValueError(f"longest {words} is not between 1 and {_MOST_WORDS} words")


@dataclass(frozen=True)
class WordSpans(Choice):
    """Spans of whole words: SpanBERT (Joshi et al. 2020, section 3.1).

    A span has l words, with P(l) proportional to p (1 - p)^(l - 1) on 1 .. longest; its mean is 3.797 for 0.2 and 10. It begins
    at the word of an anchor, drawn uniformly from the tokens that are not selected yet. It skips selected tokens, and ends early
    at the end of the text or, within a word, when the budget is spent. Adjacent spans form one span.

    Attributes:
      p: Parameter of the geometric distribution.
      longest: Words in the longest span.
    """

    merges: ClassVar[bool] = True

    p: float = 0.2
    longest: int = 10

    def __post_init__(self) -> None:
        if not 0 < self.p < 1:
            raise ValueError(f"p {self.p} is not in (0, 1)")
        _check_longest(self.longest)

    def lengths(self, words: np.ndarray) -> np.ndarray:
        """Map random words uint64[...] to lengths of spans int64[...]."""
        shares = (1 - self.p) ** np.arange(self.longest)
        limits = np.cumsum(shares / shares.sum())[:-1]
        return 1 + np.searchsorted(limits, keys.uniform(words), side="right")

    @override
    def choose(
        self, rows: dict[str, np.ndarray], wanted: np.ndarray, slots: int, row_keys: np.ndarray, tokens: TokenIds
    ) -> Selection:
        words, maskable = find_words(rows, tokens), rows["maskable"]
        length = maskable.shape[1]
        run_ends = words.run_ends()
        # The next open token in a random order is uniform over all open tokens.
        anchors = in_random_order(maskable, keys.bits(row_keys, streams.SELECTION, length))
        draws = keys.bits(row_keys, streams.SPAN_LENGTHS, length)
        room = np.minimum(wanted, np.count_nonzero(maskable, axis=1))
        # Open positions of each word, padded because a span may extend past the last word.
        left = np.pad(words.sizes, ((0, 0), (0, self.longest)))
        step = np.arange(self.longest)
        for rank in range(length):
            active = np.flatnonzero(room)
            if not active.size:
                break
            word = words.number[active, anchors[active, rank]]
            is_open = left[active, word] > 0
            active, word = active[is_open], word[is_open]
            end = np.minimum(word + self.lengths(draws[active, rank]), run_ends[active, word])
            # [active, longest]: words of the span, and the number of positions taken from each
            span = (active[:, None], word[:, None] + step)
            open_ = np.where(span[1] < end[:, None], left[span], 0)
            taken = np.clip(room[active, None] - (np.cumsum(open_, axis=1) - open_), 0, open_)
            left[span] -= taken
            room[active] -= taken.sum(axis=1)
        # [n, length]: a word of which only a part is taken loses its first positions.
        number = np.cumsum(maskable, axis=1)
        before = np.cumsum(words.sizes, axis=1) - left[:, :length]
        chosen = maskable & (number <= np.take_along_axis(before, words.number, axis=1))
        begins = chosen.copy()
        begins[:, 1:] &= ~chosen[:, :-1]
        return to_slots(chosen, np.cumsum(begins, axis=1), slots)


@dataclass(frozen=True)
class WordNgrams(Choice):
    """N-grams of whole words: ALBERT (Lan et al. 2020, section 4.1).

    The words of a row are visited in random order, each as the first of an n-gram with P(n) proportional to 1/n on 1 .. longest
    (6/11, 3/11 and 2/11), or on the number of words up to the end of the text. An n-gram that would exceed the budget loses words
    from its end; one that contains a selected token is skipped. If every word exceeds the budget, the rule of `WholeWords`
    applies.

    Attributes:
      longest: Words in the longest n-gram.
    """

    longest: int = 3

    def __post_init__(self) -> None:
        _check_longest(self.longest)

    def lengths(self, words: np.ndarray, available: np.ndarray) -> np.ndarray:
        """Map random words uint64[...] to n in 1 .. min(longest, available) int64[...], for available >= 1."""
        harmonic = np.cumsum(1 / np.arange(1, self.longest + 1))
        drawn = keys.uniform(words) * harmonic[np.minimum(available, self.longest) - 1]
        return 1 + np.searchsorted(harmonic[:-1], drawn, side="right")

    @override
    def choose(
        self, rows: dict[str, np.ndarray], wanted: np.ndarray, slots: int, row_keys: np.ndarray, tokens: TokenIds
    ) -> Selection:
        words = find_words(rows, tokens)
        n, length = words.sizes.shape
        order = in_random_order(words.sizes > 0, keys.bits(row_keys, streams.SELECTION, length))
        available = np.take_along_axis(words.run_ends() - np.arange(length), order, axis=1)
        draws = keys.bits(row_keys, streams.SPAN_LENGTHS, length)
        step = np.arange(self.longest)
        # Tokens before each word, and number of its n-gram (0 = none), both padded as far as an n-gram may extend.
        before = np.pad(np.cumsum(words.sizes, axis=1), ((0, 0), (1, self.longest)), mode="edge")
        before[:, 0] = 0
        grams = np.zeros((n, length + self.longest), np.int64)
        room = room_for_one(words.sizes, wanted, slots)
        for rank in range(length):
            active = np.flatnonzero((room > 0) & (available[:, rank] > 0))
            if not active.size:
                break
            count = self.lengths(draws[active, rank], available[active, rank])
            # [active, longest]: words that the n-gram may include, and its size up to each of them
            word = order[active, rank, None]
            gram = (active[:, None], word + step)
            sizes = before[gram[0], gram[1] + 1] - before[gram[0], word]
            taken = (sizes <= room[active, None]) & (step < count[:, None])
            taken[(taken & (grams[gram] > 0)).any(axis=1)] = False
            grams[gram] += (rank + 1) * taken
            room[active] -= (sizes * taken).max(axis=1)
        of_position = np.take_along_axis(grams, words.number, axis=1)
        return to_slots(rows["maskable"] & (of_position > 0), of_position, slots)
