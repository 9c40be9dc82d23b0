"""Packing of several short examples into one row, without attention between them.

Krell et al. 2021, "Efficient Sequence Packing without Cross-contamination".

`seqio.utils.trim_and_pack_dataset` (seqio 0.0.20) packs a stream of examples in TensorFlow, so that a row depends on all examples
before it. Here the plan is made from the lengths alone, and every row can be read at random.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from bertfam.corruption import keys
from bertfam.corruption.corruption import FRAMED, RowForm
from bertfam.corruption.token_ids import TokenIds
from bertfam.data.rows.layout import PackableExamples, PackableRows, RowLayout, SeveralExamples
from bertfam.data.rows.running_text import WholeDocuments
from bertfam.data.token_cache.documents import Documents
from bertfam.features import Relation

_TIES = 0x7E5  # folded into the key of the plan, so that it is independent of other draws of the same seed

_SHARES = (0.0, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2)  # of the examples that are divided
_FULL = 0.98

_TOKENS = ("encoder_input_tokens", "next_tokens")  # padded with the id of padding, all others with 0


@dataclass(frozen=True)
class Packed(RowLayout):
    """Rows of whole examples packed by length, each with its own [CLS], segment id and positions from 0.

    The plan is fixed by the seed: an example keeps its row in every epoch, with new noise. Pairs are limited to the length of the
    text that they are cut from (`PairExamples.with_fixed_lengths`), so that lengths do not depend on random draws.

    Attributes:
      rows: Layout of the examples to pack.
      max_examples: Maximum number of examples in a row; None: a quarter of the row's length.
      divided: Share of the examples of running text that are divided into their sentences, which fill the ends of other rows.
        None: the smallest of 0, 1/32, 1/16, 1/8, 1/4 and 1/2 with which rows are 98 % full.
    """

    is_packed: ClassVar[bool] = True

    rows: PackableRows = WholeDocuments()
    max_examples: int | None = None
    divided: float | None = None

    def __post_init__(self) -> None:
        if self.max_examples is not None and self.max_examples < 2:
            raise ValueError(f"max_examples {self.max_examples} is less than 2, which packs nothing")
        if self.divided is not None and not 0 <= self.divided <= 1:
            raise ValueError(f"divided {self.divided} is not in [0, 1]")

    @property
    @override
    def content(self) -> RowLayout:
        return self.rows

    @property
    @override
    def least_documents(self) -> int:
        return self.rows.least_documents

    @property
    @override
    def relation(self) -> Relation | None:
        return self.rows.relation

    @override
    def most_examples(self, length: int) -> int:
        return self.max_examples or max(2, length // 4)

    @override
    def check_length(self, length: int) -> None:
        self.rows.check_length(length)

    @override
    def examples(
        self, documents: Documents, length: int, seed: int, tokens: TokenIds, form: RowForm = FRAMED
    ) -> "PackedExamples":
        if form.framed:
            tokens.require("cls", "Packed")
        whole, most = self.rows.packable_examples(documents, length, seed, tokens, form), self.most_examples(length)
        best: PackedExamples | None = None
        for share in _SHARES if self.divided is None else (self.divided,):
            inner = whole.divided(share, seed) if share else whole
            if best and inner is whole:
                break
            packed = PackedExamples(inner, *pack(inner.lengths, length, most, seed), length, most, tokens.pad)
            if best is None or len(packed) < len(best):
                best = packed
            if best.is_full:
                break
        assert best
        return best


class PackedExamples(SeveralExamples):
    """The packed rows of one corpus at one length."""

    def __init__(self, inner: PackableExamples, bounds: np.ndarray, order: np.ndarray, length: int, most: int, pad: int) -> None:
        """Create rows, of which row r holds the examples order[bounds[r]] .. order[bounds[r + 1] - 1] of `inner`."""
        self._inner, self._bounds, self._order = inner, bounds, order
        self._length, self._most, self._pad = length, most, pad

    def __len__(self) -> int:
        return len(self._bounds) - 1

    @property
    def warnings(self) -> list[str]:
        """Problems of the text, one line each."""
        return self._inner.warnings

    @property
    def fill(self) -> float:
        """Share of the positions that are not padding."""
        return float(self._inner.lengths.sum() / (len(self) * self._length))

    @property
    def is_full(self) -> bool:
        """True if the rows are `_FULL`, or as few as they can be."""
        return self.fill >= _FULL or len(self) == -(-self._inner.lengths.sum() // self._length)

    @property
    @override
    def example_sizes(self) -> np.ndarray | None:
        return np.stack([self._inner.lengths] * 2, axis=1)

    def rows(self, examples: np.ndarray, row_keys: np.ndarray) -> dict[str, np.ndarray]:
        """Build uncorrupted rows.

        Args:
          examples: int64[n] in [0, len(self)).
          row_keys: uint64[n], keys of the random draws.

        Returns:
          The features of the packed examples, `encoder_positions` int32[n, length], `sequence_start_positions` int32[n, most],
          and the labels and weights of the examples [n, most], if they have any; unused entries are 0.
        """
        first, count = self._bounds[examples], self._bounds[examples + 1] - self._bounds[examples]
        row = np.repeat(np.arange(len(examples)), count)
        nth = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
        inner_examples = self._order[np.repeat(first, count) + nth]
        # Packed examples have the keys that they would have in rows of their own.
        inner = self._inner.rows(inner_examples, keys.fold(keys.unfold(row_keys, examples)[row], inner_examples))
        # [m, length]: tokens of each example, and their positions in the packed rows
        real = inner["encoder_segment_ids"] > 0
        lengths = real.sum(axis=1)
        begin = np.cumsum(lengths) - lengths
        offset = begin - np.repeat(begin[np.cumsum(count) - count], count)
        place = np.arange(self._length)
        target = ((row * self._length + offset)[:, None] + place)[real]
        inner["encoder_segment_ids"] = np.broadcast_to((nth + 1).astype(np.int32)[:, None], real.shape)
        inner["encoder_positions"] = np.broadcast_to(place.astype(np.int32), real.shape)
        inner["sequence_start_positions"] = offset.astype(np.int32)[:, None]
        result = {}
        for name, value in inner.items():
            if value.shape == real.shape:
                packed = np.full((len(examples), self._length), self._pad if name in _TOKENS else 0, value.dtype)
                packed.reshape(-1)[target] = value[real]
            else:  # one value per example
                packed = np.zeros((len(examples), self._most), value.dtype)
                packed[row, nth] = value[:, 0]
            result[name] = packed
        return result


def pack(lengths: np.ndarray, capacity: int, most: int, key: int) -> tuple[np.ndarray, np.ndarray]:
    """Pack by best-fit decreasing: the longest first, each into the fullest row with enough room.

    Equal lengths are interchangeable, so all examples of a length are placed together, in an order drawn from the key.

    Args:
      lengths: int[examples], each from 1 to `capacity`.
      capacity: Tokens of a row.
      most: Maximum number of examples in a row.
      key: Key of the order among equal lengths.

    Returns:
      Arrays `bounds` int64[rows + 1] and `order` int64[examples]: row r holds order[bounds[r]] .. order[bounds[r + 1] - 1].
    """
    ties = keys.fold(key, _TIES, np.arange(len(lengths)))
    order = np.lexsort((ties, -lengths))
    counts = np.bincount(lengths, minlength=capacity + 1)
    row_of = np.empty(len(lengths), np.int64)  # row of order[i]
    held = np.zeros(0, np.int64)  # examples in each row
    rows_with: list[np.ndarray] = [np.zeros(0, np.int64)] * (capacity + 1)  # rows by their room, if they may take more
    done = 0
    for length in np.flatnonzero(counts)[::-1].tolist():
        end = done + int(counts[length])
        while done < end:
            room = next((room for room in range(length, capacity + 1) if len(rows_with[room])), None)
            if room is None:
                per_row = min(capacity // length, most)
                new = -(-(end - done) // per_row)
                taken = np.arange(len(held), len(held) + new)
                held = np.concatenate([held, np.full(new, per_row)])
                row_of[done:end] = np.repeat(taken, per_row)[: end - done]
                held[-1] -= new * per_row - (end - done)
                rooms = capacity - held[taken] * length
                _return_rows(rows_with, taken[:-1], capacity - per_row * length, held, most)
                _return_rows(rows_with, taken[-1:], int(rooms[-1]), held, most)
                done = end
            else:
                taken = rows_with[room][: end - done]
                rows_with[room] = rows_with[room][end - done :]
                row_of[done : done + len(taken)] = taken
                held[taken] += 1
                done += len(taken)
                _return_rows(rows_with, taken, room - length, held, most)
    by_row = np.argsort(row_of, kind="stable")
    return np.concatenate([[0], np.cumsum(held)]), order[by_row]


def _return_rows(rows_with: list[np.ndarray], rows: np.ndarray, room: int, held: np.ndarray, most: int) -> None:
    """Return rows with `room` left to those that may take more examples."""
    open_rows = rows[held[rows] < most]
    if room and len(open_rows):
        rows_with[room] = np.concatenate([rows_with[room], open_rows])
