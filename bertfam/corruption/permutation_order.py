"""In which order tokens are predicted, and what each may see: XLNet (Yang et al. 2019, section 2.2, as in the released code)."""

import numpy as np

from bertfam.corruption import keys, streams
from bertfam.corruption.sampling import in_random_order


def order_ranks(targets: np.ndarray, functional: np.ndarray, row_keys: np.ndarray) -> np.ndarray:
    """Draws z, the rank of each position in a random order of its row.

    Args:
      targets: bool[n, length], the positions that are predicted.
      functional: bool[n, length], control tokens ([SEP], [CLS]), which have a rank and are never predicted.
      row_keys: uint64[n], one a row.

    Returns:
      int32[n, length]: distinct ranks in [0, length) at targets and functional tokens; -1 at the other tokens and at padding,
      which come before all and which everything sees.
    """
    order = in_random_order(np.ones_like(targets), keys.bits(row_keys, streams.ORDER, targets.shape[1]))
    ranks = np.empty(targets.shape, np.int32)
    np.put_along_axis(ranks, order, np.arange(targets.shape[1], dtype=np.int32)[None], axis=1)
    return np.where(targets | functional, ranks, np.int32(-1))


def hidden_from(ranks: np.ndarray, targets: np.ndarray, block: int | None = None) -> np.ndarray:
    """The permutation mask: bool[n, length, length], True where position i (axis 1) must not see position j (axis 2).

    A target does not see itself or what has a later rank; the others do not see what has a later rank than theirs, so no target
    from a token with rank -1. The diagonal of what may see itself (the content stream) is the attention's to give back.

    Args:
      ranks: int32[n, length], of `order_ranks`.
      targets: bool[n, length], the positions that are predicted.
      block: an order holds within so many positions (half of a row in the released code): an earlier block sees nothing of a
        later one, a later one all of an earlier. None: the whole row is one block.
    """
    own = np.where(targets, ranks, ranks + 1)
    hidden = (own[:, :, None] <= ranks[:, None, :]) & (ranks >= 0)[:, None, :]
    if block is None:
        return hidden
    number = np.arange(ranks.shape[1]) // block
    return np.where(number[:, None] == number, hidden, number[:, None] < number)
