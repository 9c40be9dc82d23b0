"""Rows of labelled texts of any length: windows of them that overlap, each with the label of its text."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from typing_extensions import override

from bertfam.corruption.token_ids import TextFrame, TokenIds
from bertfam.data.rows.labelled.labelled_texts import LabelledExamples, LabelledTexts, frame_size
from bertfam.data.token_cache.documents import Documents, Values
from bertfam.errors import RowMistake, UserError


class WindowParts(NamedTuple):
    """Parts of texts that windows show: int64[n] each.

    Attributes:
      text: Index of the text.
      first: First token of the window in its text.
      size: Tokens of the window.
    """

    text: np.ndarray
    first: np.ndarray
    size: np.ndarray


class Windows:
    """Windows of several texts, in their order: each but the first of a text begins `stride` tokens after the one before it."""

    def __init__(self, lengths: np.ndarray, room: np.ndarray | int, stride: int) -> None:
        """Plan the windows.

        Args:
          lengths: int64[texts], tokens of each text.
          room: tokens of a window, of all texts or int64[texts].
          stride: tokens from the beginning of a window to that of the next one.
        """
        self._lengths, self._room, self._stride = lengths, np.broadcast_to(room, lengths.shape), stride
        counts = 1 + -(-np.maximum(lengths - self._room, 0) // stride)
        self._first, self._count = np.cumsum(counts) - counts, int(counts.sum())

    def __len__(self) -> int:
        return self._count

    def parts(self, windows: np.ndarray) -> WindowParts:
        """Return the parts of their texts that windows int64[n] show."""
        text = np.searchsorted(self._first, windows, side="right") - 1
        first = (windows - self._first[text]) * self._stride
        return WindowParts(text, first, np.minimum(self._lengths[text] - first, self._room[text]))


@dataclass(frozen=True)
class TextWindows(LabelledTexts):
    """Windows of the documents of a labelled corpus, a row each: `[CLS] window [SEP]`.

    A document is one text. Each of its windows has its label, so that long texts have more rows than short ones; predictions
    average the outputs of a text's windows.

    Attributes:
      stride: Tokens from the beginning of a window to that of the next one.
    """

    stride: int = 64

    def __post_init__(self) -> None:
        if self.stride < 1:
            raise UserError(f"TextWindows.stride is {self.stride}: it must be at least 1")

    @property
    @override
    def texts(self) -> int:
        return 1

    @override
    def make_examples(
        self, documents: Documents, labels: Values, length: int, tokens: TokenIds, frame: TextFrame
    ) -> "WindowExamples":
        return WindowExamples(documents, labels, length, tokens, frame, self.stride)


class WindowExamples(LabelledExamples):
    """Windows of the texts of one labelled corpus at one length."""

    def __init__(
        self, documents: Documents, labels: Values, length: int, tokens: TokenIds, frame: TextFrame, stride: int
    ) -> None:
        """Plan the windows of all texts in rows of `length` positions."""
        super().__init__(documents, labels, length, tokens, frame)
        if self._is_pair:
            raise UserError("windows are of single texts, and this corpus has pairs: leave --stride (TextWindows) out")
        room = length - frame_size(frame, is_pair=False)
        if stride > room:
            raise RowMistake(
                f"--stride={stride} (TextWindows.stride) is more than the {room} tokens of a text in a row of {length}, so that "
                f"windows leave tokens out: lower it to at most {room}, or raise --length"
            )
        self._windows = Windows(self._text_lengths()[:, 0], room, stride)
        self.cut, self.warnings = 0, []

    @override
    def __len__(self) -> int:
        return len(self._windows)

    @property
    @override
    def row_sizes(self) -> np.ndarray:
        return self._windows.parts(np.arange(len(self))).size + frame_size(self._frame, is_pair=False)

    @override
    def documents_of(self, examples: np.ndarray) -> np.ndarray:
        return self._windows.parts(examples).text

    @override
    def _spans(self, examples: np.ndarray) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
        text, first, size = self._windows.parts(examples)
        start = self._documents.sentence_starts[self._documents.sentence_bounds[text]] + first
        return (start, size), (start, np.zeros_like(size))

    @override
    def _label_values(self, examples: np.ndarray, source: np.ndarray, in_text: np.ndarray) -> np.ndarray:
        return super()._label_values(self.documents_of(examples), source, in_text)
