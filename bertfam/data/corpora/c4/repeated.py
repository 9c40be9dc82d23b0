"""Three sentences in a row that stand anywhere before: the first ones stay (Raffel et al. 2020, section 2.2).

Sentences are compared without regard to case and white space, by 64-bit hashes of every three that are kept: 8 bytes each, and
among a thousand million of them two are alike by chance with a probability of 3 %.
"""

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

SPAN = 3
_BUFFER = 1 << 16


class RepeatedSpans:
    """What has been kept so far."""

    def __init__(self) -> None:
        self._seen = HashSet()

    def unique(self, sentences: Sequence[str]) -> list[int]:
        """Which sentences of a page stay, ascending: whichever three in a row are left stand nowhere in what is kept before.

        Within a page the first of equal spans stay too, and of spans that overlap the sentences of the first.
        """
        digests = [blake2b(" ".join(sentence.lower().split()).encode(), digest_size=8).digest() for sentence in sentences]
        left = list(range(len(sentences)))
        while True:
            hashes = _hashes([digests[number] for number in left])
            gone = _elsewhere(self._seen.contains(hashes))
            if not gone:
                gone = _again(hashes)
            if not gone:
                return left
            left = [number for place, number in enumerate(left) if place not in gone]

    def keep(self, sentences: Sequence[str]) -> None:
        """Notes a page that is kept, as `unique` has left it."""
        digests = [blake2b(" ".join(sentence.lower().split()).encode(), digest_size=8).digest() for sentence in sentences]
        self._seen.add(_hashes(digests))


def _hashes(digests: list[bytes]) -> np.ndarray:
    """Of each span: uint64[spans]."""
    spans = (b"".join(digests[begin : begin + SPAN]) for begin in range(len(digests) - SPAN + 1))
    return np.frombuffer(b"".join(blake2b(span, digest_size=8).digest() for span in spans), np.uint64)


def _elsewhere(known: np.ndarray) -> set[int]:
    """The places of the sentences of known spans."""
    return {place + offset for place in np.flatnonzero(known).tolist() for offset in range(SPAN)}


def _again(hashes: np.ndarray) -> set[int]:
    """The places of the sentences of spans that stand before in the same page, but for those that belong to the first."""
    first: dict[int, int] = {}
    gone: set[int] = set()
    for place, value in enumerate(hashes.tolist()):
        span = range(place, place + SPAN)
        before = first.setdefault(value, place)
        if before != place and gone.isdisjoint(span):
            gone.update(set(span) - set(range(before, before + SPAN)))
    return gone


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
