"""Which example is row r of step s: a pure function, so that any step is served at once."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from bertfam.corruption import keys as random

_ROUNDS = 6


class Order(Protocol):
    """A way through a fixed number of examples."""

    def index(self, step: int, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns epoch int64[n] and example int64[n] of the rows int[n] of the global batch; example -1 = a padding row."""
        ...


@dataclass(frozen=True)
class Shuffled:
    """Every example once an epoch, in a new order each epoch (a keyed permutation; nothing is stored).

    Attributes:
      examples: how many there are.
      batch_size: rows of the global batch.
      key: what the order depends on.
    """

    examples: int
    batch_size: int
    key: int

    def index(self, step: int, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `Order.index`."""
        place = step * self.batch_size + rows.astype(np.int64)
        epochs, within = np.divmod(place, self.examples)
        return epochs, permute(within, self.examples, random.fold(self.key, epochs))


@dataclass(frozen=True)
class Contiguous:
    """Every example once, in order, then padding rows: evaluation.

    Attributes:
      examples: how many there are.
      batch_size: rows of the global batch.
    """

    examples: int
    batch_size: int

    @property
    def steps(self) -> int:
        """Batches that hold all examples."""
        return -(-self.examples // self.batch_size)

    def index(self, step: int, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `Order.index`."""
        place = step * self.batch_size + rows.astype(np.int64)
        return np.zeros_like(place), np.where(place < self.examples, place, -1)


def permute(values: np.ndarray, size: int, keys: np.ndarray) -> np.ndarray:
    """Applies a permutation of 0 .. size-1 chosen by the key, by a Feistel network with cycle walking.

    Black and Rogaway 2002, "Ciphers with Arbitrary Finite Domains", methods 2 and 3.

    Args:
      values: int64[n] in [0, size).
      size: the number of elements that are permuted.
      keys: uint64[n], which permutation to apply to each value.

    Returns:
      int64[n] in [0, size).
    """
    bits = max(1, (size - 1).bit_length())
    round_keys = random.bits(keys, 0, _ROUNDS)
    result = values.astype(np.uint64)
    walking = np.arange(len(result))
    while walking.size:
        # A permutation of the 2**bits < 2 * size values; who leaves 0 .. size-1 walks on until back inside.
        left_bits, right_bits = np.uint64(bits // 2), np.uint64(bits - bits // 2)
        left, right = result[walking] >> right_bits, result[walking] & _mask(right_bits)
        for number in range(_ROUNDS):
            # The halves change places, and with them their widths; an even number of rounds puts them back.
            left, right = right, left ^ (random.fold(round_keys[walking, number], right) & _mask(left_bits))
            left_bits, right_bits = right_bits, left_bits
        result[walking] = (left << right_bits) | right
        walking = walking[result[walking] >= np.uint64(size)]
    return result.astype(np.int64)


def _mask(bits: np.uint64) -> np.uint64:
    return (np.uint64(1) << bits) - np.uint64(1)
