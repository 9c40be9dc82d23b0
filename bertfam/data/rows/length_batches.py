"""Batches of rows of similar length, for inference: few shapes are compiled, and rows have little padding."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

_SHORTEST = 16  # tokens of the shortest rows; each length is compiled once, and twice the one before
WINDOW = 64  # batches of texts that callers tokenise together, among which texts of similar length are found


def length_batches(
    rows: Mapping[str, np.ndarray], names: Collection[str], batch_size: int, longest: int, parts: int = 1
) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """Yield batches of rows of similar length, each with the indices int64[n] of its rows, n <= batch_size.

    Every batch has `batch_size` rows, or for fewer rows in all the next power of 2, so that few shapes are compiled; those after
    the first n repeat a row.

    Args:
      rows: features [rows, longest] or [rows, count].
      names: the features of a batch, of those that the rows have, which lose the positions that are padding in all of its rows.
      batch_size: rows of a batch.
      longest: length of the longest rows.
      parts: equal parts of a row, one after another, each of which ends with its padding.
    """
    # [rows, parts, longest / parts] each
    divided = {name: rows[name].reshape(len(rows[name]), parts, -1) for name in names if name in rows}
    sizes = (divided["encoder_segment_ids"] > 0).sum(axis=2).max(axis=1)
    order = np.argsort(sizes, kind="stable")
    batch_size = row_count(len(order), batch_size)
    for begin in range(0, len(order), batch_size):
        indices = order[begin : begin + batch_size]
        chosen = np.pad(indices, (0, batch_size - len(indices)), mode="edge")
        length = row_length(int(sizes[indices].max()), longest // parts)
        yield indices, {name: value[chosen, :, :length].reshape(batch_size, -1) for name, value in divided.items()}


def computed(
    batches: Iterable[tuple[np.ndarray, dict[str, np.ndarray]]], compute: Callable[[dict[str, np.ndarray]], Any]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the outputs of batches, each with the indices of its rows; the device computes while the next batch is made.

    Args:
      batches: as `length_batches` yields them.
      compute: returns the outputs of a batch, an array [rows, ...], before the device has computed them.
    """
    waiting: tuple[np.ndarray, Any] | None = None
    for indices, batch in batches:
        dispatched = indices, compute(batch)
        if waiting:
            yield _fetched(*waiting)
        waiting = dispatched
    if waiting:
        yield _fetched(*waiting)


def _fetched(indices: np.ndarray, outputs: Any) -> tuple[np.ndarray, np.ndarray]:
    return indices, np.asarray(outputs)[: len(indices)]


def row_count(count: int, batch_size: int) -> int:
    """Return the rows of the batches of `count` rows in all: the power of 2 that holds them, or `batch_size`."""
    return min(1 << max(0, count - 1).bit_length(), batch_size)


def row_length(size: int, longest: int) -> int:
    """Return the length of the rows that hold `size` tokens: a power of 2 times the shortest, or `longest`."""
    length = _SHORTEST
    while length < size:
        length *= 2
    return min(length, longest)
