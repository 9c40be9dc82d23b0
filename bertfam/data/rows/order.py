"""Order of examples in an endless sequence of rows: a pure function of the place, so that any place is computed in constant time.

In batches of B, batch s holds the places s B .. s B + B - 1.

Own code because `tf.random.experimental.index_shuffle` (TensorFlow 2.21), the same keyed permutation, would bring TensorFlow into
the training process, and `numpy.random.Generator.permutation` (NumPy 2.4.6) stores the permutation of every epoch.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from typing_extensions import override

from bertfam.corruption import keys

_ROUNDS = 6
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


def _mask(bits: np.uint64) -> np.uint64:
    return (np.uint64(1) << bits) - np.uint64(1)
