"""Rows of one document each; a longer document is cut into windows that begin at word starts, elsewhere in each epoch.

BigBird's published rows are one random window of each document, which begins at a word start (Zaheer et al. 2020). Here all
windows of a document are used in every epoch.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from bertfam.corruption import keys
from bertfam.corruption.corruption import FRAMED, RowForm
from bertfam.corruption.token_ids import TokenIds
from bertfam.data.rows.layout import RowLayout
from bertfam.data.rows.running_text import Frame, SlotRows, check_text_length, document_begins
from bertfam.data.token_cache.documents import Documents

_GAP = 1  # separators after a document
_OFFSET = 24  # stream of a document's key
_REACH = 32  # most tokens between a nominal cut and the word start before it; in a stretch without any the cut is nominal


@dataclass(frozen=True)
class DocumentWindows(RowLayout):
    """Documents, each a row of its own where it fits.

    A longer document is cut after a first part of random length and then about every row's length, each time before the word that
    holds the cut. The cuts differ from epoch to epoch, the number of windows does not, and every token is in one window of every
    epoch. Without a vocabulary that marks word starts, cuts are between any tokens.
    """

    is_running_text: ClassVar[bool] = True

    @override
    def check_length(self, length: int) -> None:
        check_text_length(length)

    @override
    def examples(
        self, documents: Documents, length: int, seed: int, tokens: TokenIds, form: RowForm = FRAMED
    ) -> "WindowExamples":
        self.check_length(length)
        return WindowExamples(documents, length, Frame(tokens, form))


class WindowExamples(SlotRows):
    """Windows of the documents of one corpus at one length.

    With room for R tokens in a row, a document of n > R tokens has nominal cuts o, o + S, o + 2S, ..., where S = R - reach, and
    a window is at most `reach` tokens longer than S. The offset o is uniform in a range of about S / 2 values or more, in which
    the number of windows is the same.
    """

    def __init__(self, documents: Documents, length: int, frame: Frame) -> None:
        """Plan the windows of all documents in rows of `length` tokens."""
        begins = document_begins(documents, _GAP)
        sizes = np.diff(begins) - (0 if frame.form.continued else _GAP)
        room = length - frame.size
        marks = frame.tokens.starts_word
        self._starts_word = marks if len(marks) == frame.tokens.size else None
        self._reach = 0 if self._starts_word is None else min(_REACH, room // 8)
        self._stride = stride = room - self._reach
        cuts = -(-sizes // stride)
        rest = sizes - (cuts - 1) * stride  # 1 .. stride
        # Offsets rest .. stride leave `cuts` windows, and offsets 1 .. rest - 1 leave one more.
        is_more, is_whole = rest - 1 > stride - rest + 1, sizes <= room
        windows = np.where(is_whole, 1, cuts + is_more)
        self._low, self._high = np.where(is_more, 1, rest), np.where(is_more, rest - 1, stride)
        self._sizes, self._windows, self._first = sizes, windows, np.cumsum(windows) - windows
        super().__init__(documents, begins, length, frame, _GAP)

    @override
    def __len__(self) -> int:
        return int(self._windows.sum())

    @override
    def _bounds(self, examples: np.ndarray, row_keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        document = np.searchsorted(self._first, examples, side="right") - 1
        window, size = examples - self._first[document], self._sizes[document]
        # All windows of a document have the offset of the epoch.
        epochs = keys.fold(keys.unfold(row_keys, examples), document)
        low, high = self._low[document], self._high[document]
        offset = low + keys.integers(keys.bits(epochs, _OFFSET, 1)[:, 0], high - low + 1)
        cut = offset + (window - 1) * self._stride
        begin = np.where(window == 0, 0, self._at_word_start(document, cut))
        end = np.where(window == self._windows[document] - 1, size, self._at_word_start(document, cut + self._stride))
        return self._begins[document] + begin, self._begins[document] + end

    def _at_word_start(self, document: np.ndarray, cut: np.ndarray) -> np.ndarray:
        """Return the last word start at or before cuts int64[n] of documents int64[n], or the cut itself: int64[n]."""
        if not self._reach or self._starts_word is None:
            return cut
        # [n, reach]: places before the cut, the nearest first; the start of the document is no cut
        place = cut[:, None] - np.arange(self._reach)
        index = (self._begins[document] - self._gap * document)[:, None] + place
        is_start = self._starts_word.take(self._documents.tokens.take(index, mode="clip")) & (place > 0)
        return cut - np.where(is_start.any(axis=1), is_start.argmax(axis=1), 0)
