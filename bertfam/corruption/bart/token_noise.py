"""Token masking, deletion and insertion in rows between control tokens (BART, Lewis et al. 2020, section 2.2)."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from typing_extensions import override

from bertfam.corruption import keys, streams
from bertfam.corruption.masked_lm.replacement import mask_tokens
from bertfam.corruption.sampling import compact, draw
from bertfam.corruption.token_ids import TokenIds


class FramedRows(NamedTuple):
    """Rows of text between two control tokens.

    Attributes:
      tokens: int32[n, length].
      inside: bool[n, length], True at the text of each row, which is contiguous; the tokens around it are kept.
      begins: bool[n, length], True where words begin.
      real: bool[n, length], False at padding, which ends a row.
    """

    tokens: np.ndarray
    inside: np.ndarray
    begins: np.ndarray
    real: np.ndarray


class TokenNoise(ABC):
    """Base class of noise that replaces or removes tokens; no row grows beyond its length."""

    @abstractmethod
    def apply(self, rows: FramedRows, row_keys: np.ndarray, tokens: TokenIds) -> tuple[np.ndarray, np.ndarray]:
        """Apply the noise to rows.

        Args:
          rows: Clean rows.
          row_keys: uint64[n], one per row.
          tokens: Ids of the vocabulary.

        Returns:
          The corrupted rows int32[n, length], and the number of tokens in each int64[n].
        """


@dataclass(frozen=True)
class TokenMasking(TokenNoise):
    """Token masking: ceil(rate n) of a text's n tokens become [MASK]; all sets of so many tokens are equally likely.

    Attributes:
      rate: Share of the tokens.
      random_share: Share of these that become a random piece instead.
    """

    rate: float = 0.3
    random_share: float = 0.0

    def __post_init__(self) -> None:
        _check_rate(self.rate)
        if not 0 <= self.random_share <= 1:
            raise ValueError(f"random_share {self.random_share} is not in [0, 1]")

    @override
    def apply(self, rows: FramedRows, row_keys: np.ndarray, tokens: TokenIds) -> tuple[np.ndarray, np.ndarray]:
        mask, chosen = tokens.require("mask", "TokenMasking"), _chosen(self.rate, rows.inside, row_keys)
        result = mask_tokens(rows.tokens, chosen, row_keys, mask=mask, random_share=self.random_share, random_ids=tokens.pieces)
        return result, np.count_nonzero(rows.real, axis=1)


@dataclass(frozen=True)
class TokenDeletion(TokenNoise):
    """Token deletion: ceil(rate n) of a text's n tokens are removed; all sets of so many tokens are equally likely.

    Attributes:
      rate: Share of the tokens.
    """

    rate: float = 0.3

    def __post_init__(self) -> None:
        _check_rate(self.rate)

    @override
    def apply(self, rows: FramedRows, row_keys: np.ndarray, tokens: TokenIds) -> tuple[np.ndarray, np.ndarray]:
        keep = rows.real & ~_chosen(self.rate, rows.inside, row_keys)
        return compact(rows.tokens, keep, keep.shape[1], tokens.pad), np.count_nonzero(keep, axis=1)


def insert_masks(
    values: np.ndarray, counts: np.ndarray, rate: float, row_keys: np.ndarray, mask: int, pad: int
) -> tuple[np.ndarray, np.ndarray]:
    """Insert ceil(rate n) [MASK] between the n tokens of each text, or as many as fit; the first and last token stay in place.

    Args:
      values: int32[n, length].
      counts: int64[n], tokens of each row, including the first and the last.
      rate: Number of insertions per token of the text.
      row_keys: uint64[n], one per row.
      mask: Id of [MASK].
      pad: Id of padding.

    Returns:
      The rows int32[n, length] and the number of tokens in each int64[n].
    """
    length = values.shape[1]
    place = np.arange(length)
    text = np.maximum(counts - 2, 0)
    new = np.minimum(np.ceil(rate * text).astype(np.int64), length - counts)
    inner = (place > 0) & (place <= (text + new)[:, None]) & (text > 0)[:, None]
    is_new = draw(inner, new, keys.bits(row_keys, streams.INSERT, length))
    source = place - np.cumsum(is_new, axis=1)
    result = np.where(is_new, mask, np.take_along_axis(values, source, axis=1))
    counts = counts + np.count_nonzero(is_new, axis=1)
    return np.where(place < counts[:, None], result, pad).astype(np.int32), counts


def _chosen(rate: float, inside: np.ndarray, row_keys: np.ndarray) -> np.ndarray:
    """Draw ceil(rate n) of the n tokens inside each text: bool[n, length]."""
    wanted = np.ceil(rate * np.count_nonzero(inside, axis=1)).astype(np.int64)
    return draw(inside, wanted, keys.bits(row_keys, streams.SELECTION, inside.shape[1]))


def _check_rate(rate: float) -> None:
    if not 0 < rate <= 1:
        raise ValueError(f"rate {rate} is not in (0, 1]")
