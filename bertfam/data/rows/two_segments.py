"""Rows of ELECTRA: two segments of running text without a label (Clark et al. 2020; rates as in the published data script)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from bertfam.corruption import keys
from bertfam.corruption.corruption import FRAMED, RowForm
from bertfam.corruption.token_ids import TokenIds
from bertfam.data.rows.layout import RowLayout
from bertfam.data.rows.sentence_pairs import frame_segments, sentences_to, stretches
from bertfam.data.token_cache.documents import Documents
from bertfam.errors import UserError

# Streams of a chunk's key (its plan) and of an example's key (new draws each epoch).
_SHORT, _TARGET = range(2)
_SINGLE, _BEYOND = range(16, 18)
_SHORTEST = 5


@dataclass(frozen=True)
class TwoSegments(RowLayout):
    """`[CLS] A [SEP] B [SEP]` where B continues A, or `[CLS] A [SEP]`.

    A document is cut into chunks of sentences with at least as many tokens as a row, or, with probability `short_row_rate`, as a
    number uniform in [5, length]. A is the chunk's first sentences whose total stays below half of that number (less the three
    control tokens), at least one, and with probability 1/2 also the sentence that exceeds it; B is the rest. With probability
    `single_segment_rate` A is the whole chunk. Text that does not fit is cut off at the end of the row and not read. The chunks
    are fixed by the seed; A is drawn for each epoch.

    The published script moves a short sentence after the first of B to A if it still fits, which changes the order of sentences;
    here text keeps its order.

    Attributes:
      single_segment_rate: Share of rows of one segment, in addition to those whose chunk ends with A.
      short_row_rate: Share of shorter chunks.
    """

    single_segment_rate: float = 0.1
    short_row_rate: float = 0.05

    def __post_init__(self) -> None:
        for name in ("single_segment_rate", "short_row_rate"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} {getattr(self, name)} is not in [0, 1]")

    @override
    def check_length(self, length: int) -> None:
        if length < _SHORTEST:
            raise UserError(f"length {length} is too short for two segments; use at least {_SHORTEST}")

    @override
    def examples(
        self, documents: Documents, length: int, seed: int, tokens: TokenIds, form: RowForm = FRAMED
    ) -> "SegmentExamples":
        self.check_length(length)
        return SegmentExamples(self, documents, length, tokens, *_plan(self, documents, length, seed))


def _plan(config: TwoSegments, documents: Documents, length: int, seed: int) -> tuple[np.ndarray, ...]:
    """Plan the chunks of all documents in parallel, one chunk of each at a time.

    Returns:
      The first sentence, number of sentences and target tokens of each chunk, by document: int64[chunks] each.
    """
    starts = documents.sentence_starts
    document, chunk, current, end = stretches(documents)
    stretch = np.arange(len(current))
    parts = []
    while stretch.size:
        key = keys.fold(seed, document, chunk)
        short = keys.uniform(keys.bits(key, _SHORT, 1)[:, 0]) < config.short_row_rate
        drawn = _SHORTEST + keys.integers(keys.bits(key, _TARGET, 1)[:, 0], length - _SHORTEST + 1)
        target = np.where(short, drawn, length)
        count = sentences_to(starts, current, target, end)
        parts.append((stretch, current, count, target))
        current = current + count
        alive = current < end
        stretch, document, current, end = (values[alive] for values in (stretch, document, current, end))
        chunk = chunk[alive] + 1
    stretch, first, count, target = (np.concatenate(column) for column in zip(*parts, strict=True))
    in_order = np.argsort(stretch, kind="stable")
    return first[in_order], count[in_order], target[in_order]


class SegmentExamples:
    """Segment pairs of one corpus at one length."""

    warnings: ClassVar[list[str]] = []

    def __init__(
        self,
        config: TwoSegments,
        documents: Documents,
        length: int,
        tokens: TokenIds,
        first: np.ndarray,
        count: np.ndarray,
        target: np.ndarray,
    ) -> None:
        self._config, self._documents, self._length, self._tokens = config, documents, length, tokens
        self._first, self._count, self._target = first, count, target

    def __len__(self) -> int:
        return len(self._first)

    def rows(self, examples: np.ndarray, row_keys: np.ndarray) -> dict[str, np.ndarray]:
        """Build uncorrupted rows.

        Args:
          examples: int64[n] in [0, len(self)).
          row_keys: uint64[n], keys of the random draws.

        Returns:
          `encoder_input_tokens`, `encoder_segment_ids`, `encoder_token_type_ids` int32[n, length], `maskable` bool[n, length].
        """
        starts = self._documents.sentence_starts
        first, count, half = self._first[examples], self._count[examples], (self._target[examples] - 3) // 2
        begin, end = starts[first], starts[first + count]
        single, beyond = (keys.uniform(keys.bits(row_keys, stream, 1)[:, 0]) for stream in (_SINGLE, _BEYOND))
        # Sentences of A: as many as stay below the half, and with probability 1/2 one more.
        inside = np.clip(np.searchsorted(starts, begin + half, side="left") - 1 - first, 1, count)
        inside = np.minimum(inside + ((starts[first + inside] - begin < half) & (beyond < 0.5)), count)
        inside = np.where(single < self._config.single_segment_rate, count, inside)
        split = starts[first + inside]
        a_length = np.minimum(split - begin, self._length - 2)
        b_length = np.clip(self._length - 3 - a_length, 0, end - split)
        return frame_segments(self._documents, self._length, self._tokens, (begin, a_length), (split, b_length))
