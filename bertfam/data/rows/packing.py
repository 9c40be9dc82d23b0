"""Packing: several short examples in one row, which do not see each other (Krell et al. 2021, "Efficient Sequence Packing without
Cross-contamination").
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from bertfam.corruption import keys
from bertfam.corruption.corruption import FRAMED, RowForm
from bertfam.corruption.token_ids import TokenIds
from bertfam.data.rows.layout import PackableExamples, PackableRows, RowLayout
from bertfam.data.rows.running_text import WholeDocuments
from bertfam.data.token_cache.documents import Documents
from bertfam.features import Relation

_TIES = 0x7E5  # what the plan's key is folded with, so that no other draw of the same seed is read

_TOKENS = ("encoder_input_tokens", "next_tokens")  # what padding's id fills


@dataclass(frozen=True)
class Packed(RowLayout):
    """Rows into which whole examples are packed by their lengths, each with its own [CLS], segment id and positions from 0.

    The plan is fixed by the seed; an example keeps its row in every epoch, and its noise is drawn anew. Pairs are held to the
    length of the text that they are cut from (`PairExamples.with_fixed_lengths`), so that lengths do not depend on what is drawn.

    Attributes:
      rows: what is packed.
      max_examples: at most so many in a row; None: a sixteenth of the row's length.
    """

    is_packed: ClassVar[bool] = True

    rows: PackableRows = WholeDocuments()
    max_examples: int | None = None

    def __post_init__(self) -> None:
        if self.max_examples is not None and self.max_examples < 2:
            raise ValueError(f"max_examples {self.max_examples} is less than 2, which packs nothing")

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
        return self.max_examples or max(2, length // 16)

    @override
    def check_length(self, length: int) -> None:
        self.rows.check_length(length)

    @override
    def examples(
        self, documents: Documents, length: int, seed: int, tokens: TokenIds, form: RowForm = FRAMED
    ) -> "PackedExamples":
        if form.framed:
            tokens.require("cls", "Packed")
        inner = self.rows.packable_examples(documents, length, seed, tokens, form)
        bounds, order = pack(inner.lengths, length, self.most_examples(length), seed)
        return PackedExamples(inner, bounds, order, length, self.most_examples(length), tokens.pad)


class PackedExamples:
    """The packed rows of one corpus at one length."""

    def __init__(self, inner: PackableExamples, bounds: np.ndarray, order: np.ndarray, length: int, most: int, pad: int) -> None:
        """Row r holds the examples order[bounds[r]] .. order[bounds[r + 1] - 1] of `inner`."""
        self._inner, self._bounds, self._order = inner, bounds, order
        self._length, self._most, self._pad = length, most, pad

    def __len__(self) -> int:
        return len(self._bounds) - 1

    @property
    def warnings(self) -> list[str]:
        """What is amiss with the text, a line each."""
        return self._inner.warnings

    @property
    def fill(self) -> float:
        """The share of the rows' places that the plan fills."""
        return float(self._inner.lengths.sum() / (len(self) * self._length))

    def rows(self, examples: np.ndarray, row_keys: np.ndarray) -> dict[str, np.ndarray]:
        """Builds uncorrupted rows.

        Args:
          examples: int64[n] in [0, len(self)).
          row_keys: uint64[n], what is drawn anew.

        Returns:
          what the packed rows give, and `encoder_positions` int32[n, length] and `sequence_start_positions` int32[n, most], with
          their labels and weights [n, most] where there are such; unused ones are 0.
        """
        first, count = self._bounds[examples], self._bounds[examples + 1] - self._bounds[examples]
        row = np.repeat(np.arange(len(examples)), count)
        nth = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
        found = self._inner.rows(self._order[np.repeat(first, count) + nth], keys.fold(row_keys[row], nth))
        # [m, length]: the tokens of each example, and where they go
        real = found["encoder_segment_ids"] > 0
        lengths = real.sum(axis=1)
        begin = np.cumsum(lengths) - lengths
        offset = begin - np.repeat(begin[np.cumsum(count) - count], count)
        place = np.arange(self._length)
        target = ((row * self._length + offset)[:, None] + place)[real]
        found["encoder_segment_ids"] = np.broadcast_to((nth + 1).astype(np.int32)[:, None], real.shape)
        found["encoder_positions"] = np.broadcast_to(place.astype(np.int32), real.shape)
        found["sequence_start_positions"] = offset.astype(np.int32)[:, None]
        result = {}
        for name, value in found.items():
            if value.shape == real.shape:
                packed = np.full((len(examples), self._length), self._pad if name in _TOKENS else 0, value.dtype)
                packed.reshape(-1)[target] = value[real]
            else:  # one of each example
                packed = np.zeros((len(examples), self._most), value.dtype)
                packed[row, nth] = value[:, 0]
            result[name] = packed
        return result


def pack(lengths: np.ndarray, capacity: int, most: int, key: int) -> tuple[np.ndarray, np.ndarray]:
    """Best-fit decreasing: the longest first, each into the fullest row that has room.

    Equal lengths are interchangeable, so whole groups of them are placed at once, in an order drawn from the key.

    Args:
      lengths: int[examples], each from 1 to `capacity`.
      capacity: of a row.
      most: examples in a row, at most.
      key: what decides among equals.

    Returns:
      bounds int64[rows + 1] and order int64[examples]: row r holds order[bounds[r]] .. order[bounds[r + 1] - 1].
    """
    ties = keys.fold(key, _TIES, np.arange(len(lengths)))
    order = np.lexsort((ties, -lengths))
    counts = np.bincount(lengths, minlength=capacity + 1)
    row_of = np.empty(len(lengths), np.int64)  # of order[i]
    held = np.zeros(0, np.int64)  # examples in each row
    rows_with: list[np.ndarray] = [np.zeros(0, np.int64)] * (capacity + 1)  # those with so much room that may take more
    done = 0
    for length in np.flatnonzero(counts)[::-1].tolist():
        end = done + int(counts[length])
        while done < end:
            room = next((room for room in range(length, capacity + 1) if len(rows_with[room])), None)
            if room is None:
                each = min(capacity // length, most)
                new = -(-(end - done) // each)
                taken = np.arange(len(held), len(held) + new)
                held = np.concatenate([held, np.full(new, each)])
                row_of[done:end] = np.repeat(taken, each)[: end - done]
                held[-1] -= new * each - (end - done)
                rooms = capacity - held[taken] * length
                _give_back(rows_with, taken[:-1], capacity - each * length, held, most)
                _give_back(rows_with, taken[-1:], int(rooms[-1]), held, most)
                done = end
            else:
                taken = rows_with[room][: end - done]
                rows_with[room] = rows_with[room][end - done :]
                row_of[done : done + len(taken)] = taken
                held[taken] += 1
                done += len(taken)
                _give_back(rows_with, taken, room - length, held, most)
    by_row = np.argsort(row_of, kind="stable")
    return np.concatenate([[0], np.cumsum(held)]), order[by_row]


def _give_back(rows_with: list[np.ndarray], rows: np.ndarray, room: int, held: np.ndarray, most: int) -> None:
    """Puts rows that have `room` left back among those that may take more."""
    open_rows = rows[held[rows] < most]
    if room and len(open_rows):
        rows_with[room] = np.concatenate([rows_with[room], open_rows])
