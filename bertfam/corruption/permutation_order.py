"""Prediction order of tokens: XLNet (Yang et al. 2019, section 2.2, as in the published code)."""

import numpy as np

from bertfam.corruption import keys, streams
from bertfam.corruption.sampling import in_random_order


def order_ranks(targets: np.ndarray, functional: np.ndarray, row_keys: np.ndarray, blocks: int = 1) -> np.ndarray:
    """Draw the rank of each position: a position sees those of its own rank and of lower ranks.

    Targets and control tokens have distinct ranks, in a random order. A position that is to be predicted sees those of lower
    ranks only, thus not itself. All other tokens of a block have its lowest rank: they see each other and no target, and every
    target of the block sees them. A block sees all of the blocks before it, and nothing of those after it. So the ranks alone are
    the permutation mask.

    Args:
      targets: bool[n, length], True at positions to predict.
      functional: bool[n, length], True at control tokens ([SEP], [CLS]), which are in the order but are never predicted.
      row_keys: uint64[n], one per row.
      blocks: Number of equal parts of a row with an order of their own; two in the published code.

    Returns:
      int32[n, length], from 0.
    """
    length = targets.shape[1]
    order = in_random_order(np.ones_like(targets), keys.bits(row_keys, streams.ORDER, length))
    places = np.empty(targets.shape, np.int32)
    np.put_along_axis(places, order, np.arange(length, dtype=np.int32)[None], axis=1)
    block = np.arange(length, dtype=np.int32) // -(-length // blocks)
    return (block * np.int32(length + 1) + np.where(targets | functional, places + 1, 0)).astype(np.int32)
