"""Hashes of all passages of a text: windows of its symbols, whatever its language and wherever they begin."""

import functools
from collections.abc import Iterator

import numpy as np

_BASE = 0x9E3779B97F4A7C15  # odd, so that it can be divided by
_AT_ONCE, _POWERS = 1 << 18, 1 << 19


def passages(symbols: np.ndarray, window: int, one_in: int) -> np.ndarray:
    """The smallest hashes of the windows, each once: those below 2**64 / one_in.

    A window is chosen by its own symbols, wherever it stands (Manber 1994, "Finding similar files in a large file system").
    Its hash is the polynomial of its symbols modulo 2**64 (Karp and Rabin 1987).

    Args:
      symbols: uint[n].
      window: symbols in a window; a shorter text has none.
      one_in: so many windows give one hash; a power of 2.

    Returns:
      uint64[hashes], ascending.
    """
    kept = [hashes[are_kept(hashes, one_in)] for hashes in _all(symbols, window)]
    return np.unique(np.concatenate(kept)) if kept else np.zeros(0, np.uint64)


def are_kept(hashes: np.ndarray, one_in: int) -> np.ndarray:
    """Which of the hashes uint64[n] are among the one in so many that are kept: bool[n]."""
    return hashes <= np.uint64((1 << 64) // one_in - 1)


def _all(symbols: np.ndarray, window: int) -> Iterator[np.ndarray]:
    powers, inverses = _powers(_BASE), _powers(pow(_BASE, -1, 1 << 64))
    for begin in range(0, len(symbols) - window + 1, _AT_ONCE):
        here = symbols[begin : begin + _AT_ONCE + window - 1].astype(np.uint64) + np.uint64(1)
        # Sums of symbol * base**place; a difference of two, divided by the base, does not depend on the place.
        sums = np.zeros(len(here) + 1, np.uint64)
        np.cumsum(here * powers[: len(here)], out=sums[1:])
        yield (sums[window:] - sums[:-window]) * inverses[: len(here) - window + 1]


@functools.cache
def _powers(base: int) -> np.ndarray:
    """base**0, base**1, ...: uint64[...]."""
    factors = np.full(_POWERS, base, np.uint64)
    factors[0] = 1
    return np.cumprod(factors)
