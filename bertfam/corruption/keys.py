"""Random numbers as a pure function of keys: no generator, no state, a whole batch at a time.

A key is a uint64. `fold` derives keys from keys and data such as (seed, epoch, example); `bits` reads any number of 64-bit
words from a key by counting, as SplitMix64 does (Steele, Lea, Flood 2014, "Fast Splittable Pseudorandom Number Generators").
"""

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_AT_ONCE = 4096


def _mix(words: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser, a bijection of uint64; overwrites its argument."""
    words ^= words >> np.uint64(30)
    words *= _MIX_1
    words ^= words >> np.uint64(27)
    words *= _MIX_2
    words ^= words >> np.uint64(31)
    return words


def fold(key: np.ndarray | int, *data: np.ndarray | int) -> np.ndarray:
    """Derives keys from `key` and integers, broadcast against each other: uint64[...]."""
    result = np.atleast_1d(np.asarray(key).astype(np.uint64))
    for item in data:
        words = np.asarray(item).astype(np.uint64)
        # Mixing between the items makes fold(k, a, b) differ from fold(k, b, a).
        result = _mix((result ^ _mix(np.atleast_1d(words) + _GOLDEN)) + _GOLDEN)
    return result


def bits(keys: np.ndarray, stream: int, count: int) -> np.ndarray:
    """Reads `count` words of the named stream from each key.

    Args:
      keys: uint64[n].
      stream: which of the key's independent streams; give each use its own.
      count: words per key.

    Returns:
      uint64[n, count].
    """
    start = fold(keys, stream)
    # [n, 1] + [count] -> [n, count]
    return _mix(start[:, None] + np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN)


def uniform(words: np.ndarray) -> np.ndarray:
    """Maps words to float64 in [0, 1)."""
    return (words >> np.uint64(11)) * 2.0**-53


def integers(words: np.ndarray, bound: np.ndarray | int) -> np.ndarray:
    """Maps words to int64 in [0, bound), for 1 <= bound < 2**32 (bias below 2**-32 * bound)."""
    return (((words >> np.uint64(32)) * np.asarray(bound).astype(np.uint64)) >> np.uint64(32)).astype(np.int64)


def coin_sums(keys: np.ndarray, stream: int, tosses: np.ndarray) -> np.ndarray:
    """Draws Binomial(tosses, 1/2) for each key by counting the bits of as many words as it needs.

    Args:
      keys: uint64[n].
      stream: the stream to read.
      tosses: int[n], the number of fair coins.

    Returns:
      int64[n].
    """
    sums = np.zeros(len(keys), np.int64)
    remaining = tosses.astype(np.int64)
    word, at_once = 0, 1
    while (active := np.flatnonzero(remaining > 0)).size:
        # [active, at_once]: word w of a key is the first of key (key, w)
        words = np.arange(word, word + at_once)
        drawn = bits(fold(keys[active][:, None], words).ravel(), stream, 1).reshape(active.size, at_once)
        here = np.clip(remaining[active][:, None] - 64 * np.arange(at_once), 0, 64).astype(np.uint64)
        mask = np.where(here > 0, np.uint64(2**64 - 1) >> ((np.uint64(64) - here) & np.uint64(63)), np.uint64(0))
        sums[active] += np.bitwise_count(drawn & mask).sum(axis=1, dtype=np.int64)
        remaining[active] -= 64 * at_once
        word, at_once = word + at_once, min(at_once * 8, _AT_ONCE)
    return sums
