"""Rows of a question, a passage that answers it and hard negatives, each framed and padded by itself, for dual encoders."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from bertfam.corruption.corruption import FRAMED, RowForm
from bertfam.corruption.token_ids import TextFrame, TokenIds
from bertfam.data.rows.labelled.labelled_texts import LabelledExamples, Labels, frame_size
from bertfam.data.rows.layout import RowLayout
from bertfam.data.token_cache.documents import Documents
from bertfam.errors import RowMistake, UserError
from bertfam.features import FeatureSpec, RowShape, text_features

_NAMES = ("encoder_input_tokens", "encoder_segment_ids", "encoder_token_type_ids")


@dataclass(frozen=True)
class PassageTexts(RowLayout):
    """Documents of a question and its passages, a row each: `[CLS] question [SEP]`, then `[CLS] passage [SEP]` for every passage.

    The passages have equal parts of the row. A text that is too long loses its end. A passage without tokens is padding, which
    `DualEncoder` leaves out.

    Attributes:
      query_length: Positions of the question.
      passages: Number of passages, the right one first.
    """

    is_labelled: ClassVar[bool] = True

    query_length: int = 64
    passages: int = 2

    def __post_init__(self) -> None:
        for name in ("query_length", "passages"):
            if getattr(self, name) < 1:
                raise UserError(f"PassageTexts.{name} is {getattr(self, name)}: it must be at least 1")

    @property
    @override
    def texts(self) -> int:
        return 1 + self.passages

    @override
    def check_length(self, length: int) -> None:
        rest = length - self.query_length
        if rest < self.passages or rest % self.passages:
            raise UserError(
                f"length {length} leaves {max(rest, 0)} positions after those of PassageTexts.query_length {self.query_length}, "
                f"which do not divide into passages ({self.passages}): change one of them"
            )

    @override
    def examples(
        self, documents: Documents, length: int, seed: int, tokens: TokenIds, form: RowForm = FRAMED
    ) -> "PassageExamples":
        self.check_length(length)
        if tokens.frame is None or tokens.cls is None:
            raise UserError("the vocabulary does not put [CLS] before a text, whose vector it is: train an encoder's")
        return PassageExamples(self, documents, length, tokens, tokens.frame)


class PassageExamples:
    """Rows of the questions of one corpus at one length.

    Attributes:
      cut: Number of questions whose end, or that of a passage, is cut off.
      warnings: Lines about them.
    """

    def __init__(self, layout: PassageTexts, documents: Documents, length: int, tokens: TokenIds, frame: TextFrame) -> None:
        """Create rows of `length` positions."""
        self._documents, self._pad, self._passages = documents, tokens.pad, layout.passages
        self._sizes = np.diff(documents.sentence_starts).reshape(len(documents), layout.texts)  # tokens of each text
        count = self._sizes.size
        # Each text is a document of its own, with a label that nothing reads.
        labels = np.zeros(count, np.float32)
        texts = Documents(
            documents.name, documents.tokens, documents.sentence_starts, np.arange(count + 1), labels=labels, label_count=1
        )
        passage_length, frame_positions = (length - layout.query_length) // layout.passages, frame_size(frame, is_pair=False)
        for what, positions, setting in (
            ("questions", layout.query_length, "--gin.QUERY_LENGTH"),
            ("passages", passage_length, "--length"),
        ):
            if positions < frame_positions + 2:
                raise RowMistake(
                    f"{what} of {positions} tokens, of which {frame_positions} are control tokens, are too short: give at least "
                    f"{frame_positions + 2} ({setting})"
                )
        self._query, self._passage = (
            LabelledExamples(texts, labels, positions, tokens, frame) for positions in (layout.query_length, passage_length)
        )
        room = np.array([layout.query_length, passage_length]) - frame_positions
        is_cut = self._sizes > np.repeat(room, [1, layout.passages])
        self.cut, self.warnings = int(is_cut.any(axis=1).sum()), list[str]()
        for what, cut, most, setting in (
            ("questions", is_cut[:, 0], room[0], "--gin.QUERY_LENGTH"),
            ("passages", is_cut[:, 1:], room[1], "--length"),
        ):
            if number := int(cut.sum()):
                self.warnings.append(
                    f"{number:,} of the {cut.size:,} {what} of {documents.name} have more than {most} tokens, and their ends are "
                    f"cut off: raise {setting} to keep them whole"
                )

    def __len__(self) -> int:
        return len(self._documents)

    def documents_of(self, examples: np.ndarray) -> np.ndarray:
        """Return the document of each example: int64[n]."""
        return examples

    def rows(self, examples: np.ndarray, row_keys: np.ndarray) -> dict[str, np.ndarray]:
        """Build finished rows, without random draws.

        Args:
          examples: int64[n] in [0, len(self)).
          row_keys: uint64[n], unused.

        Returns:
          `encoder_input_tokens`, `encoder_segment_ids` (1 in the question, 2, 3, ... in the passages), `encoder_token_type_ids`
          int32[n, length], and `sequence_start_positions` int32[n, 1 + passages], the position of [CLS] in each text.
        """
        first = self._documents.sentence_bounds[examples]
        parts = [self._part(self._query, first, 1)]
        parts += [self._part(self._passage, first + number, 1 + number) for number in range(1, 1 + self._passages)]
        return {name: np.concatenate([part[name] for part in parts], axis=1) for name in (*_NAMES, "sequence_start_positions")}

    def _part(self, examples: LabelledExamples, texts: np.ndarray, segment: int) -> dict[str, np.ndarray]:
        """Return the features of one text of each row, padding where it has no tokens."""
        part, is_text = examples.rows(texts, texts), self._sizes.reshape(-1)[texts, None] > 0
        rest = {"encoder_input_tokens": self._pad}
        part["encoder_segment_ids"] = segment * part["encoder_segment_ids"]
        return {name: np.where(is_text, value, np.int32(rest.get(name, 0))) for name, value in part.items()}


@dataclass(frozen=True)
class PassageLabels(Labels):
    """`TextCorruption` of rows of a question and passages: none. The right passage is the first, so rows have no labels.

    Attributes:
      passages: Number of passages.
    """

    passages: int = 2

    @property
    @override
    def labelled_unit(self) -> str:
        return "question"

    @override
    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        return text_features(shape, 1 + self.passages)
