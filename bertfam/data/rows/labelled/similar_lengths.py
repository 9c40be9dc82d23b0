"""Batches of labelled texts of similar length, whose rows have one of a few lengths, so that little of them is padding.

Each length is compiled once. The batches are those of sorted windows of a shuffled order, as in the published code of Vaswani et
al. 2017 (section 5.1) and in `group_by_length` of transformers' Trainer, but all have the same number of rows, so that every text
has the same share in an epoch.

Own code because `tf.data.Dataset.bucket_by_sequence_length` (TensorFlow 2.21) and transformers' `LengthGroupedSampler` (5.24) are
streams and lists of one epoch: neither finds the batch of any step without those before it.
"""

import dataclasses
import functools
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from bertfam.corruption import keys
from bertfam.data.rows.batches import Batches, CorruptedRows
from bertfam.data.rows.labelled.labelled_texts import LabelledExamples
from bertfam.data.rows.order import Order, permute

_MULTIPLE = 16  # tokens, of which all lengths but the longest are multiples; matrix units compute 8 or 16 at a time
# Share and number of the tokens of an epoch that a further length, which is compiled too, must save.
_LEAST_SHARE, _LEAST_TOKENS = 0.1, 1 << 15
_WINDOW = 512  # batches that are sorted together


def row_lengths(sizes: np.ndarray, longest: int, multiple: int = _MULTIPLE) -> np.ndarray:
    """Choose the length of each row: the shortest of a few static lengths that holds it.

    The lengths are the least one that holds all rows, and others as long as each saves a tenth of the tokens that are left, and
    32,768 of them.

    Args:
      sizes: int64[rows], tokens of each row.
      longest: Largest length.
      multiple: Number of which the other lengths are multiples.

    Returns:
      int64[rows].
    """
    lengths, which, counts = np.unique(
        np.minimum(-(-sizes // multiple) * multiple, longest), return_inverse=True, return_counts=True
    )

    def padded(chosen: list[int]) -> np.ndarray:
        """Return the smallest chosen length, by its index, that holds each of `lengths`."""
        return lengths[np.sort(chosen)[np.searchsorted(np.sort(chosen), np.arange(len(lengths)))]]

    def tokens(chosen: list[int]) -> int:
        return int((padded(chosen) * counts).sum())

    chosen = [len(lengths) - 1]
    while len(chosen) < len(lengths):
        others = [[*chosen, index] for index in range(len(lengths)) if index not in chosen]
        best = min(others, key=tokens)
        if tokens(chosen) - tokens(best) < max(_LEAST_SHARE * tokens(chosen), _LEAST_TOKENS):
            break
        chosen = best
    return padded(chosen)[which]


class LengthOrder(Order):
    """Another order with examples of similar length in each batch.

    The batches of an epoch are divided into windows. The examples of a window are sorted by the length of their rows, those of
    one length as in the other order, and the batches into which they are divided are shuffled. A batch with examples of two
    epochs is that of the other order. Each epoch therefore has the same examples as in the other order, and any place is found
    with the work for one window.
    """

    def __init__(self, inner: Order, lengths: np.ndarray, batch_size: int, key: int, first: int = 0) -> None:
        """Create the order of batches.

        Args:
          inner: The other order, in which places e n .. (e + 1) n - 1 are the n examples of epoch e.
          lengths: int64[n], length of the row of each example.
          batch_size: Rows of a batch.
          key: Key of the order of batches.
          first: Place of the first row of the first batch.
        """
        self._inner, self.lengths, self._batch_size, self._key, self._first = inner, lengths, batch_size, key, first
        # A window, and those that prefetching and the log read beside it.
        self._window = functools.lru_cache(maxsize=8)(self._make_window)
        self._chunk = functools.lru_cache(maxsize=None)(self._tokens_between)

    @override
    def index(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        epochs, examples = self._inner.index(places)
        own_epochs, batches = places // len(self.lengths), (places - self._first) // self._batch_size
        for epoch in np.unique(own_epochs).tolist():
            begin, end = self._whole_batches(epoch)
            for window in np.unique((batches[own_epochs == epoch] - begin) // _WINDOW).tolist():
                first = begin + window * _WINDOW
                last = min(first + _WINDOW, end)
                here = (own_epochs == epoch) & (batches >= first) & (batches < last)
                if window >= 0 and here.any():
                    within = places[here] - self._first - first * self._batch_size
                    epochs[here], examples[here] = (values[within] for values in self._window(epoch, first, last))
        return epochs, examples

    def row_length(self, batch: int) -> int:
        """Return the length of the rows of a batch: that of its longest."""
        return int(self._row_lengths(batch, batch + 1)[0])

    def tokens(self, batches: int) -> int:
        """Return the tokens of all rows of the first batches, padding included."""
        chunks, rest = divmod(batches, _WINDOW)
        whole = sum(self._chunk(number * _WINDOW, (number + 1) * _WINDOW) for number in range(chunks))
        return whole + self._tokens_between(batches - rest, batches)

    def after(self, batches: int, batch_size: int) -> "LengthOrder":
        """Return the order that continues after some batches of this one, with batches of another size."""
        return LengthOrder(self, self.lengths, batch_size, self._key, self._first + batches * self._batch_size)

    def _whole_batches(self, epoch: int) -> tuple[int, int]:
        """Return the first batch of an epoch that has no examples of the one before, and the end of such batches."""
        begin, end = (max(number * len(self.lengths) - self._first, 0) for number in (epoch, epoch + 1))
        return -(-begin // self._batch_size), end // self._batch_size

    def _make_window(self, epoch: int, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the epochs and the examples of batches first .. last - 1: int64[(last - first) batch_size] each."""
        places = self._first + np.arange(first * self._batch_size, last * self._batch_size)
        epochs, examples = self._inner.index(places)
        ordered = np.argsort(self.lengths[examples], kind="stable").reshape(-1, self._batch_size)
        count = last - first
        shuffled = permute(np.arange(count), count, np.full(count, keys.fold(self._key, epoch, first)[0]))
        ordered = ordered[shuffled].reshape(-1)
        return epochs[ordered], examples[ordered]

    def _row_lengths(self, first: int, last: int) -> np.ndarray:
        """Return the length of the rows of batches first .. last - 1: int64[last - first]."""
        places = self._first + np.arange(first * self._batch_size, last * self._batch_size)
        _, examples = self.index(places)
        lengths = np.where(examples < 0, 0, self.lengths[np.maximum(examples, 0)])  # padding needs no length
        return lengths.reshape(-1, self._batch_size).max(axis=1)

    def _tokens_between(self, first: int, last: int) -> int:
        return int(self._row_lengths(first, last).sum()) * self._batch_size


@dataclass(frozen=True)
class LengthBatches(Batches):
    """Batches of a `LengthOrder`.

    Attributes:
      sequence: The rows, which `LabelledExamples` plan.
    """

    sequence: CorruptedRows

    @property
    @override
    def row_counts(self) -> dict[int, int]:
        lengths, counts = np.unique(self._order.lengths, return_counts=True)
        return dict(zip(lengths.tolist(), counts.tolist(), strict=True))

    @property
    def _order(self) -> LengthOrder:
        assert isinstance(self.sequence.order, LengthOrder)
        return self.sequence.order

    @override
    def row_length(self, step: int) -> int:
        return self._order.row_length(step)

    @override
    def tokens(self, steps: int, length: int) -> int:
        return self._order.tokens(steps)

    @override
    def rows(self, step: int, start: int, stop: int) -> dict[str, np.ndarray]:
        assert isinstance(self.sequence.examples, LabelledExamples)
        examples = self.sequence.examples.shortened(self.row_length(step))
        rows = dataclasses.replace(self.sequence, examples=examples)
        return rows.at(self.place(step) + np.arange(start, stop, dtype=np.int64))

    def after(self, steps: int, batch_size: int) -> "LengthBatches":
        """Return the batches that continue after some of these, with another number of rows."""
        sequence = dataclasses.replace(self.sequence, order=self._order.after(steps, batch_size))
        return LengthBatches(sequence, batch_size, self.place(steps))


def similar_length_batches(rows: CorruptedRows, length: int, batch_size: int, key: int) -> LengthBatches:
    """Return batches of similar length of rows that `LabelledExamples` plan for `length` tokens."""
    assert isinstance(rows.examples, LabelledExamples)
    lengths = row_lengths(rows.examples.row_sizes, length, _MULTIPLE * rows.examples.parts)
    return LengthBatches(dataclasses.replace(rows, order=LengthOrder(rows.order, lengths, batch_size, key)), batch_size)
