"""Rows of questions with several choices, one of which is right: the text with each choice, one after another."""

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from bertfam.corruption.token_ids import TextFrame, TokenIds
from bertfam.data.rows.labelled.labelled_texts import LabelledExamples, LabelledTexts, Labels
from bertfam.data.token_cache.documents import Documents, Values
from bertfam.errors import UserError
from bertfam.features import FeatureSpec, RowShape, choice_features, encoder_features


@dataclass(frozen=True)
class ChoiceTexts(LabelledTexts):
    """Documents of a text and its choices, a row each: `[CLS] text [SEP] choice [SEP]` for every choice.

    The choices have equal parts of the row. A part that is too long loses tokens at the end of the longer text first, as in
    `LabelledTexts`.

    Attributes:
      choices: Number of choices.
    """

    choices: int = 2

    @property
    @override
    def texts(self) -> int:
        return 1 + self.choices

    @override
    def check_length(self, length: int) -> None:
        if length % self.choices:
            raise UserError(f"length {length} does not divide into {self.choices} choices; use a multiple of {self.choices}")

    @override
    def make_examples(
        self, documents: Documents, labels: Values, length: int, tokens: TokenIds, frame: TextFrame
    ) -> "ChoiceExamples":
        return ChoiceExamples(documents, labels, length, tokens, frame, self.choices)


class ChoiceExamples(LabelledExamples):
    """Rows of one corpus of questions with choices."""

    def __init__(
        self, documents: Documents, labels: Values, length: int, tokens: TokenIds, frame: TextFrame, choices: int
    ) -> None:
        """Create rows of `length` positions."""
        self.parts = choices
        super().__init__(documents, labels, length // choices, tokens, frame)

    @override
    def rows(self, examples: np.ndarray, row_keys: np.ndarray) -> dict[str, np.ndarray]:
        """Build finished rows; see `LabelledExamples.rows`.

        There is a [CLS] for each choice: `sequence_start_positions` are int32[n, choices], its positions in its part of the row.
        """
        # Each pair of a text and a choice: [n * choices]
        pairs = (examples[:, None] * self.parts + np.arange(self.parts)).reshape(-1)
        rows = super().rows(pairs, row_keys)
        labels = {name: rows.pop(name)[:: self.parts] for name in ("labels", "label_weights")}
        return {name: value.reshape(len(examples), -1) for name, value in rows.items()} | labels

    @property
    @override
    def row_sizes(self) -> np.ndarray:
        return self.parts * super().row_sizes.reshape(-1, self.parts).max(axis=1)

    @override
    def _spans(self, examples: np.ndarray) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
        starts, size = self._documents.sentence_starts, self._sizes[examples]
        document, choice = np.divmod(examples, self.parts)
        text = self._documents.sentence_bounds[document]
        return (starts[text], size[:, 0]), (starts[text + 1 + choice], size[:, 1])

    @override
    def _text_lengths(self) -> np.ndarray:
        lengths = super()._text_lengths()
        # [documents, 1 + choices] -> [documents * choices, 2]
        pairs = np.stack([np.repeat(lengths[:, :1], self.parts, axis=1), lengths[:, 1:]], axis=2)
        return pairs.reshape(-1, 2)

    @override
    def _label_values(self, examples: np.ndarray, source: np.ndarray, in_text: np.ndarray) -> np.ndarray:
        return super()._label_values(examples // self.parts, source, in_text)


@dataclass(frozen=True)
class ChoiceLabels(Labels):
    """`TextCorruption` of rows of choices: none.

    Attributes:
      choices: Number of choices.
    """

    choices: int = 2

    @override
    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        return encoder_features(shape) | choice_features(self.choices)
