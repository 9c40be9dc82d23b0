"""Sampling without replacement, for a whole batch of rows at a time.

`numpy.random.Generator.choice(replace=False)` and `permuted(axis=1)` (NumPy 2.4.6) draw from one generator, so that the result of
a row would depend on its position in the batch; here it depends only on its key.
"""

import numpy as np


def _scores(allowed: np.ndarray, words: np.ndarray) -> tuple[np.ndarray, np.uint64]:
    """Return random numbers whose low bits are the column, so that none in a row are equal and sorting them yields the columns.

    The scores of columns that are not allowed exceed all others.

    Returns:
      The scores uint64[n, width], in place of `words`, and the mask of the low bits.
    """
    width = allowed.shape[1]
    low = np.uint64((1 << max(width - 1, 0).bit_length()) - 1)
    words &= ~low
    words |= np.arange(width, dtype=np.uint64)
    np.bitwise_or(words, ~low, out=words, where=~allowed)
    return words, low


def in_random_order(allowed: np.ndarray, words: np.ndarray) -> np.ndarray:
    """Return the columns of each row in random order, followed by those that are not allowed.

    Args:
      allowed: bool[n, width].
      words: uint64[n, width], random; overwritten.

    Returns:
      int64[n, width], a permutation of 0 .. width - 1 in each row.
    """
    scores, low = _scores(allowed, words)
    scores.sort(axis=1)
    return (scores & low).astype(np.int64)


def draw(allowed: np.ndarray, wanted: np.ndarray, words: np.ndarray) -> np.ndarray:
    """Draw `wanted` allowed columns of each row, or all if there are fewer; every such set is equally likely.

    Args:
      allowed: bool[n, width].
      wanted: int[n].
      words: uint64[n, width], random; overwritten.

    Returns:
      bool[n, width], True at the drawn columns.
    """
    if not allowed.shape[1]:
        return allowed.copy()
    scores, _ = _scores(allowed, words)
    last = np.clip(wanted, 1, allowed.shape[1])[:, None] - 1
    limit = np.take_along_axis(np.sort(scores, axis=1), last, axis=1)
    return allowed & (scores <= limit) & (wanted > 0)[:, None]


def draw_positions(allowed: np.ndarray, wanted: np.ndarray, slots: int, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Draw few of many columns as `draw` does, and return their positions.

    Args:
      allowed: bool[n, width], at least `wanted` of each row.
      wanted: int[n], at most `slots`.
      slots: Number of columns to return.
      words: uint64[n, width], random; overwritten.

    Returns:
      The positions int64[n, slots], ascending and 0 in unused slots, and a mask of the used slots bool[n, slots].
    """
    width = allowed.shape[1]
    scores, low = _scores(allowed, words)
    if slots < width:
        scores.partition(slots - 1, axis=1)
        scores = scores[:, :slots]
    scores.sort(axis=1)
    positions = (scores & low).astype(np.int32)  # sorted faster than int64
    if slots > width:
        positions = np.pad(positions, ((0, 0), (0, slots - width)))
    used = np.arange(slots) < wanted[:, None]
    np.copyto(positions, width, where=~used)
    positions.sort(axis=1)
    return positions * used.astype(np.int64), used


def compact(values: np.ndarray, keep: np.ndarray, width: int, fill: int) -> np.ndarray:
    """Move the kept values of each row to its front and fill the remainder: int32[n, width].

    Args:
      values: int[n, columns].
      keep: bool[n, columns], at most `width` per row.
      width: Columns of the result.
      fill: Value of the remaining columns.
    """
    row, column = np.nonzero(keep)
    counts = np.count_nonzero(keep, axis=1)
    place = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    result = np.full((len(values), width), fill, np.int32)
    result[row, place] = values[row, column]
    return result
