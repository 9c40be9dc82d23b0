"""Rows of runs begun earlier (`TextData.rows_version`).

In sentence pairs of version 1, begun before rows had versions, whether B is random is drawn twice, for the plan and for each
epoch, so that some sentences are not used in an epoch. In versions 1 to 3 a packed row of n tokens has at most n / 16 examples,
and no example is divided to fill rows.
"""

import dataclasses

import numpy as np
from typing_extensions import override

from bertfam.corruption import keys
from bertfam.corruption.corruption import FRAMED, RowForm
from bertfam.corruption.token_ids import TokenIds
from bertfam.data.rows.layout import PairLayout, RowLayout
from bertfam.data.rows.packing import Packed
from bertfam.data.rows.sentence_pairs import NEXT, Choice, PairExamples, SentencePairs, plan_chunks
from bertfam.data.rows.text_pairs import TextPairs
from bertfam.data.token_cache.documents import Documents
from bertfam.errors import UserError

_UNLIMITED = 4  # the first version of packed rows with more examples


def earlier_rows(rows: RowLayout, version: int = 1) -> RowLayout:
    """Return the layout that makes the rows of a version; raises UserError for packed pairs of version 1, which had none."""
    if isinstance(rows, Packed) and version < _UNLIMITED:
        rows = EarlierPacked(rows.rows, rows.max_examples, 0.0)
    if not isinstance(rows.content, SentencePairs) or version > 1:
        return rows
    if rows.is_packed:
        raise UserError(
            "TextData.rows_version is 1, but packed sentence pairs exist from version 2 on: start a run in another --model_dir "
            "(--init_from takes the weights); to evaluate this one, add TextData.rows_version = 2 to its config.gin"
        )
    return EarlierPairs(**{field.name: getattr(rows.content, field.name) for field in dataclasses.fields(rows.content)})


def earlier_text_pairs(pairs: PairLayout, version: int) -> PairLayout:
    """Return the layout that makes the rows of a version from pairs of inputs and targets."""
    if version < _UNLIMITED and isinstance(pairs, TextPairs):
        return EarlierTextPairs(pairs.packed, pairs.max_examples)
    return pairs


def _most_examples(length: int) -> int:
    return max(2, length // 16)


class EarlierPacked(Packed):
    """`Packed` of versions 1 to 3."""

    @override
    def most_examples(self, length: int) -> int:
        return self.max_examples or _most_examples(length)


class EarlierTextPairs(TextPairs):
    """`TextPairs` of versions 1 to 3."""

    @override
    def most_examples(self, length: int) -> int:
        return (self.max_examples or _most_examples(length)) if self.packed else 1


class EarlierPairs(SentencePairs):
    """`SentencePairs` of version 1."""

    @property
    @override
    def labels_single_sentences(self) -> bool:
        return self.label_single_sentences is not False

    @override
    def examples(self, documents: Documents, length: int, seed: int, tokens: TokenIds, form: RowForm = FRAMED) -> PairExamples:
        self.check_text(documents, length)
        plan = plan_chunks(self, documents, length, seed, put_back_rate=self.shares[0])
        return EarlierPairExamples(self, documents, length, tokens, plan)


class EarlierPairExamples(PairExamples):
    """`PairExamples` of version 1."""

    @override
    def _choose(self, examples: np.ndarray, epoch_keys: np.ndarray, row_keys: np.ndarray) -> Choice:
        drawn, (random_share, swapped_share) = keys.uniform(keys.bits(row_keys, NEXT, 1)[:, 0]), self._config.shares
        is_random = (drawn < random_share) | (self.plan.sentences[examples] == 1)
        is_swapped = (drawn < random_share + swapped_share) & ~is_random
        return Choice(examples, np.zeros(len(examples), bool), is_random, is_swapped)
