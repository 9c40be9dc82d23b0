"""Rows of questions with windows of the texts that answer them (Devlin et al. 2019, section 4.2, and the published code)."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from typing_extensions import override

from bertfam.corruption.corruption import FRAMED, RowForm
from bertfam.corruption.token_ids import TextFrame, TokenIds
from bertfam.data.rows.labelled.labelled_texts import LabelledExamples, frame_size
from bertfam.data.rows.labelled.text_windows import Windows
from bertfam.data.rows.layout import RowLayout
from bertfam.data.token_cache.documents import Documents, Values
from bertfam.errors import UserError


@dataclass(frozen=True)
class AnswerWindows(RowLayout):
    """`[CLS] question [SEP] window [SEP]`: a context that is longer than a row is divided into windows that overlap.

    The label of a window is the first and the last position of the answer, or the position of [CLS] twice, where the answer is
    not completely in the window or there is none.

    Attributes:
      stride: Tokens from the beginning of a window to that of the next one.
      max_question: Tokens of a question, beyond which it is cut off.
    """

    is_labelled: ClassVar[bool] = True

    stride: int = 128
    max_question: int = 64

    def __post_init__(self) -> None:
        for name in ("stride", "max_question"):
            if getattr(self, name) < 1:
                raise UserError(f"AnswerWindows.{name} is {getattr(self, name)}: it must be at least 1")

    @override
    def check_length(self, length: int) -> None:
        if length < self.max_question + self.stride:
            raise UserError(
                f"length {length} is too short for questions of {self.max_question} tokens and windows that begin every "
                f"{self.stride}: raise it (--length), or lower AnswerWindows.max_question and AnswerWindows.stride"
            )

    @override
    def examples(
        self, documents: Documents, length: int, seed: int, tokens: TokenIds, form: RowForm = FRAMED
    ) -> "AnswerExamples":
        assert documents.labels is not None
        if tokens.frame is None or not tokens.frame.before or tokens.frame.before[0].id != tokens.cls:
            raise UserError("the vocabulary does not begin texts with [CLS], which stands for no answer: fine-tune another model")
        self.check_length(length)
        return AnswerExamples(self, documents, documents.labels, length, tokens, tokens.frame)


class WindowPlaces(NamedTuple):
    """Places of windows: int64[n] each.

    Attributes:
      document: Question.
      first: First token of the window in its context.
      position: Position in the row of that token.
      size: Tokens of the window.
    """

    document: np.ndarray
    first: np.ndarray
    position: np.ndarray
    size: np.ndarray


class AnswerExamples(LabelledExamples):
    """Windows of the questions of one corpus at one length."""

    def __init__(
        self, layout: AnswerWindows, documents: Documents, labels: Values, length: int, tokens: TokenIds, frame: TextFrame
    ) -> None:
        """Plan the windows of all questions in rows of `length` positions."""
        super().__init__(documents, labels, length, tokens, frame)
        lengths = self._text_lengths()
        self._question = np.minimum(lengths[:, 0], layout.max_question)
        room = length - frame_size(frame, is_pair=True) - self._question
        if len(documents) and room.min() < layout.stride:
            layout.check_length(0)
        self._windows = Windows(lengths[:, 1], room, layout.stride)
        self.warnings = []
        if cut := int((lengths[:, 0] > layout.max_question).sum()):
            self.warnings.append(
                f"{cut:,} of the {len(documents):,} questions of {documents.name} have more than AnswerWindows.max_question = "
                f"{layout.max_question} tokens, and are cut off: raise it to keep them whole"
            )

    @override
    def __len__(self) -> int:
        return len(self._windows)

    @override
    def documents_of(self, examples: np.ndarray) -> np.ndarray:
        return self._windows.parts(examples).text

    @property
    @override
    def row_sizes(self) -> np.ndarray:
        places = self.places(np.arange(len(self)))
        return self._question[places.document] + places.size + frame_size(self._frame, is_pair=True)

    def places(self, examples: np.ndarray) -> WindowPlaces:
        """Return the places of windows int64[n]."""
        document, first, size = self._windows.parts(examples)
        position = len(self._frame.before) + self._question[document] + len(self._frame.between)
        return WindowPlaces(document, first, position, size)

    @override
    def _spans(self, examples: np.ndarray) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
        places, starts = self.places(examples), self._documents.sentence_starts
        question = self._documents.sentence_bounds[places.document]
        return (starts[question], self._question[places.document]), (starts[question + 1] + places.first, places.size)

    @override
    def _label_values(self, examples: np.ndarray, source: np.ndarray, in_text: np.ndarray) -> np.ndarray:
        places = self.places(examples)
        # [n, 2]: first and last token of the answer in its context; -1: there is none; nan: it is not known
        answer = self._labels.take((2 * places.document)[:, None] + np.arange(2))
        inside = (answer[:, 0] >= places.first) & (answer[:, 1] < places.first + places.size)
        position = np.where(inside[:, None], answer + (places.position - places.first)[:, None], 0)
        return np.where(np.isnan(answer), answer, position).astype(np.float32)
