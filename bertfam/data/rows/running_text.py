"""Rows of running text: `[CLS] text [SEP]`, or bare text if the vocabulary has no [CLS].

The text is treated as one sequence of slots: the tokens of every document, followed by a separator. A row is a range of slots.

    FullSentences     whole sentences, across documents, with a separator between documents (Liu et al. 2019, FULL-SENTENCES)
    DocSentences      whole sentences of one document (Liu et al. 2019, DOC-SENTENCES)
    ClozeBlocks       the same, of two sentences or more (Lee et al. 2019)
    Chunks            as many tokens as fit, across documents (Radford et al. 2018)
    WholeDocuments    as many tokens of one document as fit

`bertfam.data.rows.document_windows` adds windows of documents that begin elsewhere in each epoch.

Every token of the text is in exactly one row (of `ClozeBlocks` in at most one). A sentence longer than a row is cut. If the noise
requires it (`RowForm`), rows have no [CLS] and [SEP], mark where sentences begin, or have the token that follows each.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from bertfam.corruption import keys
from bertfam.corruption.corruption import FRAMED, RowForm
from bertfam.corruption.token_ids import TokenIds
from bertfam.data.rows.layout import PackableRows, RowLayout
from bertfam.data.token_cache.documents import Documents
from bertfam.errors import UserError

# Rows across documents restart about every hundred thousand tokens, so that the stretches between can be planned in parallel.
_LANE = 1 << 17
_LANES_AT_ONCE = 512
_DIVIDED = 0xD1  # folded into the key of the plan


def check_text_length(length: int) -> None:
    """Raise UserError if rows of `length` tokens have no room for text."""
    if length < 3:
        raise UserError(f"length {length} is too short for a row of text; use at least 3")


@dataclass(frozen=True)
class TextRows(RowLayout):
    """Base class of rows of running text (see the module).

    Attributes:
      whole_sentences: True if rows hold whole sentences.
      across_documents: True if rows cross the ends of documents.
    """

    is_running_text: ClassVar[bool] = True
    whole_sentences: ClassVar[bool]
    across_documents: ClassVar[bool]

    @property
    def gap(self) -> int:
        """Number of separators after a document."""
        return 1

    @override
    def check_length(self, length: int) -> None:
        check_text_length(length)

    @override
    def examples(self, documents: Documents, length: int, seed: int, tokens: TokenIds, form: RowForm = FRAMED) -> "TextExamples":
        self.check_length(length)
        frame = Frame(tokens, form)
        room = length - frame.size
        begins = document_begins(documents, self.gap)
        inner_ends = begins[1:] - (0 if form.continued else self.gap)  # end of the slots of each document that rows hold
        if self.whole_sentences:
            begin, end = _whole_sentences(documents, begins, inner_ends, room, self.across_documents)
        elif self.across_documents:
            begin = np.arange(0, inner_ends[-1], room)
            end = np.minimum(begin + room, inner_ends[-1])
        else:
            begin, end = _cut(begins[:-1], inner_ends, room)
        return TextExamples(documents, begins, begin, end, length, frame, self.gap)

    def packable_examples(
        self, documents: Documents, length: int, seed: int, tokens: TokenIds, form: RowForm = FRAMED
    ) -> "TextExamples":
        """Plan the rows as `examples` does: the lengths of running text do not depend on random draws."""
        return self.examples(documents, length, seed, tokens, form)


class FullSentences(TextRows):
    """Whole sentences, across documents, with a separator between documents."""

    whole_sentences, across_documents = True, True


class DocSentences(TextRows, PackableRows):
    """Whole sentences of one document."""

    whole_sentences, across_documents = True, False


class ClozeBlocks(DocSentences):
    """Whole sentences of one document, two or more: one of them is the query for the others (Lee et al. 2019, section 4)."""

    @override
    def examples(self, documents: Documents, length: int, seed: int, tokens: TokenIds, form: RowForm = FRAMED) -> "TextExamples":
        every = super().examples(documents, length, seed, tokens, form)
        examples = every.with_sentences(2)
        if not len(examples):
            raise UserError(
                f"{documents.name} has no block of two sentences in a document, as InverseCloze requires: if its lines are "
                "paragraphs and not sentences, give --input_format=paragraphs"
            )
        return examples


@dataclass(frozen=True)
class Chunks(TextRows):
    """As many tokens as fit, across documents.

    Attributes:
      separated: True to put a separator between documents; T5's published rows have none.
    """

    whole_sentences, across_documents = False, True

    separated: bool = True

    @property
    @override
    def gap(self) -> int:
        return int(self.separated)


class WholeDocuments(TextRows, PackableRows):
    """Whole documents; one that is longer than a row is divided among several."""

    whole_sentences, across_documents = False, False


class Frame:
    """Control tokens around a row's text: [CLS] and [SEP], or none for bare rows or if the vocabulary has no [CLS].

    Documents are separated by [SEP], or in bare rows by the end-of-text token; a vocabulary may have only one of the two.

    Attributes:
      size: Number of control tokens around the text.
      separator: Id of the separator.
    """

    def __init__(self, tokens: TokenIds, form: RowForm) -> None:
        self.tokens, self.form = tokens, form
        self.size = 0 if tokens.cls is None or not form.framed else 2
        self.separator = tokens.end_of_text("a row of text") if tokens.sep is None or not form.framed else tokens.sep


class SlotRows(ABC):
    """Base class of rows that are ranges of slots of one corpus, at one length."""

    warnings: ClassVar[list[str]] = []

    def __init__(self, documents: Documents, begins: np.ndarray, length: int, frame: Frame, gap: int) -> None:
        """Create rows of documents, of which document d begins at slot begins[d] and is followed by `gap` separators.

        For continued rows the slots are those of the next tokens, and slot -1 holds an end-of-text token.
        """
        self._documents, self._begins = documents, begins
        self._length, self._frame, self._gap = length, frame, gap

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def _bounds(self, examples: np.ndarray, row_keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the slots at which rows begin and end: int64[n] each."""

    def rows(self, examples: np.ndarray, row_keys: np.ndarray) -> dict[str, np.ndarray]:
        """Build uncorrupted rows.

        Args:
          examples: int64[n] in [0, len(self)).
          row_keys: uint64[n], keys of the random draws of rows that have any.

        Returns:
          `encoder_input_tokens`, `encoder_segment_ids`, `encoder_token_type_ids` int32[n, length], `maskable` bool[n, length],
          `units` uint8[n, length] if the text has marks, and the features that the form requires.
        """
        form = self._frame.form
        begin, end = self._bounds(examples, row_keys)
        if form.continued:
            return _with_next(self._rows(begin - 1, end, self._length + 1), self._frame.tokens.pad)
        rows = self._rows(begin, end, self._length)
        return rows | ({"sentence_begins": self._sentence_begins(begin, end)} if form.sentences else {})

    def _rows(self, begin: np.ndarray, end: np.ndarray, length: int) -> dict[str, np.ndarray]:
        """Return the rows of slots begin int64[n] .. end int64[n], as `rows` does."""
        frame, ids = self._frame, self._frame.tokens
        lead = frame.size // 2
        # [n, length]: slot of each position of the row
        place = np.arange(length) - lead
        slot = begin[:, None] + place
        text = (place >= 0) & (slot < end[:, None])
        first = np.searchsorted(self._begins, begin, side="right") - 1
        last = np.searchsorted(self._begins, end - 1, side="right") - 1
        document = first[:, None]  # [n, 1], or [n, length] if a document ends within a row
        crossing = last - first
        if crossing.any():
            # Cumulative sum of a 1 at each position where a document begins within the row.
            row = np.repeat(np.arange(len(begin)), crossing)
            inner = np.arange(crossing.sum()) - np.repeat(np.cumsum(crossing) - crossing, crossing) + first[row] + 1
            steps = np.zeros(slot.shape, np.int64)
            np.add.at(steps, (row, self._begins[inner] - begin[row] + lead), 1)
            document = document + np.cumsum(steps, axis=1)
        separator = np.zeros_like(text)
        if self._gap and (crossing.any() or (end == self._begins[last + 1]).any()):
            separator = text & (slot == self._begins[document + 1] - 1)
            text &= ~separator
        # A token is preceded by the separators of all earlier documents. Positions without text read any token, replaced below.
        index = slot - self._gap * document
        tokens = self._documents.tokens.take(index, mode="clip").astype(np.int32)
        np.copyto(tokens, ids.pad, where=~text)
        # Unknown tokens are not predicted: there is nothing to learn from them.
        maskable = text & (tokens != ids.unk)
        tokens[separator] = frame.separator
        size = end - begin + frame.size
        if frame.size:
            tokens[:, 0] = ids.require("cls", "a framed row")
            tokens[np.arange(len(tokens)), size - 1] = ids.require("sep", "a row with [CLS]")
        units = {}
        if self._documents.units is not None:
            units["units"] = np.where(maskable, self._documents.units.take(index, mode="clip"), 0)
        return units | {
            "encoder_input_tokens": tokens,
            "encoder_segment_ids": (np.arange(length) < size[:, None]).astype(np.int32),
            "encoder_token_type_ids": np.zeros(slot.shape, np.int32),
            "maskable": maskable,
        }

    def _sentence_begins(self, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Return True where sentences of the text begin, including the first of each document: bool[n, length]."""
        starts, bounds = self._documents.sentence_starts, self._documents.sentence_bounds
        first, last = (np.searchsorted(self._begins, slot, side="right") - 1 for slot in (begin, end - 1))
        low = np.searchsorted(starts, begin - self._gap * first)
        # A separator at the end of a row has the index of the next document's first token, which is not in the row.
        counts = np.maximum(np.searchsorted(starts, end - self._gap * last) - low, 0)
        row = np.repeat(np.arange(len(begin)), counts)
        sentence = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts) + low[row]
        slot = starts[sentence] + self._gap * (np.searchsorted(bounds, sentence, side="right") - 1)
        result = np.zeros((len(begin), self._length), bool)
        inside = slot < end[row]
        result[row[inside], (slot - begin[row] + self._frame.size // 2)[inside]] = True
        return result


class TextExamples(SlotRows):
    """Rows that are the same in every epoch."""

    def __init__(
        self, documents: Documents, begins: np.ndarray, begin: np.ndarray, end: np.ndarray, length: int, frame: Frame, gap: int
    ) -> None:
        """Create rows of the slots begin int64[rows] .. end int64[rows]; see the base class."""
        super().__init__(documents, begins, length, frame, gap)
        self._begin, self._end = begin, end

    @override
    def __len__(self) -> int:
        return len(self._begin)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each row, including [CLS] and [SEP]: int64[rows]."""
        return self._end - self._begin + self._frame.size

    def divided(self, share: float, key: int) -> "TextExamples":
        """Return rows with a share of them, drawn from the key, divided into sentences; the same object if each has one."""
        is_drawn = keys.uniform(keys.fold(key, _DIVIDED, np.arange(len(self)))) < share
        starts, low, high = self._inner_sentences()
        counts = np.where(is_drawn, high - low, 0) + 1
        if not (high > low).any():
            return self
        row = np.repeat(np.arange(len(self)), counts)
        nth = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
        begin = np.where(nth == 0, self._begin[row], starts[np.maximum(low[row] + nth - 1, 0)])
        end = np.where(nth == counts[row] - 1, self._end[row], np.append(begin[1:], 0))
        return self._of(begin, end)

    def with_sentences(self, least: int) -> "TextExamples":
        """Return the rows that hold at least so many sentences, or ends of sentences."""
        _, low, high = self._inner_sentences()
        is_used = high - low + 1 >= least
        return self._of(self._begin[is_used], self._end[is_used])

    def _inner_sentences(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the slot of the first token of each sentence, and the first and the end of those that begin within each row."""
        documents = self._documents
        document = np.repeat(np.arange(len(documents)), np.diff(documents.sentence_bounds[:]))
        starts = documents.sentence_starts[:-1] + self._gap * document
        # The sentences that begin within a row, not with it.
        return starts, np.searchsorted(starts, self._begin, side="right"), np.searchsorted(starts, self._end, side="left")

    def _of(self, begin: np.ndarray, end: np.ndarray) -> "TextExamples":
        return TextExamples(self._documents, self._begins, begin, end, self._length, self._frame, self._gap)

    @override
    def _bounds(self, examples: np.ndarray, row_keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self._begin[examples], self._end[examples]


def _with_next(rows: dict[str, np.ndarray], pad: int) -> dict[str, np.ndarray]:
    """Return rows with `next_tokens`, made from rows int32[n, length + 1] with one more token."""
    tokens, segments = rows["encoder_input_tokens"], rows["encoder_segment_ids"][:, 1:]
    return {
        "encoder_input_tokens": np.where(segments > 0, tokens[:, :-1], pad),
        "encoder_segment_ids": segments,
        "next_tokens": tokens[:, 1:],
    }


def document_begins(documents: Documents, gap: int = 1) -> np.ndarray:
    """Return the slot at which each document begins, and the end, with `gap` separators after each: int64[documents + 1]."""
    bounds = documents.sentence_bounds
    return documents.sentence_starts[bounds] + gap * np.arange(len(bounds))


def _cut(begin: np.ndarray, end: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray]:
    """Cut ranges into pieces of `room`, the last of which may be shorter: begins and ends int64[pieces]."""
    counts = -(-(end - begin) // room)
    number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = np.repeat(begin, counts) + number * room
    return starts, np.minimum(starts + room, np.repeat(end, counts))


def _whole_sentences(
    documents: Documents, begins: np.ndarray, ends: np.ndarray, room: int, across: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Divide documents, which end at slots `ends`, into rows of whole sentences: begins int64[rows] and ends int64[rows]."""
    if across:
        # A lane begins with the document that contains a multiple of the lane's size.
        lanes = np.unique(np.searchsorted(begins, np.arange(0, begins[-1], _LANE), side="right") - 1)
        lanes = np.append(lanes, len(begins) - 1)
        at_once = _LANES_AT_ONCE
    else:
        lanes = np.arange(len(begins))
        at_once = max(1, (_LANE * _LANES_AT_ONCE) * (len(begins) - 1) // max(1, int(begins[-1])))
    groups = (lanes[first : first + at_once + 1] for first in range(0, len(lanes) - 1, at_once))
    parts = [_walk(documents, begins, ends, group, room) for group in groups]
    begin, end = (np.concatenate(column) for column in zip(*parts, strict=True))
    return begin, end


def _walk(
    documents: Documents, begins: np.ndarray, ends: np.ndarray, lanes: np.ndarray, room: int
) -> tuple[np.ndarray, np.ndarray]:
    """Fill rows in all lanes in parallel, one row of each at a time; lane i holds the documents lanes[i] .. lanes[i + 1]."""
    begin, end = _pieces(documents, ends, lanes[0], lanes[-1], room)
    # Current piece of each lane, and the end of the lane.
    current, stop = np.searchsorted(begin, begins[lanes[:-1]]), np.searchsorted(begin, begins[lanes[1:]])
    lane = np.arange(len(current))
    rows = []
    while lane.size:
        after = np.minimum(np.searchsorted(end, begin[current] + room, side="right"), stop)
        rows.append((lane, begin[current], end[after - 1]))
        current = after
        alive = current < stop
        lane, current, stop = lane[alive], current[alive], stop[alive]
    lane, starts, ends = (np.concatenate(column) for column in zip(*rows, strict=True))
    order = np.argsort(lane, kind="stable")
    return starts[order], ends[order]


def _pieces(documents: Documents, ends: np.ndarray, first: int, last: int, room: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the sentences of documents first .. last as ranges of slots, with long ones cut: int64[pieces] each."""
    bounds = documents.sentence_bounds[first : last + 1].astype(np.int64)
    starts = documents.sentence_starts[bounds[0] : bounds[-1] + 1].astype(np.int64)
    before = np.repeat(np.arange(first, last), np.diff(bounds))  # separators before each sentence
    sentence_ends = starts[1:] + before
    sentence_ends[bounds[1:] - bounds[0] - 1] = ends[first:last]
    return _cut(starts[:-1] + before, sentence_ends, room)
