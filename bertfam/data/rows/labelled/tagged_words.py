"""Rows of sentences whose words have tags, one each; the tag of a word is that of its first token (Devlin et al. 2019, 5.3)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from bertfam.corruption.corruption import FRAMED, RowForm, TextCorruption
from bertfam.corruption.token_ids import TokenIds
from bertfam.data.rows.labelled.labelled_texts import LabelledExamples
from bertfam.data.rows.layout import RowLayout
from bertfam.data.token_cache.documents import Documents
from bertfam.errors import UserError
from bertfam.features import FeatureSpec, RowShape, encoder_features, label_features


@dataclass(frozen=True)
class TaggedWords(RowLayout):
    """Sentences of a tagged corpus, a row each, such as `[CLS] A [SEP]`; words beyond the end of a row are cut off."""

    is_labelled: ClassVar[bool] = True
    labels_words: ClassVar[bool] = True

    @override
    def examples(
        self, documents: Documents, length: int, seed: int, tokens: TokenIds, form: RowForm = FRAMED
    ) -> "TaggedExamples":
        assert documents.labels is not None
        if tokens.frame is None:
            raise UserError("the vocabulary has no control tokens around a text: fine-tune a model whose vocabulary has them")
        return TaggedExamples(documents, documents.labels, length, tokens, tokens.frame)


class TaggedExamples(LabelledExamples):
    """Rows of one tagged corpus at one length; `labels` and `label_weights` are float32[n, length], nonzero at first tokens."""

    @override
    def _text_lengths(self) -> np.ndarray:
        starts, bounds = self._documents.sentence_starts, self._documents.sentence_bounds
        return (starts[bounds[1:]] - starts[bounds[:-1]])[:, None]

    @override
    def _label_values(self, examples: np.ndarray, source: np.ndarray, in_text: np.ndarray) -> np.ndarray:
        starts = self._documents.sentence_starts
        # Of words that start at one token, all but the last have no tokens.
        word = np.searchsorted(starts, source, side="right") - 1
        is_first = in_text & (starts[word] == source)
        values = self._labels.take(word.reshape(-1), mode="clip").reshape(word.shape)
        return np.where(is_first, values, np.float32(np.nan))


@dataclass(frozen=True)
class Tags(TextCorruption):
    """`TextCorruption` of tagged rows: none."""

    packs: ClassVar[bool] = False

    @property
    @override
    def labels(self) -> int:
        return 1

    @property
    @override
    def labels_words(self) -> bool:
        return True

    @override
    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        return encoder_features(shape) | label_features(shape, None)

    @override
    def corrupt(self, rows: dict[str, np.ndarray], row_keys: np.ndarray, tokens: TokenIds) -> dict[str, np.ndarray]:
        return rows
