"""Shuffling of windows among the tokens that are not masked: StructBERT's trigrams (Wang et al. 2020, section 2.1)."""

import math
from dataclasses import dataclass
from typing import get_args

import numpy as np

from bertfam.corruption import keys
from bertfam.corruption.masked_lm.budgets import Rounding, budget
from bertfam.corruption.masked_lm.selection import Selection, to_slots
from bertfam.corruption.permutations import group_shuffle, select_windows

_KEY = 0x5B0F  # folded into the keys, so that the draws are independent of those of the masks


@dataclass(frozen=True)
class ShuffledWindows:
    """Shuffled windows of neighbouring tokens; all tokens of a window are predicted.

    A row of n tokens, including [CLS] and [SEP], has rate n / size windows, at least one, or as many as fit. Windows do not
    overlap. They hold only text: no position that the masking selected (whatever its input), no [CLS], [SEP], unknown token or
    padding, so that each lies within A or within B. All orders are equally likely, including the original one: of three tokens
    one keeps its place on average, and one window in six is unchanged. (The paper does not say whether 5 % counts tokens or
    trigrams; here it counts tokens.)

    Attributes:
      rate: Share of a row's tokens to shuffle.
      size: Tokens in a window.
      rounding: Rounding of rate n / size: "random", so that the mean is exact, "nearest" or "up".
    """

    rate: float = 0.05
    size: int = 3
    rounding: Rounding = "random"

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ValueError(f"rate {self.rate} is not in (0, 1]")
        if not 2 <= self.size <= 100:
            raise ValueError(f"size {self.size} is not between 2 and 100 tokens")
        if self.rounding not in get_args(Rounding):
            raise ValueError(f"rounding {self.rounding!r} is not one of {', '.join(get_args(Rounding))}")

    def predictions(self, length: int) -> int:
        """Return the static number of prediction slots in a row of `length` tokens."""
        return self.size * self._most(length)

    def shuffle(
        self, tokens: np.ndarray, allowed: np.ndarray, counted: np.ndarray, row_keys: np.ndarray
    ) -> tuple[np.ndarray, Selection]:
        """Shuffle rows; a pure function of its arguments.

        Args:
          tokens: int32[n, length], left unchanged.
          allowed: bool[n, length], True at tokens that may be shuffled.
          counted: int[n], tokens of each row.
          row_keys: uint64[n], one per row.

        Returns:
          The tokens in their new order int32[n, length], and the positions of all windows.
        """
        row_keys, most = keys.fold(row_keys, _KEY), self._most(tokens.shape[1])
        wanted = np.minimum(most, budget(self.rate / self.size, counted, self.rounding, row_keys))
        groups = select_windows(allowed, self.size, wanted, row_keys)
        chosen = to_slots(groups >= 0, groups, self.size * most)
        return np.take_along_axis(tokens, group_shuffle(groups, row_keys), axis=1), chosen

    def _most(self, length: int) -> int:
        """Return the maximum number of windows in a row of `length` tokens."""
        return max(1, math.ceil(self.rate / self.size * length))
