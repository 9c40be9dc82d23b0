"""Grouping of the pieces of a row into words, for every kind of vocabulary."""

from typing import NamedTuple

import numpy as np

from bertfam.corruption.token_ids import TokenIds
from bertfam.errors import UserError


class Words(NamedTuple):
    """Words of rows; each control token and each position of padding counts as a word of size 0.

    Attributes:
      number: int64[n, length], index of the word that each position belongs to.
      sizes: int64[n, length], number of positions of each word that may be predicted; 0 for indices without a word.
    """

    number: np.ndarray
    sizes: np.ndarray

    def begins(self) -> np.ndarray:
        """Return True where words begin: bool[n, length]."""
        begins = np.ones(self.number.shape, bool)
        begins[:, 1:] = self.number[:, 1:] != self.number[:, :-1]
        return begins

    def run_ends(self) -> np.ndarray:
        """Return the first word of size 0 at or after each word: int64[n, length].

        A span of words ends before it, and thus never crosses a control token.
        """
        n, length = self.sizes.shape
        empty = np.where(self.sizes == 0, np.arange(length), length)
        return np.minimum.accumulate(empty[:, ::-1], axis=1)[:, ::-1]


def find_words(rows: dict[str, np.ndarray], tokens: TokenIds) -> Words:
    """Find the words of rows.

    A position begins a word if `tokens.starts_word` marks its piece, or after a control token or padding. An unknown piece
    belongs to its word but is not predicted with the word's other pieces.

    Args:
      rows: `encoder_input_tokens`, `encoder_segment_ids` int32[n, length] and `maskable` bool[n, length].
      tokens: Ids of the vocabulary.

    Raises:
      UserError: The vocabulary does not mark the pieces that begin words.
    """
    if len(tokens.starts_word) != tokens.size:
        raise UserError("the vocabulary does not mark the pieces that begin a word: choose noise that masks single tokens")
    return words_from_starts(tokens.starts_word.take(rows["encoder_input_tokens"]), rows, tokens)


def words_from_starts(starts: np.ndarray, rows: dict[str, np.ndarray], tokens: TokenIds) -> Words:
    """Find words as `find_words` does, given the pieces that begin words: `starts` bool[n, length], which is overwritten."""
    ids, maskable = rows["encoder_input_tokens"], rows["maskable"]
    n, length = ids.shape
    apart = tokens.control.take(ids)
    apart |= rows["encoder_segment_ids"] == 0
    starts |= apart
    starts[:, 1:] |= apart[:, :-1]
    starts[:, :1] = True
    number = np.cumsum(starts, axis=1) - 1
    # Every row begins a word, so no word extends into the next row. All flat: the index of each position's word in the table of
    # sizes, the positions at which words begin (whose differences are their lengths), and positions that cannot be predicted.
    place = (number + np.arange(n)[:, None] * length).ravel()
    begins, unmaskable = np.flatnonzero(starts), np.flatnonzero(~maskable)
    sizes = np.zeros(n * length, np.int64)
    sizes[place[begins]] = np.diff(begins, append=n * length)
    np.subtract.at(sizes, place[unmaskable], 1)
    return Words(number, sizes.reshape(n, length))
