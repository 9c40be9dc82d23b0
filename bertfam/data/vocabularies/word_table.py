"""Table of the ids of words, for tokenizers that encode each word of a text by itself."""

import threading
from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np

# Bounds of the memory; a table that exceeds one starts anew.
_WORDS = 1 << 18
_CHARACTERS = 1 << 23
_LOCK = threading.Lock()  # of all tables, so that vocabularies can be pickled


class WordTable:
    """Ids of the words between spaces, each of which is encoded when it first occurs."""

    def __init__(self, encode: Callable[[list[str]], list[list[int]]]) -> None:
        """Create an empty table for a function that encodes words."""
        self._encode = encode
        self._clear()

    def _clear(self) -> None:
        self._numbers: dict[str, int] = {}
        self._characters = 0
        self._ids, self._sizes = np.zeros(0, np.int32), np.zeros(0, np.int64)

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return the concatenated ids int32[tokens] of texts, and the number of ids of each int64[texts]."""
        if not texts:
            return np.zeros(0, np.int32), np.zeros(0, np.int64)
        split = [text.split(" ") for text in texts]
        words = list(chain.from_iterable(split))
        with _LOCK:
            self._add(words)
            numbers = np.fromiter(map(self._numbers.__getitem__, words), np.int64, len(words))
            ids, sizes = self._ids, self._sizes
        begins = np.cumsum(sizes) - sizes
        size = sizes[numbers]
        place = np.arange(size.sum()) + np.repeat(begins[numbers] - (np.cumsum(size) - size), size)
        counts = np.fromiter(map(len, split), np.int64, len(split))  # at least one word, which may be empty
        return ids[place], np.add.reduceat(size, np.cumsum(counts) - counts)

    def _add(self, words: Sequence[str]) -> None:
        distinct = set(words)
        missing = list(distinct - self._numbers.keys())
        if not missing:
            return
        characters = sum(map(len, missing))
        if len(self._numbers) + len(missing) > _WORDS or self._characters + characters > _CHARACTERS:
            self._clear()
            missing = list(distinct)
            characters = sum(map(len, missing))
        encoded = self._encode(missing)
        self._numbers.update(zip(missing, range(len(self._numbers), len(self._numbers) + len(missing)), strict=True))
        self._characters += characters
        self._ids = np.concatenate([self._ids, np.fromiter(chain.from_iterable(encoded), np.int32)])
        self._sizes = np.concatenate([self._sizes, np.fromiter(map(len, encoded), np.int64, len(encoded))])
