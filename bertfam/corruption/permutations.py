"""Permutations within rows: shuffled tokens (StructBERT, T5), shuffled sentences and rotations (BART)."""

import numpy as np

from bertfam.corruption import keys, streams
from bertfam.corruption.sampling import in_random_order


def select_windows(allowed: np.ndarray, size: int, wanted: np.ndarray, row_keys: np.ndarray) -> np.ndarray:
    """Select windows of neighbouring tokens that do not overlap: StructBERT's trigrams (Wang et al. 2020, section 2.1).

    Start positions are tried in random order, and one is skipped if its window would hold a token that is not allowed or that
    belongs to another window.

    Args:
      allowed: bool[n, length], True at tokens that a window may hold: text that is not masked.
      size: Tokens in a window.
      wanted: int[n], windows of each row; a row has fewer if no more fit.
      row_keys: uint64[n], one per row.

    Returns:
      int64[n, length], the window of each position, numbered from 0 in the order of selection; -1 outside of windows.
    """
    n, length = allowed.shape
    result = np.full((n, length), -1)
    if length < size:
        return result
    starts = length - size + 1
    begins = allowed[:, :starts].copy()
    for offset in range(1, size):
        begins &= allowed[:, offset : offset + starts]
    order = in_random_order(begins, keys.bits(row_keys, streams.WINDOWS, starts))
    available, chosen = np.count_nonzero(begins, axis=1), np.zeros(n, np.int64)
    for rank in range(starts):
        active = np.flatnonzero((chosen < wanted) & (rank < available))
        if not active.size:
            break
        window = (active[:, None], order[active, rank, None] + np.arange(size))
        free = result[window].max(axis=1) < 0
        result[window] = np.where(free[:, None], chosen[active, None], result[window])
        chosen[active] += free
    return result


def group_shuffle(groups: np.ndarray, row_keys: np.ndarray) -> np.ndarray:
    """Draw a permutation of the positions in each group; all permutations, including the identity, are equally likely.

    `np.take_along_axis(tokens, group_shuffle(groups, keys), axis=1)` shuffles tokens: StructBERT's trigrams with the groups of
    `select_windows`, or a whole text (T5's deshuffling, Raffel et al. 2020, section 3.3.1) with a single group.

    Args:
      groups: int[n, length] in [-1, length); positions of group -1 are not permuted.
      row_keys: uint64[n], one per row.

    Returns:
      int64[n, length], the position that each position takes its token from.
    """
    n, length = groups.shape
    place = np.arange(length, dtype=np.uint64)
    width = np.uint64(max(length, 1).bit_length())
    # Two words per position, (group, position) and (group, random bits, position): the k-th of a group moves to its k-th place.
    head = np.where(groups < 0, length, groups).astype(np.uint64) << (np.uint64(64) - width)
    low = np.uint64((1 << int(width)) - 1)
    middle = (keys.bits(row_keys, streams.SHUFFLE, length) >> width) & ~low
    middle[groups < 0] = 0
    slots = np.sort(head | place, axis=1) & low
    elements = np.sort(head | middle | place, axis=1) & low
    result = np.empty((n, length), np.int64)
    np.put_along_axis(result, slots.astype(np.int64), elements.astype(np.int64), axis=1)
    return result


def segment_shuffle(begins: np.ndarray, groups: np.ndarray, row_keys: np.ndarray) -> np.ndarray:
    """Draw a permutation of the segments in each group: BART's sentence permutation (Lewis et al. 2020, section 2.2).

    Args:
      begins: bool[n, length], True where segments begin; a change of group begins a segment too.
      groups: int[n, length] in [-1, length); the segments of a group (the sentences of one example in a packed row) must be
        contiguous and are permuted among themselves; positions of group -1 are not permuted.
      row_keys: uint64[n], one per row.

    Returns:
      int64[n, length], the position that each position takes its token from.
    """
    n, length = groups.shape
    place = np.arange(length)
    begins = begins | (groups < 0)
    begins[:, :1] = True
    begins[:, 1:] |= groups[:, 1:] != groups[:, :-1]
    index = np.cumsum(begins, axis=1) - 1
    # [n, segments]: group and first position of each segment; entries after the last segment are empty and have no group
    row, position = np.nonzero(begins)
    group, first = np.full((n, length), -1), np.full((n, length + 1), length)
    group[row, index[row, position]] = groups[row, position]
    first[row, index[row, position]] = position
    sizes = np.diff(first, axis=1)
    source = group_shuffle(group, row_keys)
    new_sizes = np.take_along_axis(sizes, source, axis=1)
    new_first = np.cumsum(new_sizes, axis=1) - new_sizes
    # Segment s of the result begins at new_first[s] and comes from first[source[s]].
    result = np.zeros((n, length + 1), np.int64)
    row, segment = np.nonzero(new_sizes)
    shift = first[row, source[row, segment]] - new_first[row, segment]
    result[row, new_first[row, segment]] = shift - np.where(segment > 0, np.roll(shift, 1), 0)
    return np.cumsum(result[:, :length], axis=1) + place


def rotation(inside: np.ndarray, row_keys: np.ndarray, rate: float = 1.0) -> np.ndarray:
    """Draw a rotation that starts each text with a uniformly drawn token: BART (Lewis et al. 2020, section 2.2).

    Args:
      inside: bool[n, length], True at the text; other positions keep their tokens.
      row_keys: uint64[n], one per row.
      rate: Share of rows that are rotated.

    Returns:
      int64[n, length], the position that each position takes its token from.
    """
    counts = np.count_nonzero(inside, axis=1)
    offset = keys.integers(keys.bits(row_keys, streams.ROTATE, 1)[:, 0], np.maximum(counts, 1))
    offset *= keys.uniform(keys.bits(row_keys, streams.DECISION, 1)[:, 0]) < rate
    row, position = np.nonzero(inside)
    begin = np.repeat(np.cumsum(counts) - counts, counts)
    rank = (np.arange(len(row)) - begin + offset[row]) % np.maximum(counts[row], 1)
    result = np.broadcast_to(np.arange(inside.shape[1]), inside.shape).copy()
    result[row, position] = position[begin + rank]
    return result
