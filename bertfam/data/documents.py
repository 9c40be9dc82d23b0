"""Tokenised documents: flat tokens with the starts of sentences and documents."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Documents:
    """One split of a cache, or any documents of the same form.

    Attributes:
      name: what to call it in messages.
      tokens: uint[tokens].
      sentence_starts: int64[sentences + 1], where each sentence begins in `tokens`, and the end.
      sentence_bounds: int64[documents + 1], which sentence each document begins with, and the end.
      units: uint8[tokens], which phrases and entities the tokens are part of (see `bertfam.corruption.units`); None where the
        text has no marks.
    """

    name: str
    tokens: np.ndarray
    sentence_starts: np.ndarray
    sentence_bounds: np.ndarray
    units: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.sentence_bounds) - 1
