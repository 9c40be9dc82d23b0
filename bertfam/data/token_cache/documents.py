"""Tokenised documents: flat tokens with the starts of sentences and documents."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

_PARTS, _PART = 64, 1 << 20  # the number and the tokens of the parts of a long text in which tokens are counted


Mode = Literal["raise", "clip"]


class Values(Protocol):
    """Read-only values of a file or an array: the part of the interface of `np.ndarray` that readers use."""

    @property
    def dtype(self) -> np.dtype:
        """Type of a value."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, key: slice, /) -> np.ndarray: ...

    def take(self, indices: np.ndarray, /, *, mode: Mode = "raise") -> np.ndarray:
        """Return the values at `indices`, as `np.ndarray.take` does."""
        ...


class FetchedValues(ABC):
    """Base class of values that are fetched from a bucket, and that have the interface of `Values`."""

    dtype: np.dtype

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, key: slice, /) -> np.ndarray: ...

    @abstractmethod
    def take(self, indices: np.ndarray, /, *, mode: Mode = "raise") -> np.ndarray:
        """Return the values at `indices`, as `np.ndarray.take` does."""

    @abstractmethod
    def prefetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Fetch ranges (begin, end) that are soon read, many at once."""


@dataclass(frozen=True)
class StoredDocuments:
    """Documents of one split of a cache, of which nothing is read yet.

    Attributes:
      name: name in messages.
      tokens: uint[tokens]; those of a cache are checked when they are first read.
      sentence_starts: int64[sentences + 1], the start of each sentence in `tokens`, and the end.
      sentence_bounds: int64[documents + 1], the first sentence of each document, and the number of sentences.
      units: uint8[tokens], marks of the phrases and entities that the tokens belong to (see
        `bertfam.corruption.masked_lm.units`); None if the text has no marks.
      pairs: True if each document is a pair: two sentences, inputs (possibly without tokens) and targets.
      labels: float32[documents * label_count], the labels of each document; None if the text is not labelled. A labelled
        document has one sentence, or two, any of which may have no tokens.
      label_count: the number of labels of a document.
      labels_words: True if `labels` are those of each sentence: labelled words are sentences here.
    """

    name: str
    tokens: Values
    sentence_starts: Values
    sentence_bounds: Values
    units: Values | None = None
    pairs: bool = False
    labels: Values | None = None
    label_count: int = 0
    labels_words: bool = False

    def __len__(self) -> int:
        return len(self.sentence_bounds) - 1

    def token_counts(self, size: int) -> np.ndarray:
        """Count each token, in evenly spaced parts of 67 million tokens in all if the text is longer: int64[size]."""
        whole = len(self.tokens) <= _PARTS * _PART
        starts = np.zeros(1, int) if whole else np.linspace(0, len(self.tokens) - _PART, _PARTS).astype(int)
        length = len(self.tokens) if whole else _PART
        counts = (np.bincount(self.tokens[start : start + length], minlength=size) for start in starts)
        return np.sum(list(counts), axis=0)

    def prefetch_starts(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Fetch the starts of ranges of documents (first, end) that are soon read if they are in a bucket, many at once."""
        if isinstance(self.sentence_bounds, FetchedValues) and isinstance(self.sentence_starts, FetchedValues):
            self.sentence_bounds.prefetch([(first, end + 1) for first, end in ranges])
            sentences = self.sentence_bounds.take(np.array(ranges, np.int64).reshape(-1, 2)).tolist()
            self.sentence_starts.prefetch([(first, end + 1) for first, end in sentences])

    def joined(self, name: str, ranges: Sequence[tuple[int, int]]) -> "Documents":
        """Read the starts of ranges of documents (first, end) into memory and join the ranges, in the given order.

        Args:
          name: name of the joined documents in messages.
          ranges: the ranges, none of them empty.
        """
        self.prefetch_starts(ranges)
        starts, bounds, begins = [np.zeros(1, np.int64)], [np.zeros(1, np.int64)], []
        for first, end in ranges:
            own_bounds = self.sentence_bounds[first : end + 1].astype(np.int64)
            own_starts = self.sentence_starts[int(own_bounds[0]) : int(own_bounds[-1]) + 1].astype(np.int64)
            bounds.append(own_bounds[1:] - own_bounds[0] + bounds[-1][-1])
            starts.append(own_starts[1:] - own_starts[0] + starts[-1][-1])
            begins.append(int(own_starts[0]))
        sizes = [int(part[-1] - before[-1]) for before, part in zip(starts, starts[1:], strict=False)]
        places = [(begin, begin + size) for begin, size in zip(begins, sizes, strict=True)]
        units = None if self.units is None else JoinedRanges(self.units, places)
        tokens, labels = JoinedRanges(self.tokens, places), None
        if self.labels is not None:
            width, labelled = self.label_count, ranges
            if self.labels_words:
                labelled = [
                    (int(self.sentence_bounds[first : first + 1][0]), int(self.sentence_bounds[end : end + 1][0]))
                    for first, end in ranges
                ]
            labels = JoinedRanges(self.labels, [(first * width, end * width) for first, end in labelled])
        joined_starts, joined_bounds = np.concatenate(starts), np.concatenate(bounds)
        return Documents(
            name, tokens, joined_starts, joined_bounds, units, self.pairs, labels, self.label_count, self.labels_words
        )


@dataclass(frozen=True)
class Documents(StoredDocuments):
    """Documents of one split of a cache with their starts in memory, or any documents of the same form."""

    sentence_starts: np.ndarray
    sentence_bounds: np.ndarray


class JoinedRanges:
    """Ranges of values one after another; the values are read where they are stored.

    Attributes:
      dtype: of the values.
    """

    def __init__(self, values: Values, ranges: Sequence[tuple[int, int]]) -> None:
        """Join ranges (begin, end) of the values."""
        self._values, self._ranges, self.dtype = values, ranges, values.dtype
        begins, ends = np.array(ranges, np.int64).reshape(-1, 2).T
        self._begins = np.concatenate([[0], np.cumsum(ends - begins)])
        self._offsets = begins - self._begins[:-1]

    def __len__(self) -> int:
        return int(self._begins[-1])

    @property
    def is_fetched(self) -> bool:
        """True if the values are fetched from a bucket."""
        return isinstance(self._values, FetchedValues)

    def prefetch_all(self) -> None:
        """Fetch all values, which are soon read, if they are in a bucket."""
        if isinstance(self._values, FetchedValues):
            self._values.prefetch(self._ranges)

    def __getitem__(self, key: slice) -> np.ndarray:
        return self.take(np.arange(*key.indices(len(self))))

    def take(self, indices: np.ndarray, /, *, mode: Mode = "raise") -> np.ndarray:
        """Return the values at `indices`, as `np.ndarray.take` does."""
        if mode == "clip":
            indices = np.clip(indices, 0, len(self) - 1)
        elif len(indices) and (indices.min() < 0 or indices.max() >= len(self)):
            raise IndexError(f"indices from {indices.min()} to {indices.max()} are not in 0 to {len(self) - 1}")
        if len(self._offsets) == 1:
            return self._values.take(indices + self._offsets)
        return self._values.take(indices + self._offsets[np.searchsorted(self._begins, indices, side="right") - 1])
