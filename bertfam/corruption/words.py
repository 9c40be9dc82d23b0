"""Which pieces of a row make up a word, for every kind of vocabulary."""

from typing import NamedTuple

import numpy as np

from bertfam.corruption.token_ids import TokenIds
from bertfam.errors import UserError


class Words(NamedTuple):
    """The words of rows. Every control token and every place of padding counts as a word of its own, of size 0.

    Attributes:
      number: int64[n, length], which of its row's words each position belongs to.
      sizes: int64[n, length], how many positions of each word may be predicted; 0 for words that there are not.
    """

    number: np.ndarray
    sizes: np.ndarray

    def begins(self) -> np.ndarray:
        """Where words begin: bool[n, length]."""
        begins = np.ones(self.number.shape, bool)
        begins[:, 1:] = self.number[:, 1:] != self.number[:, :-1]
        return begins

    def run_ends(self) -> np.ndarray:
        """The first word, from each word on, that has nothing to predict: int64[n, length].

        A span of words ends before it: it never passes a control token.
        """
        n, length = self.sizes.shape
        empty = np.where(self.sizes == 0, np.arange(length), length)
        return np.minimum.accumulate(empty[:, ::-1], axis=1)[:, ::-1]


def find_words(rows: dict[str, np.ndarray], tokens: TokenIds) -> Words:
    """Finds the words of rows.

    A position begins a word where its piece does by `tokens.starts_word`, and after a control token or padding. An unknown
    piece is part of its word: the word's other pieces are predicted without it.

    Args:
      rows: `encoder_input_tokens`, `encoder_segment_ids` int32[n, length] and `maskable` bool[n, length].
      tokens: the vocabulary's ids.

    Returns:
      the words.

    Raises:
      UserError: the vocabulary does not say which pieces begin words.
    """
    if len(tokens.starts_word) != tokens.size:
        raise UserError("the vocabulary does not say which pieces begin a word: choose noise that masks single tokens")
    return words_from_starts(tokens.starts_word.take(rows["encoder_input_tokens"]), rows, tokens)


def words_from_starts(starts: np.ndarray, rows: dict[str, np.ndarray], tokens: TokenIds) -> Words:
    """`find_words`, where words begin at `starts` bool[n, length], which is overwritten, and after control tokens and padding."""
    ids, maskable = rows["encoder_input_tokens"], rows["maskable"]
    n, length = ids.shape
    apart = tokens.control.take(ids)
    apart |= rows["encoder_segment_ids"] == 0
    starts |= apart
    starts[:, 1:] |= apart[:, :-1]
    starts[:, :1] = True
    number = np.cumsum(starts, axis=1) - 1
    # Every row begins a word, so no word reaches from one row into the next. Flat: the place in the table of sizes of each
    # position's word, where each word begins (so how long it is), and what cannot be predicted.
    place = (number + np.arange(n)[:, None] * length).ravel()
    begins, unmaskable = np.flatnonzero(starts), np.flatnonzero(~maskable)
    sizes = np.zeros(n * length, np.int64)
    sizes[place[begins]] = np.diff(begins, append=n * length)
    np.subtract.at(sizes, place[unmaskable], 1)
    return Words(number, sizes.reshape(n, length))
