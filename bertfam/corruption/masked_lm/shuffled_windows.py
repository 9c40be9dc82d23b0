"""Windows of tokens in another order, among what is not masked: StructBERT's trigrams (Wang et al. 2020, section 2.1)."""

import math
from dataclasses import dataclass
from typing import get_args

import numpy as np

from bertfam.corruption import keys
from bertfam.corruption.masked_lm.budgets import Rounding, budget
from bertfam.corruption.masked_lm.selection import Selection, to_slots
from bertfam.corruption.permutations import group_shuffle, select_windows

_KEY = 0x5B0F  # what keys are folded with, so that no draw of the masks is read again


@dataclass(frozen=True)
class ShuffledWindows:
    """Shuffles windows of neighbouring tokens; all tokens of a window are predicted.

    A row of n tokens ([CLS] and [SEP] counted) has rate n / size windows, at least one, or as many as fit: they do not overlap,
    and hold text alone, nothing that the masking chose (whatever stands there), no [CLS], [SEP], unknown text or padding, so that
    they lie within A or within B. All orders are equally likely, the old one too: of three tokens one stays in its place in the
    mean, and one window in six stays as it was. (The paper leaves open whether 5 % are tokens or trigrams; here they are tokens.)

    Attributes:
      rate: the share of a row's tokens to shuffle.
      size: tokens of a window.
      rounding: of rate n / size: "random", so that the mean is exact, "nearest" or "up".
    """

    rate: float = 0.05
    size: int = 3
    rounding: Rounding = "random"

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ValueError(f"rate {self.rate} is not in (0, 1]")
        if not 2 <= self.size <= 100:
            raise ValueError(f"size {self.size} is not among 2 to 100 tokens")
        if self.rounding not in get_args(Rounding):
            raise ValueError(f"rounding {self.rounding!r} is not one of {', '.join(get_args(Rounding))}")

    def predictions(self, length: int) -> int:
        """The static number of prediction slots of a row of `length` tokens."""
        return self.size * self._most(length)

    def shuffle(
        self, tokens: np.ndarray, allowed: np.ndarray, counted: np.ndarray, row_keys: np.ndarray
    ) -> tuple[np.ndarray, Selection]:
        """Shuffles rows; a pure function of its arguments.

        Args:
          tokens: int32[n, length], not changed.
          allowed: bool[n, length], what may be shuffled.
          counted: int[n], tokens of each row.
          row_keys: uint64[n], one a row.

        Returns:
          the tokens in their new order int32[n, length], and the positions of all windows.
        """
        row_keys, most = keys.fold(row_keys, _KEY), self._most(tokens.shape[1])
        wanted = np.minimum(most, budget(self.rate / self.size, counted, self.rounding, row_keys))
        groups = select_windows(allowed, self.size, wanted, row_keys)
        chosen = to_slots(groups >= 0, groups, self.size * most)
        return np.take_along_axis(tokens, group_shuffle(groups, row_keys), axis=1), chosen

    def _most(self, length: int) -> int:
        """The most windows of a row of `length` tokens."""
        return max(1, math.ceil(self.rate / self.size * length))
