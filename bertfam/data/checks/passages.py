"""Hashes of the passages of a text: windows of its symbols at every position, independent of the language."""

import functools
from collections.abc import Iterator

import numpy as np

_BASE = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2**64
_AT_ONCE, _POWERS = 1 << 18, 1 << 19


def passages(symbols: np.ndarray, window: int, one_in: int) -> np.ndarray:
    """Return the distinct hashes of the windows that are below 2**64 / one_in.

    The symbols of a window alone decide if it is kept, not its position (Manber 1994, "Finding similar files in a large file
    system"). The hash is the polynomial of the symbols modulo 2**64 (Karp and Rabin 1987).

    Args:
      symbols: uint[n].
      window: number of symbols in a window; a shorter text has no window.
      one_in: one in this many windows is kept, on average; a power of 2.

    Returns:
      uint64[hashes], ascending.
    """
    kept = [hashes[are_kept(hashes, one_in)] for hashes in _window_hashes(symbols, window)]
    return np.unique(np.concatenate(kept)) if kept else np.zeros(0, np.uint64)


def are_kept(hashes: np.ndarray, one_in: int) -> np.ndarray:
    """Return bool[n], True for the hashes uint64[n] that are kept as one in this many."""
    return hashes <= np.uint64((1 << 64) // one_in - 1)


def _window_hashes(symbols: np.ndarray, window: int) -> Iterator[np.ndarray]:
    powers, inverses = _powers(_BASE), _powers(pow(_BASE, -1, 1 << 64))
    for start in range(0, len(symbols) - window + 1, _AT_ONCE):
        values = symbols[start : start + _AT_ONCE + window - 1].astype(np.uint64) + np.uint64(1)
        # Prefix sums of symbol * base**position; a difference of two, divided by base**position, is independent of the position.
        sums = np.zeros(len(values) + 1, np.uint64)
        np.cumsum(values * powers[: len(values)], out=sums[1:])
        yield (sums[window:] - sums[:-window]) * inverses[: len(values) - window + 1]


@functools.cache
def _powers(base: int) -> np.ndarray:
    """Return the powers base**0, base**1, ... modulo 2**64: uint64[...]."""
    factors = np.full(_POWERS, base, np.uint64)
    factors[0] = 1
    return np.cumprod(factors)
