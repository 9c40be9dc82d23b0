"""Order of examples in an endless sequence of rows: a pure function of the place, so that any place is computed in constant time.

In batches of B, batch s holds the places s B .. s B + B - 1.

Own code because `tf.random.experimental.index_shuffle` (TensorFlow 2.21), the same keyed permutation, would bring TensorFlow into
the training process, and `numpy.random.Generator.permutation` (NumPy 2.4.6) stores the permutation of every epoch.
"""

import functools
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from typing_extensions import override

from bertfam.corruption import keys

_ROUNDS = 6
_MOST_TABLE_BITS = 28  # tables of 768 KiB
_SORTED = 64  # up to this size a Feistel network has halves too short for all permutations to be equally likely


class Order(Protocol):
    """Order of a fixed number of examples."""

    def index(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the epoch int64[n] and the example int64[n] at places int64[n]; example -1 is a padding row."""
        ...


@dataclass(frozen=True)
class Shuffled(Order):
    """Every example once per epoch, in a new order each epoch (a keyed permutation, which stores nothing).

    Attributes:
      examples: Number of examples.
      key: Key of the order.
    """

    examples: int
    key: int

    @override
    def index(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        epochs, within = np.divmod(places, self.examples)
        return epochs, permute(within, self.examples, keys.fold(self.key, epochs))


@dataclass(frozen=True)
class Contiguous(Order):
    """Every example once, in order, followed by padding rows, for evaluation.

    Attributes:
      examples: Number of examples.
    """

    examples: int

    @override
    def index(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros_like(places), np.where(places < self.examples, places, -1)


@dataclass(frozen=True)
class Streams(Order):
    """Parallel streams of consecutive examples, one for each row of a batch, for models with a memory.

    Row r of a batch continues where row r of the previous batch ended (Dai et al. 2019, "Transformer-XL", section 3.2). An epoch
    has as many batches as the longest stream has examples; shorter streams end with a padding row.

    Attributes:
      examples: Number of examples.
      batch_size: Rows of the global batch.
      skipped: Number of batches before the first one.
      epoch: Epoch of the first of these batches.
      unread: Ranges of examples (first, end) that batches of another size left of that epoch, and that are read first, divided
        into streams again; empty if the epoch is whole.
    """

    examples: int
    batch_size: int
    skipped: int = 0
    epoch: int = 0
    unread: tuple[tuple[int, int], ...] = ()

    @override
    def index(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        steps, rows = np.divmod(places, self.batch_size)
        epochs, first, end = self._streams(steps + self.skipped, rows)
        return epochs, np.where(first < end, self._examples(epochs, first), -1)

    def after(self, steps: int, batch_size: int) -> "Streams":
        """Return the order that continues after `steps` batches of this one, with batches of another size.

        What the streams have not read of the current epoch is divided into as many streams as the new batches have rows.
        """
        step = self.skipped + steps
        if batch_size == self.batch_size:
            return replace(self, skipped=step)
        epochs, first, end = self._streams(np.full(self.batch_size, step), np.arange(self.batch_size))
        ranges: list[tuple[int, int]] = []
        for begin, stop in zip(first.tolist(), end.tolist(), strict=True):
            # Examples of a stream that crosses the gaps between unread ranges are not consecutive.
            numbers = self._examples(epochs[:1], np.arange(begin, stop))
            for part in np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1) if len(numbers) else []:
                if ranges and ranges[-1][1] == part[0]:
                    ranges[-1] = ranges[-1][0], int(part[-1]) + 1
                else:
                    ranges.append((int(part[0]), int(part[-1]) + 1))
        is_whole = ranges == [(0, self.examples)]
        return Streams(self.examples, batch_size, 0, int(epochs[0]), () if is_whole else tuple(ranges))

    def _streams(self, steps: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the epoch of steps int64[n], and the place in its text and the end of the streams rows int64[n]."""
        unread = sum(end - begin for begin, end in self.unread)
        most_unread, most_whole = -(-unread // self.batch_size), -(-self.examples // self.batch_size)
        is_rest = steps < most_unread
        later, within = np.divmod(steps - most_unread, most_whole)
        epochs = self.epoch + np.where(is_rest, 0, later + bool(unread))
        within, most = np.where(is_rest, steps, within), np.where(is_rest, most_unread, most_whole)
        # The first `longer` streams hold `most` examples, the others one less.
        longer = (np.where(is_rest, unread, self.examples) - 1) % self.batch_size + 1
        begin = rows * most - np.maximum(rows - longer, 0)
        return epochs, begin + within, begin + np.where(rows < longer, most, most - 1)

    def _examples(self, epochs: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Return the examples at places int64[n] of the text of epochs int64[n]: int64[n]."""
        if not self.unread:
            return places
        begins, ends = np.array(self.unread).T
        sizes = ends - begins
        which = np.searchsorted(np.cumsum(sizes), places, side="right").clip(max=len(sizes) - 1)
        return np.where(epochs == self.epoch, places + begins[which] - (np.cumsum(sizes) - sizes)[which], places)


def permute(values: np.ndarray, size: int, row_keys: np.ndarray) -> np.ndarray:
    """Apply a keyed permutation of 0 .. size-1: a sort of random words, or a Feistel network with cycle walking.

    Black and Rogaway 2002, "Ciphers with Arbitrary Finite Domains", methods 1, 2 and 3.

    Args:
      values: int64[n] in [0, size).
      size: Number of permuted elements.
      row_keys: uint64[n], key of the permutation to apply to each value.

    Returns:
      int64[n] in [0, size).
    """
    if size <= _SORTED:
        different, which = np.unique(row_keys, return_inverse=True)
        return np.argsort(keys.bits(different, 0, size), axis=1)[which.reshape(values.shape), values]
    bits = (size - 1).bit_length()
    if bits <= _MOST_TABLE_BITS and len(row_keys) and (row_keys == row_keys[0]).all():
        return _permute_by_tables(values, size, _round_tables(int(row_keys[0]), bits))
    round_keys = keys.bits(row_keys, 0, _ROUNDS)
    result = values.astype(np.uint64)
    walking = np.arange(len(result))
    while walking.size:
        # A permutation of 2**bits < 2 * size values; a value outside of 0 .. size-1 is permuted again until it is inside.
        left_bits, right_bits = np.uint64(bits // 2), np.uint64(bits - bits // 2)
        left, right = result[walking] >> right_bits, result[walking] & _mask(right_bits)
        for number in range(_ROUNDS):
            # The halves are swapped, and so are their widths; an even number of rounds restores them.
            left, right = right, left ^ (keys.fold(round_keys[walking, number], right) & _mask(left_bits))
            left_bits, right_bits = right_bits, left_bits
        result[walking] = (left << right_bits) | right
        walking = walking[result[walking] >= np.uint64(size)]
    return result.astype(np.int64)


def _permute_by_tables(values: np.ndarray, size: int, tables: tuple[np.ndarray, ...]) -> np.ndarray:
    """Apply the Feistel network of `permute` to values that share a key, given its `_round_tables`."""
    right_size = len(tables[0])
    right_bits = right_size.bit_length() - 1
    result, walking, inside = values.astype(np.int64), np.arange(len(values)), values
    while walking.size:
        left, right = inside >> right_bits, inside & (right_size - 1)
        for table in tables:
            left, right = right, left ^ table.take(right)
        inside = (left << right_bits) | right
        result[walking] = inside
        again = np.flatnonzero(inside >= size)
        walking, inside = walking[again], inside[again]
    return result


@functools.lru_cache(maxsize=32)
def _round_tables(key: int, bits: int) -> tuple[np.ndarray, ...]:
    """Tabulate the round functions of a Feistel network of `bits` bits: int64[2**half bits] a round.

    An epoch's rows share a key. Tables for it need memory of the order of the square root of the permuted range.
    """
    widths = bits // 2, bits - bits // 2
    tables = []
    for number, round_key in enumerate(keys.bits(np.array([key], np.uint64), 0, _ROUNDS)[0]):
        out_bits, in_bits = widths if number % 2 == 0 else widths[::-1]
        drawn = keys.fold(round_key, np.arange(1 << in_bits)) & _mask(np.uint64(out_bits))
        drawn = drawn.astype(np.int64)
        drawn.setflags(write=False)  # the tables are shared
        tables.append(drawn)
    return tuple(tables)


def _mask(bits: np.uint64) -> np.uint64:
    return (np.uint64(1) << bits) - np.uint64(1)
