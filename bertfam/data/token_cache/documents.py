"""Tokenised documents: flat tokens with the starts of sentences and documents."""

from dataclasses import dataclass

import numpy as np

_PARTS, _PART = 64, 1 << 20  # what is read of a long text to count its tokens


@dataclass(frozen=True)
class Documents:
    """One split of a cache, or any documents of the same form.

    Attributes:
      name: what to call it in messages.
      tokens: uint[tokens].
      sentence_starts: int64[sentences + 1], where each sentence begins in `tokens`, and the end.
      sentence_bounds: int64[documents + 1], which sentence each document begins with, and the end.
      units: uint8[tokens], which phrases and entities the tokens are part of (see `bertfam.corruption.masked_lm.units`); None
      where the
        text has no marks.
      pairs: whether each document is a pair: two sentences, inputs (perhaps without a token) and targets.
    """

    name: str
    tokens: np.ndarray
    sentence_starts: np.ndarray
    sentence_bounds: np.ndarray
    units: np.ndarray | None = None
    pairs: bool = False

    def __len__(self) -> int:
        return len(self.sentence_bounds) - 1

    def token_counts(self, size: int) -> np.ndarray:
        """How often each token is in the text, or where it is long in parts of it, 67 million tokens together: int64[size]."""
        whole = len(self.tokens) <= _PARTS * _PART
        starts = np.zeros(1, int) if whole else np.linspace(0, len(self.tokens) - _PART, _PARTS).astype(int)
        length = len(self.tokens) if whole else _PART
        counts = (np.bincount(self.tokens[start : start + length], minlength=size) for start in starts)
        return np.sum(list(counts), axis=0)
