"""Removal of repeated spans of three sentences: the first occurrence is kept (Raffel et al. 2020, section 2.2).

Spans are compared without case and white space, by the 64-bit hashes of all spans that are kept: 8 bytes each. Among a thousand
million spans, two differing ones have equal hashes with a probability of 3 %.
"""

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

SPAN = 3
_BUFFER = 1 << 16


class RepeatedSpans:
    """Spans of the sentences that have been kept so far."""

    def __init__(self) -> None:
        self._seen = HashSet()

    def unique(self, digests: Sequence[bytes]) -> list[int]:
        """Return the numbers of the sentences of a page to keep, ascending, given their `sentence_digests`.

        No span of three of them occurs in the text kept so far. Of equal spans within the page the first is kept,
        including the sentences that it shares with an overlapping repetition.
        """
        remaining = list(range(len(digests)))
        while True:
            hashes = _span_hashes([digests[number] for number in remaining])
            removed = _sentences_of(self._seen.contains(hashes))
            if not removed:
                removed = _repeated_within(hashes)
            if not removed:
                return remaining
            remaining = [number for place, number in enumerate(remaining) if place not in removed]

    def keep(self, digests: Sequence[bytes]) -> None:
        """Add the sentences of a page that is kept, after `unique`."""
        self._seen.add(_span_hashes(digests))


def sentence_digests(sentences: Sequence[str]) -> list[bytes]:
    """Return a digest of each sentence that depends neither on case nor on white space."""
    return [blake2b(" ".join(sentence.lower().split()).encode(), digest_size=8).digest() for sentence in sentences]


def _span_hashes(digests: Sequence[bytes]) -> np.ndarray:
    """Return the hash of each span: uint64[spans]."""
    spans = (b"".join(digests[start : start + SPAN]) for start in range(len(digests) - SPAN + 1))
    return np.frombuffer(b"".join(blake2b(span, digest_size=8).digest() for span in spans), np.uint64)


def _sentences_of(selected: np.ndarray) -> set[int]:
    """Return the numbers of the sentences of the selected spans, bool[spans]."""
    return {place + offset for place in np.flatnonzero(selected).tolist() for offset in range(SPAN)}


def _repeated_within(hashes: np.ndarray) -> set[int]:
    """Return the numbers of the sentences that repeat a span of the same page, without those of its first occurrence."""
    first: dict[int, int] = {}
    removed: set[int] = set()
    for place, value in enumerate(hashes.tolist()):
        span = range(place, place + SPAN)
        before = first.setdefault(value, place)
        if before != place and removed.isdisjoint(span):
            removed.update(set(span) - set(range(before, before + SPAN)))
    return removed


class HashSet:
    """Set of 64-bit numbers in 8 bytes each; Python's own set takes about 70.

    Stored as sorted arrays, each at least twice as long as the next, and a Python set of the newest numbers.
    """

    def __init__(self) -> None:
        self._arrays: list[np.ndarray] = []
        self._new: set[int] = set()

    def __len__(self) -> int:
        return len(self._new) + sum(map(len, self._arrays))

    def contains(self, numbers: np.ndarray) -> np.ndarray:
        """Return bool[n], True for each of the numbers uint64[n] that is in the set."""
        found = np.fromiter((number in self._new for number in numbers.tolist()), bool, len(numbers))
        for array in self._arrays:
            place = np.searchsorted(array, numbers)
            found |= array[np.minimum(place, len(array) - 1)] == numbers
        return found

    def add(self, numbers: np.ndarray) -> None:
        """Add the numbers uint64[n], none of which may be in the set yet."""
        self._new.update(numbers.tolist())
        if len(self._new) < _BUFFER:
            return
        array = np.sort(np.fromiter(self._new, np.uint64, len(self._new)))
        self._new = set()
        while self._arrays and len(self._arrays[-1]) < 2 * len(array):
            array = np.concatenate([self._arrays.pop(), array])
            array.sort(kind="stable")  # merges two ascending halves
        self._arrays.append(array)
