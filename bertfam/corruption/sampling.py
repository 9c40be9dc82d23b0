"""Drawing without replacement, a whole batch of rows at a time."""

import numpy as np


def _scores(allowed: np.ndarray, words: np.ndarray) -> tuple[np.ndarray, np.uint64]:
    """Random numbers whose low bits are their column, so that a row's never tie and a sort gives the columns back.

    Those of columns that are not allowed are above all others. Returns uint64[n, width] and the mask of the low bits.
    """
    width = allowed.shape[1]
    low = np.uint64((1 << max(width - 1, 0).bit_length()) - 1)
    scores = (words | low) ^ low | np.arange(width, dtype=np.uint64)
    scores[~allowed] |= ~low
    return scores, low


def in_random_order(allowed: np.ndarray, words: np.ndarray) -> np.ndarray:
    """The columns of each row in random order, those that are not allowed last.

    Args:
      allowed: bool[n, width].
      words: uint64[n, width], random.

    Returns:
      int64[n, width], a permutation of 0 .. width - 1 in each row.
    """
    scores, low = _scores(allowed, words)
    scores.sort(axis=1)
    return (scores & low).astype(np.int64)


def draw(allowed: np.ndarray, wanted: np.ndarray, words: np.ndarray) -> np.ndarray:
    """Draws `wanted` allowed columns of each row, or all where there are fewer; every set of them is equally likely.

    Args:
      allowed: bool[n, width].
      wanted: int[n].
      words: uint64[n, width], random.

    Returns:
      bool[n, width], what is drawn.
    """
    if not allowed.shape[1]:
        return allowed.copy()
    scores, _ = _scores(allowed, words)
    last = np.clip(wanted, 1, allowed.shape[1])[:, None] - 1
    limit = np.take_along_axis(np.sort(scores, axis=1), last, axis=1)
    return allowed & (scores <= limit) & (wanted > 0)[:, None]


def draw_positions(allowed: np.ndarray, wanted: np.ndarray, slots: int, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`draw` for few columns of many: the columns themselves, ascending; unused slots hold 0.

    Args:
      allowed: bool[n, width], at least `wanted` of each row.
      wanted: int[n], at most `slots`.
      slots: how many columns are returned.
      words: uint64[n, width], random.

    Returns:
      positions int64[n, slots] and used bool[n, slots].
    """
    width = allowed.shape[1]
    scores, low = _scores(allowed, words)
    if slots < width:
        scores = np.partition(scores, slots - 1, axis=1)[:, :slots]
    scores.sort(axis=1)
    positions = (scores & low).astype(np.int64)
    if slots > width:
        positions = np.pad(positions, ((0, 0), (0, slots - width)))
    used = np.arange(slots) < wanted[:, None]
    positions = np.where(used, positions, width)
    positions.sort(axis=1)
    return np.where(used, positions, 0), used


def compact(values: np.ndarray, keep: np.ndarray, width: int, fill: int) -> np.ndarray:
    """Moves what is kept of each row to its front and fills the rest: int32[n, width].

    Args:
      values: int[n, columns].
      keep: bool[n, columns], at most `width` a row.
      width: columns of the result.
      fill: what stands behind.
    """
    row, column = np.nonzero(keep)
    counts = np.count_nonzero(keep, axis=1)
    place = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    result = np.full((len(values), width), fill, np.int32)
    result[row, place] = values[row, column]
    return result
