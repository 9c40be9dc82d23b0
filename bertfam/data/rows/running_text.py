"""Running text as rows: `[CLS] text [SEP]`, or bare text where the vocabulary has no [CLS].

Text is seen as one line of slots: the tokens of every document and one separator behind each. A row is a range of slots.

    FullSentences     whole sentences, on over the ends of documents with a separator between (Liu et al. 2019, FULL-SENTENCES)
    DocSentences      whole sentences of one document (Liu et al. 2019, DOC-SENTENCES)
    Chunks            so many tokens as fit, on over the ends of documents (Radford et al. 2018)
    WholeDocuments    so many tokens of one document as fit

Every token of the text is in one row; a sentence longer than a row is cut. Where a noise asks for it (`RowForm`) rows have no
[CLS] and [SEP], say where sentences begin, or have the token that follows each.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from bertfam.corruption.corruption import FRAMED, RowForm
from bertfam.corruption.token_ids import TokenIds
from bertfam.data.rows.layout import PackableRows, RowLayout
from bertfam.data.token_cache.documents import Documents
from bertfam.errors import UserError

# Rows that go on over the ends of documents are begun anew about every hundred thousand tokens, and so planned side by side.
_LANE = 1 << 17
_LANES_AT_ONCE = 512


@dataclass(frozen=True)
class TextRows(RowLayout):
    """What all rows of running text have in common; see the module."""

    is_running_text: ClassVar[bool] = True
    whole_sentences: ClassVar[bool]
    across_documents: ClassVar[bool]

    @property
    def gap(self) -> int:
        """Separators behind a document."""
        return 1

    @override
    def check_length(self, length: int) -> None:
        if length < 3:
            raise UserError(f"length {length} is too short for a row of text; use at least 3")

    @override
    def examples(self, documents: Documents, length: int, seed: int, tokens: TokenIds, form: RowForm = FRAMED) -> "TextExamples":
        self.check_length(length)
        frame = _Frame(tokens, form)
        room = length - frame.size
        begins = document_begins(documents, self.gap)
        inner_ends = begins[1:] - (0 if form.continued else self.gap)  # of what rows hold of each document
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
    """Whole sentences, on over the ends of documents with a separator between."""

    whole_sentences, across_documents = True, True


class DocSentences(TextRows, PackableRows):
    """Whole sentences of one document."""

    whole_sentences, across_documents = True, False


@dataclass(frozen=True)
class Chunks(TextRows):
    """So many tokens as fit, on over the ends of documents.

    Attributes:
      separated: whether a separator stands between documents; T5's published rows have none.
    """

    whole_sentences, across_documents = False, True

    separated: bool = True

    @property
    @override
    def gap(self) -> int:
        return int(self.separated)


class WholeDocuments(TextRows, PackableRows):
    """Documents; one that is longer than a row takes several."""

    whole_sentences, across_documents = False, False


class _Frame:
    """What stands around a row's text: [CLS] and [SEP], or nothing where the vocabulary has no [CLS] or bare rows are asked for.

    Between documents stands [SEP], in bare rows what ends a document; where a vocabulary has only one of them, that one.
    """

    def __init__(self, tokens: TokenIds, form: RowForm) -> None:
        self.tokens, self.form = tokens, form
        self.size = 0 if tokens.cls is None or not form.framed else 2
        self.separator = tokens.end_of_text("a row of text") if tokens.sep is None or not form.framed else tokens.sep


class TextExamples:
    """The rows of one corpus at one length."""

    warnings: ClassVar[list[str]] = []

    def __init__(
        self, documents: Documents, begins: np.ndarray, begin: np.ndarray, end: np.ndarray, length: int, frame: _Frame, gap: int
    ) -> None:
        """Rows of the slots begin int64[rows] .. end int64[rows]; document d begins at slot begins[d], behind `gap` separators.

        Of continued rows these are the slots of the next tokens, and an end-of-text token stands at slot -1.
        """
        self._documents, self._begins, self._begin, self._end = documents, begins, begin, end
        self._length, self._frame, self._gap = length, frame, gap

    def __len__(self) -> int:
        return len(self._begin)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each row, its frame included: int64[rows]."""
        return self._end - self._begin + self._frame.size

    def rows(self, examples: np.ndarray, row_keys: np.ndarray) -> dict[str, np.ndarray]:
        """Builds uncorrupted rows; nothing is drawn.

        Args:
          examples: int64[n] in [0, len(self)).
          row_keys: uint64[n], not used.

        Returns:
          `encoder_input_tokens`, `encoder_segment_ids`, `encoder_token_type_ids` int32[n, length], `maskable` bool[n, length];
          of marked text `units` uint8[n, length] too, and what the form asks for.
        """
        form = self._frame.form
        if form.continued:
            found = self._rows(self._begin[examples] - 1, self._end[examples], self._length + 1)
            return _with_next(found, self._frame.tokens.pad)
        found = self._rows(self._begin[examples], self._end[examples], self._length)
        return found | ({"sentence_begins": self._sentence_begins(examples)} if form.sentences else {})

    def _rows(self, begin: np.ndarray, end: np.ndarray, length: int) -> dict[str, np.ndarray]:
        """Rows of the slots begin int64[n] .. end int64[n]; see `rows`."""
        frame, ids = self._frame, self._frame.tokens
        lead = frame.size // 2
        # [n, length]: the slot of each place of the row
        place = np.arange(length) - lead
        slot = begin[:, None] + place
        text = (place >= 0) & (slot < end[:, None])
        first = np.searchsorted(self._begins, begin, side="right") - 1
        last = np.searchsorted(self._begins, end - 1, side="right") - 1
        document = first[:, None]  # [n, 1], or [n, length] where documents end inside of rows
        crossing = last - first
        if crossing.any():
            # A 1 where a document begins inside the row, summed up along it.
            row = np.repeat(np.arange(len(begin)), crossing)
            begun = np.arange(crossing.sum()) - np.repeat(np.cumsum(crossing) - crossing, crossing) + first[row] + 1
            steps = np.zeros(slot.shape, np.int64)
            np.add.at(steps, (row, self._begins[begun] - begin[row] + lead), 1)
            document = document + np.cumsum(steps, axis=1)
        separator = np.zeros_like(text)
        if self._gap and (crossing.any() or (end == self._begins[last + 1]).any()):
            separator = text & (slot == self._begins[document + 1] - 1)
            text &= ~separator
        # Before each token stand as many separators as documents. What is no text reads some token too, and is written over.
        index = slot - self._gap * document
        tokens = self._documents.tokens.take(index, mode="clip").astype(np.int32)
        np.copyto(tokens, ids.pad, where=~text)
        # Nothing can be learnt from predicting that a word is unknown.
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

    def _sentence_begins(self, examples: np.ndarray) -> np.ndarray:
        """Where sentences of the text begin, the first of each document included: bool[n, length]."""
        starts, bounds = self._documents.sentence_starts, self._documents.sentence_bounds
        begin, end = self._begin[examples], self._end[examples]
        first, last = (np.searchsorted(self._begins, slot, side="right") - 1 for slot in (begin, end - 1))
        low = np.searchsorted(starts, begin - self._gap * first)
        # A separator that ends a row has the index of the next document's first token, which is not in the row.
        counts = np.maximum(np.searchsorted(starts, end - self._gap * last) - low, 0)
        row = np.repeat(np.arange(len(examples)), counts)
        sentence = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts) + low[row]
        slot = starts[sentence] + self._gap * (np.searchsorted(bounds, sentence, side="right") - 1)
        result = np.zeros((len(examples), self._length), bool)
        inside = slot < end[row]
        result[row[inside], (slot - begin[row] + self._frame.size // 2)[inside]] = True
        return result


def _with_next(rows: dict[str, np.ndarray], pad: int) -> dict[str, np.ndarray]:
    """Rows with `next_tokens`, of rows int32[n, length + 1] that hold one token more."""
    tokens, segments = rows["encoder_input_tokens"], rows["encoder_segment_ids"][:, 1:]
    return {
        "encoder_input_tokens": np.where(segments > 0, tokens[:, :-1], pad),
        "encoder_segment_ids": segments,
        "next_tokens": tokens[:, 1:],
    }


def document_begins(documents: Documents, gap: int = 1) -> np.ndarray:
    """The slot at which each document begins, and the end, with `gap` separators behind each: int64[documents + 1]."""
    bounds = documents.sentence_bounds
    return documents.sentence_starts[bounds] + gap * np.arange(len(bounds))


def _cut(begin: np.ndarray, end: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray]:
    """Cuts ranges into ranges of `room` and what is left over, in order: int64[ranges] each."""
    counts = -(-(end - begin) // room)
    number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = np.repeat(begin, counts) + number * room
    return starts, np.minimum(starts + room, np.repeat(end, counts))


def _whole_sentences(
    documents: Documents, begins: np.ndarray, ends: np.ndarray, room: int, across: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of as many whole sentences as fit, of documents that end at slots `ends`: begin int64[rows] and end int64[rows]."""
    if across:
        # Lanes begin with the document in which each multiple of a lane's size falls.
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
    """Fills rows in all lanes side by side, one row of each at a time; lane i holds the documents lanes[i] .. lanes[i + 1]."""
    begin, end = _pieces(documents, ends, lanes[0], lanes[-1], room)
    # Which piece each lane is at, and where it is over.
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
    """Sentences of the documents first .. last as ranges of slots, those longer than a row cut: int64[pieces] each."""
    bounds = documents.sentence_bounds[first : last + 1].astype(np.int64)
    starts = documents.sentence_starts[bounds[0] : bounds[-1] + 1].astype(np.int64)
    before = np.repeat(np.arange(first, last), np.diff(bounds))  # separators that stand before each sentence
    sentence_ends = starts[1:] + before
    sentence_ends[bounds[1:] - bounds[0] - 1] = ends[first:last]
    return _cut(starts[:-1] + before, sentence_ends, room)
