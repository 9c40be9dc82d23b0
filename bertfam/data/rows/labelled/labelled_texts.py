"""Rows of labelled texts, one each, framed as tokenizers of the family frame a text or a pair of texts."""

import copy
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from typing_extensions import override

from bertfam.corruption.corruption import FRAMED, RowForm, TextCorruption
from bertfam.corruption.decoder_rows import start_id
from bertfam.corruption.token_ids import ControlToken, TextFrame, TokenIds
from bertfam.data.rows.layout import RowLayout
from bertfam.data.token_cache.documents import Documents, Values
from bertfam.errors import RowMistake, UserError
from bertfam.features import FeatureSpec, RowShape, Start, encoder_features, label_features, shifted_features


@dataclass(frozen=True)
class LabelledTexts(RowLayout):
    """Documents of a labelled corpus, a row each, such as `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`.

    A row that is too long loses tokens at the end of the longer text first, as with the truncation "longest_first" of
    Hugging Face's tokenizers.

    Attributes:
      framed: False for texts as a causal LM reads them, without control tokens around and between them.
      start: Token that every text without frame begins with; None: there is none.
      requires_cls: False for a classifier that does not read the hidden state of [CLS].
    """

    is_labelled: ClassVar[bool] = True

    framed: bool = True
    start: Start | None = None
    requires_cls: bool = True

    @override
    def examples(
        self, documents: Documents, length: int, seed: int, tokens: TokenIds, form: RowForm = FRAMED
    ) -> "LabelledExamples":
        assert documents.labels is not None
        if not self.framed:
            before = () if self.start is None else (ControlToken(start_id(self.start, tokens, "a text"), 0),)
            return self.make_examples(documents, documents.labels, length, tokens, TextFrame(before, (), (), (), 0))
        if tokens.frame is None or (self.requires_cls and tokens.cls is None):
            raise UserError(
                "the vocabulary has no [CLS], from which a classifier of texts predicts: fine-tune a model whose vocabulary "
                "has one"
            )
        return self.make_examples(documents, documents.labels, length, tokens, tokens.frame)

    def make_examples(
        self, documents: Documents, labels: Values, length: int, tokens: TokenIds, frame: TextFrame
    ) -> "LabelledExamples":
        """Make the rows of labelled documents."""
        return LabelledExamples(documents, labels, length, tokens, frame)


class LabelledExamples:
    """Rows of one labelled corpus at one length.

    Attributes:
      parts: Number of equal parts of a row, each with a text and padding of its own.
      cut: Number of texts whose ends are cut off.
    """

    parts: int = 1

    def __init__(self, documents: Documents, labels: Values, length: int, tokens: TokenIds, frame: TextFrame) -> None:
        """Create rows of `length` positions."""
        self._documents, self._labels, self._length, self._tokens, self._frame = documents, labels, length, tokens, frame
        lengths = self._text_lengths()
        self._is_pair = lengths.shape[1] == 2
        room = length - frame_size(frame, is_pair=self._is_pair)
        if room < 2:
            raise RowMistake(f"length {length} is too short for a labelled text; use at least {length - room + 2}")
        self._sizes = truncated(lengths, room)
        is_cut = (lengths.sum(axis=1) > room).reshape(len(documents), -1).any(axis=1)
        self.cut, self.warnings = int(is_cut.sum()), list[str]()
        if self.cut:
            self.warnings.append(
                f"{self.cut:,} of the {len(documents):,} texts of {documents.name} have more than {room} tokens, and their ends "
                "are cut off: raise Stage.length (--length) to keep them whole"
            )

    def __len__(self) -> int:
        return len(self._documents)

    @property
    def row_sizes(self) -> np.ndarray:
        """Tokens of each row up to its padding: int64[rows]; of rows in parts, the longest part's times their number."""
        return self._sizes.sum(axis=1) + frame_size(self._frame, is_pair=self._is_pair)

    def shortened(self, length: int) -> Self:
        """Return the examples with rows of `length` positions, for rows that have nothing but padding beyond them."""
        examples = copy.copy(self)
        examples._length = length // self.parts
        return examples

    def documents_of(self, examples: np.ndarray) -> np.ndarray:
        """Return the document of each example: int64[n]."""
        return examples

    def rows(self, examples: np.ndarray, row_keys: np.ndarray) -> dict[str, np.ndarray]:
        """Build finished rows, without random draws.

        Args:
          examples: int64[n] in [0, len(self)).
          row_keys: uint64[n], unused.

        Returns:
          `encoder_input_tokens`, `encoder_segment_ids`, `encoder_token_type_ids` int32[n, length],
          `sequence_start_positions` int32[n, 1], the position of [CLS], and `labels`, `label_weights` float32[n, labels]; a label
          that is not known has weight 0.
        """
        (a_start, a_size), (b_start, b_size) = self._spans(examples)
        frame, place = self._frame, np.arange(self._length)
        between, after = (frame.between, frame.after_two) if self._is_pair else ((), frame.after_one)
        a_begin = len(frame.before)
        a_end = a_begin + a_size
        b_begin = a_end + len(between)
        b_end = b_begin + b_size
        # [n, length]
        in_b = (place >= b_begin[:, None]) & (place < b_end[:, None])
        in_text = in_b | ((place >= a_begin) & (place < a_end[:, None]))
        source = place + np.where(in_b, (b_start - b_begin)[:, None], (a_start - a_begin)[:, None])
        tokens = np.full(in_text.shape, self._tokens.pad, np.int32)
        tokens[in_text] = self._documents.tokens.take(source[in_text])
        types = np.where(in_b, np.int32(frame.second_type), np.int32(0))
        row, first = np.arange(len(examples)), np.zeros_like(a_end)
        cls_position = first
        for begin, controls in ((first, frame.before), (a_end, between), (b_end, after)):
            for number, control in enumerate(controls):
                tokens[row, begin + number], types[row, begin + number] = control
                if control.id == self._tokens.cls:
                    cls_position = begin + number
        values = self._label_values(examples, source, in_text)
        is_known = np.isfinite(values)
        return {
            "encoder_input_tokens": tokens,
            "encoder_segment_ids": (place < (b_end + len(after))[:, None]).astype(np.int32),
            "encoder_token_type_ids": types,
            "sequence_start_positions": cls_position[:, None].astype(np.int32),
            "labels": np.where(is_known, values, np.float32(0)),
            "label_weights": is_known.astype(np.float32),
        }

    def _spans(self, examples: np.ndarray) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
        """Return the first token and the number of tokens of A, and of B, of examples int64[n]: int64[n] each."""
        starts, first_text = self._documents.sentence_starts, self._documents.sentence_bounds[examples]
        size = self._sizes[examples]
        a = starts[first_text], size[:, 0]
        return a, (starts[first_text + 1], size[:, 1]) if self._is_pair else (a[0], np.zeros_like(a[1]))

    def _text_lengths(self) -> np.ndarray:
        """Return the tokens of each text of each document: int64[documents, 1 or 2]."""
        return np.diff(self._documents.sentence_starts).reshape(len(self._documents), -1)

    def _label_values(self, examples: np.ndarray, source: np.ndarray, in_text: np.ndarray) -> np.ndarray:
        """Return the labels of examples, nan where there is none: float32[n, labels].

        Args:
          examples: int64[n].
          source: int64[n, length], the token of the text at each position.
          in_text: bool[n, length], False at control tokens and padding, whose `source` means nothing.
        """
        count = self._documents.label_count
        return self._labels.take(examples[:, None] * count + np.arange(count))


@dataclass(frozen=True)
class Labels(TextCorruption):
    """`TextCorruption` of labelled rows: none.

    Attributes:
      count: Number of labels of a text.
      start: First token of the decoder's input, which goes on with the text, shifted right by one; None: rows have no such input.
    """

    packs: ClassVar[bool] = False

    count: int = 1
    start: Start | None = None

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UserError(f"Labels.count is {self.count}: a text has at least one label")

    @property
    @override
    def labels(self) -> int:
        return self.count

    @override
    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        shifted = {} if self.start is None else shifted_features(shape)
        return encoder_features(shape) | label_features(shape, self.count) | shifted

    @override
    def corrupt(self, rows: dict[str, np.ndarray], row_keys: np.ndarray, tokens: TokenIds) -> dict[str, np.ndarray]:
        if self.start is None:
            return rows
        inputs = rows["encoder_input_tokens"]
        shifted = np.full_like(inputs, start_id(self.start, tokens, "a text"))
        shifted[:, 1:] = inputs[:, :-1]
        return rows | {"decoder_input_tokens": shifted}


def frame_size(frame: TextFrame, *, is_pair: bool) -> int:
    """Return the number of control tokens around one text, or around and between two."""
    inner = len(frame.between) + len(frame.after_two) if is_pair else len(frame.after_one)
    return len(frame.before) + inner


def truncated(lengths: np.ndarray, room: int) -> np.ndarray:
    """Return the tokens of each text that fit: int64[n, 1 or 2].

    Two texts are cut as by "longest_first" of Hugging Face's tokenizers (0.23): the longer one first; where both are too long
    the longer one, or the second, has the odd token.

    Args:
      lengths: int64[n, 1 or 2], tokens of each text.
      room: tokens of a row without control tokens.
    """
    if lengths.shape[1] == 1:
        return np.minimum(lengths, room)
    shorter, longer = np.sort(lengths, axis=1).T
    fitting = np.where(shorter > room, shorter, np.maximum(shorter, room - shorter))
    both = shorter + fitting > room
    short, long = np.where(both, room // 2, shorter), np.where(both, room - room // 2, np.minimum(longer, fitting))
    is_first_longer = (lengths[:, 0] > lengths[:, 1])[:, None]
    fits = (shorter + longer <= room)[:, None]
    cut = np.where(is_first_longer, np.stack([long, short], axis=1), np.stack([short, long], axis=1))
    return np.where(fits, lengths, cut)
