"""Prediction order of tokens and its attention mask: XLNet (Yang et al. 2019, section 2.2, as in the released code)."""

import numpy as np

from bertfam.corruption import keys, streams
from bertfam.corruption.sampling import in_random_order


def order_ranks(targets: np.ndarray, functional: np.ndarray, row_keys: np.ndarray) -> np.ndarray:
    """Draw z, the rank of each position in a random order of its row.

    Args:
      targets: bool[n, length], True at positions to predict.
      functional: bool[n, length], True at control tokens ([SEP], [CLS]), which have a rank but are never predicted.
      row_keys: uint64[n], one per row.

    Returns:
      int32[n, length]: distinct ranks in [0, length) at targets and functional tokens; -1 at the other tokens and at padding,
      which precede all others and are visible to every position.
    """
    order = in_random_order(np.ones_like(targets), keys.bits(row_keys, streams.ORDER, targets.shape[1]))
    ranks = np.empty(targets.shape, np.int32)
    np.put_along_axis(ranks, order, np.arange(targets.shape[1], dtype=np.int32)[None], axis=1)
    return np.where(targets | functional, ranks, np.int32(-1))


def hidden_from(ranks: np.ndarray, targets: np.ndarray, block: int | None = None) -> np.ndarray:
    """Return the permutation mask: bool[n, length, length], True where position i (axis 1) must not see position j (axis 2).

    A target does not see itself or positions of later rank. Other positions do not see positions of later rank than their own,
    so a token with rank -1 sees no target. Where a position may see itself (the content stream), the attention must clear the
    diagonal.

    Args:
      ranks: int32[n, length], from `order_ranks`.
      targets: bool[n, length], True at positions to predict.
      block: Number of positions within which the order holds (half of a row in the released code): an earlier block sees nothing
        of a later one, and a later block sees all of an earlier one. None: the whole row is one block.
    """
    own = np.where(targets, ranks, ranks + 1)
    hidden = (own[:, :, None] <= ranks[:, None, :]) & (ranks >= 0)[:, None, :]
    if block is None:
        return hidden
    number = np.arange(ranks.shape[1]) // block
    return np.where(number[:, None] == number, hidden, number[:, None] < number)
