"""Which example stands at a place of an endless sequence of rows: a pure function, so that any place is served at once.

Batch s of a sequence read in batches of B holds the places s B .. s B + B - 1.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from typing_extensions import override

from bertfam.corruption import keys

_ROUNDS = 6
_SORTED = 64  # elements; with so few, the halves of a Feistel network are too short to give all permutations equally often


class Order(Protocol):
    """A way through a fixed number of examples."""

    def index(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Epoch int64[n] and example int64[n] at the places int64[n]; example -1 = a padding row."""
        ...


@dataclass(frozen=True)
class Shuffled(Order):
    """Every example once an epoch, in a new order each epoch (a keyed permutation; nothing is stored).

    Attributes:
      examples: how many there are.
      key: what the order depends on.
    """

    examples: int
    key: int

    @override
    def index(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        epochs, within = np.divmod(places, self.examples)
        return epochs, permute(within, self.examples, keys.fold(self.key, epochs))


@dataclass(frozen=True)
class Contiguous(Order):
    """Every example once, in order, then padding rows: evaluation.

    Attributes:
      examples: how many there are.
    """

    examples: int

    @override
    def index(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros_like(places), np.where(places < self.examples, places, -1)


@dataclass(frozen=True)
class Streams(Order):
    """Side by side, as many streams of successive examples as a batch has rows: row r of a batch goes on where row r of the
    batch before ended (Dai et al. 2019, "Transformer-XL", section 3.2; models with a memory).

    An epoch is as many batches as the longest stream; shorter streams end with a padding row.

    Attributes:
      examples: how many there are.
      batch_size: rows of the global batch.
    """

    examples: int
    batch_size: int

    @override
    def index(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        steps, rows = np.divmod(places, self.batch_size)
        most, longer = -(-self.examples // self.batch_size), self.examples % self.batch_size or self.batch_size
        epochs, within = np.divmod(steps, most)
        # The first `longer` streams hold `most` examples, the others one less.
        begin = rows * most - np.maximum(rows - longer, 0)
        length = np.where(rows < longer, most, most - 1)
        return epochs, np.where(within < length, begin + within, -1)


def permute(values: np.ndarray, size: int, row_keys: np.ndarray) -> np.ndarray:
    """Applies a permutation of 0 .. size-1 chosen by the key: by sorting drawn words, or a Feistel network with cycle walking.

    Black and Rogaway 2002, "Ciphers with Arbitrary Finite Domains", methods 1, 2 and 3.

    Args:
      values: int64[n] in [0, size).
      size: the number of elements that are permuted.
      row_keys: uint64[n], which permutation to apply to each value.

    Returns:
      int64[n] in [0, size).
    """
    if size <= _SORTED:
        different, which = np.unique(row_keys, return_inverse=True)
        return np.argsort(keys.bits(different, 0, size), axis=1)[which.reshape(values.shape), values]
    bits = (size - 1).bit_length()
    round_keys = keys.bits(row_keys, 0, _ROUNDS)
    result = values.astype(np.uint64)
    walking = np.arange(len(result))
    while walking.size:
        # A permutation of the 2**bits < 2 * size values; who leaves 0 .. size-1 walks on until back inside.
        left_bits, right_bits = np.uint64(bits // 2), np.uint64(bits - bits // 2)
        left, right = result[walking] >> right_bits, result[walking] & _mask(right_bits)
        for number in range(_ROUNDS):
            # The halves change places, and with them their widths; an even number of rounds puts them back.
            left, right = right, left ^ (keys.fold(round_keys[walking, number], right) & _mask(left_bits))
            left_bits, right_bits = right_bits, left_bits
        result[walking] = (left << right_bits) | right
        walking = walking[result[walking] >= np.uint64(size)]
    return result.astype(np.int64)


def _mask(bits: np.uint64) -> np.uint64:
    return (np.uint64(1) << bits) - np.uint64(1)
