"""Tokenised documents: flat tokens with the starts of sentences and documents."""

from dataclasses import dataclass

import numpy as np

from bertfam.data.token_cache.digests import CheckedArray

_PARTS, _PART = 64, 1 << 20  # the number and the tokens of the parts of a long text in which tokens are counted


@dataclass(frozen=True)
class Documents:
    """Documents of one split of a cache, or any documents of the same form.

    Attributes:
      name: name in messages.
      tokens: uint[tokens]; those of a cache are checked when they are first read.
      sentence_starts: int64[sentences + 1], the start of each sentence in `tokens`, and the end.
      sentence_bounds: int64[documents + 1], the first sentence of each document, and the number of sentences.
      units: uint8[tokens], marks of the phrases and entities that the tokens belong to (see
        `bertfam.corruption.masked_lm.units`); None if the text has no marks.
      pairs: True if each document is a pair: two sentences, inputs (possibly without tokens) and targets.
    """

    name: str
    tokens: np.ndarray | CheckedArray
    sentence_starts: np.ndarray
    sentence_bounds: np.ndarray
    units: np.ndarray | CheckedArray | None = None
    pairs: bool = False

    def __len__(self) -> int:
        return len(self.sentence_bounds) - 1

    def token_counts(self, size: int) -> np.ndarray:
        """Count each token, in evenly spaced parts of 67 million tokens in all if the text is longer: int64[size]."""
        whole = len(self.tokens) <= _PARTS * _PART
        starts = np.zeros(1, int) if whole else np.linspace(0, len(self.tokens) - _PART, _PARTS).astype(int)
        length = len(self.tokens) if whole else _PART
        counts = (np.bincount(self.tokens[start : start + length], minlength=size) for start in starts)
        return np.sum(list(counts), axis=0)
