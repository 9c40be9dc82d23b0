"""Masked-language-model noise: BERT's 15 % with 80/10/10 (Devlin et al. 2019, section 3.1 and appendix A.1)."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from bertfam.corruption import keys as random
from bertfam.corruption.token_ids import TokenIds

_CHOOSE, _ACTION, _REPLACEMENT = 1, 2, 3
RandomTokens = Literal["pieces", "vocabulary"]


@dataclass(frozen=True)
class BertMasking:
    """BERT's noise.

    A row of n tokens ([CLS] and [SEP] counted, never chosen) gets min(max_predictions, max(1, round(rate n))) predictions at
    positions drawn without replacement. Each position independently becomes [MASK] with probability `mask_share`, a random
    token with `random_share`, else stays.

    Attributes:
      rate: the share of a row's tokens to predict.
      max_predictions: static number of prediction slots a row; None: rate * length rounded up (20 at 128, 77 at 512).
      mask_share: share of the predictions whose input is [MASK].
      random_share: share of the predictions whose input is a random token.
      random_tokens: "pieces" draws from the vocabulary without its control tokens; "vocabulary" from all of it, as published.
    """

    rate: float = 0.15
    max_predictions: int | None = None
    mask_share: float = 0.8
    random_share: float = 0.1
    random_tokens: RandomTokens = "pieces"

    def __post_init__(self) -> None:
        if self.random_tokens not in get_args(RandomTokens):
            raise ValueError(f"random_tokens {self.random_tokens!r} is not one of {', '.join(get_args(RandomTokens))}")
        if not 0 < self.rate <= 1:
            raise ValueError(f"rate {self.rate} is not in (0, 1]")
        if self.max_predictions is not None and self.max_predictions < 1:
            raise ValueError(f"max_predictions {self.max_predictions} is less than 1")
        if min(self.mask_share, self.random_share) < 0 or self.mask_share + self.random_share > 1:
            raise ValueError(
                f"mask_share {self.mask_share} and random_share {self.random_share} must be >= 0 with a sum of at most 1"
            )

    def predictions(self, length: int) -> int:
        """The static number of prediction slots of a row of `length` tokens."""
        return self.max_predictions or math.ceil(self.rate * length)

    def corrupt(self, rows: dict[str, np.ndarray], keys: np.ndarray, tokens: TokenIds) -> dict[str, np.ndarray]:
        """Masks rows; a pure function of its arguments.

        Args:
          rows: `encoder_input_tokens` int32[n, length], `encoder_segment_ids` int32[n, length] (0 = padding) and
            `maskable` bool[n, length] (False at control tokens, unknown ones and padding), among others, which pass through.
          keys: uint64[n], one a row.
          tokens: the vocabulary's ids.

        Returns:
          rows without `maskable`, with corrupted `encoder_input_tokens` and with `masked_positions`, `masked_target_tokens`
          and `masked_loss_weights` [n, predictions].
        """
        original = rows["encoder_input_tokens"]
        maskable = rows["maskable"]
        n, length = original.shape
        slots = self.predictions(length)

        # np.rint rounds half to even, as Python's round in the published code does.
        real = np.count_nonzero(rows["encoder_segment_ids"], axis=1)
        wanted = np.minimum(slots, np.maximum(1, np.rint(self.rate * real).astype(np.int64)))
        wanted = np.minimum(wanted, np.count_nonzero(maskable, axis=1))
        positions, used = _choose(maskable, wanted, slots, random.bits(keys, _CHOOSE, length))

        # [n, predictions]
        targets = np.where(used, np.take_along_axis(original, positions, axis=1), tokens.pad).astype(np.int32)
        action = random.uniform(random.bits(keys, _ACTION, slots))
        pool = tokens.pieces if self.random_tokens == "pieces" else np.arange(tokens.size)
        drawn = pool[random.integers(random.bits(keys, _REPLACEMENT, slots), len(pool))]
        replacement = np.where(action < self.mask_share, tokens.need("mask", "BertMasking"), targets)
        is_random = (action >= self.mask_share) & (action < self.mask_share + self.random_share)
        replacement = np.where(is_random, drawn, replacement)

        corrupted = original.copy()
        row, slot = np.nonzero(used)
        corrupted[row, positions[row, slot]] = replacement[row, slot]
        result = {name: value for name, value in rows.items() if name != "maskable"}
        result["encoder_input_tokens"] = corrupted
        result["masked_positions"] = positions.astype(np.int32)
        result["masked_target_tokens"] = targets
        result["masked_loss_weights"] = used.astype(np.float32)
        return result


def _choose(maskable: np.ndarray, wanted: np.ndarray, slots: int, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Draws `wanted` maskable positions a row without replacement, ascending; unused slots hold 0.

    Returns:
      positions int64[n, slots] and used bool[n, slots].
    """
    n, length = maskable.shape
    # The low bits carry the position: scores of a row never tie, and a sort gives the position back without an argsort.
    width = np.uint64(length - 1).item().bit_length()
    low = np.uint64((1 << width) - 1)
    scores = (words | low) ^ low | np.arange(length, dtype=np.uint64)
    scores[~maskable] |= ~low
    if slots < length:
        scores = np.partition(scores, slots - 1, axis=1)[:, :slots]
    scores.sort(axis=1)
    positions = (scores & low).astype(np.int64)
    if slots > length:
        positions = np.pad(positions, ((0, 0), (0, slots - length)))
    used = np.arange(slots) < wanted[:, None]
    positions = np.where(used, positions, length)
    positions.sort(axis=1)
    return np.where(used, positions, 0), used
