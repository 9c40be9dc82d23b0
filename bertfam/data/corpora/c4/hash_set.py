"""A set of 64-bit numbers in 8 bytes each; Python's own takes about 70."""

import numpy as np

_BUFFER = 1 << 16


class HashSet:
    """Sorted arrays, each at least twice as long as the next, and the newest numbers in a set of Python's."""

    def __init__(self) -> None:
        self._arrays: list[np.ndarray] = []
        self._new: set[int] = set()

    def __len__(self) -> int:
        return len(self._new) + sum(map(len, self._arrays))

    def contains(self, numbers: np.ndarray) -> np.ndarray:
        """Which of the numbers uint64[n] are in it: bool[n]."""
        found = np.fromiter((number in self._new for number in numbers.tolist()), bool, len(numbers))
        for array in self._arrays:
            place = np.searchsorted(array, numbers)
            found |= array[np.minimum(place, len(array) - 1)] == numbers
        return found

    def add(self, numbers: np.ndarray) -> None:
        """Adds the numbers uint64[n], none of which is in it."""
        self._new.update(numbers.tolist())
        if len(self._new) < _BUFFER:
            return
        array = np.sort(np.fromiter(self._new, np.uint64, len(self._new)))
        self._new = set()
        while self._arrays and len(self._arrays[-1]) < 2 * len(array):
            array = np.concatenate([self._arrays.pop(), array])
            array.sort(kind="stable")  # merges two ascending halves
        self._arrays.append(array)
