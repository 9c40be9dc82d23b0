"""Batches of rows of similar length, for inference: few lengths are compiled, and rows have little padding."""

from collections.abc import Collection, Iterator, Mapping

import numpy as np

_SHORTEST = 32  # tokens of the shortest rows; each length is compiled once, and twice the one before
WINDOW = 64  # batches of texts that callers tokenise together, among which texts of similar length are found


def length_batches(
    rows: Mapping[str, np.ndarray], names: Collection[str], batch_size: int, longest: int, parts: int = 1
) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """Yield batches of rows of similar length, each with the indices int64[n] of its rows, n <= batch_size.

    Every batch has `batch_size` rows, so that each length is compiled once; those after the first n repeat a row.

    Args:
      rows: features [rows, longest] or [rows, count].
      names: the features of a batch, which lose the positions that are padding in all of its rows.
      batch_size: rows of a batch.
      longest: length of the longest rows.
      parts: equal parts of a row, one after another, each of which ends with its padding.
    """
    # [rows, parts, longest / parts] each
    divided = {name: rows[name].reshape(len(rows[name]), parts, -1) for name in names}
    sizes = (divided["encoder_segment_ids"] > 0).sum(axis=2).max(axis=1)
    order = np.argsort(sizes, kind="stable")
    for begin in range(0, len(order), batch_size):
        indices = order[begin : begin + batch_size]
        chosen = np.pad(indices, (0, batch_size - len(indices)), mode="edge")
        length = row_length(int(sizes[indices].max()), longest // parts)
        yield indices, {name: value[chosen, :, :length].reshape(batch_size, -1) for name, value in divided.items()}


def row_length(size: int, longest: int) -> int:
    """Return the length of the rows that hold `size` tokens: a power of 2 times the shortest, or `longest`."""
    length = _SHORTEST
    while length < size:
        length *= 2
    return min(length, longest)
