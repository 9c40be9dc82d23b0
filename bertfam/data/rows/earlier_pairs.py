"""Sentence pairs of runs begun before rows had versions (`TextData.rows_version` 1).

Whether B is random is drawn twice, for the plan and for each epoch, so that some sentences are not used in an epoch.
"""

import dataclasses

import numpy as np
from typing_extensions import override

from bertfam.corruption import keys
from bertfam.corruption.corruption import FRAMED, RowForm
from bertfam.corruption.token_ids import TokenIds
from bertfam.data.rows.layout import RowLayout
from bertfam.data.rows.sentence_pairs import NEXT, Choice, PairExamples, SentencePairs, plan_chunks
from bertfam.data.token_cache.documents import Documents
from bertfam.errors import UserError


def earlier_rows(rows: RowLayout) -> RowLayout:
    """Return the layout that makes the rows of version 1; raises UserError for packed pairs, which it cannot make."""
    if not isinstance(rows.content, SentencePairs):
        return rows
    if rows.is_packed:
        raise UserError(
            "TextData.rows_version is 1, but packed sentence pairs exist from version 2 on: start a run in another --model_dir "
            "(--init_from takes the weights); to evaluate this one, add TextData.rows_version = 2 to its config.gin"
        )
    return EarlierPairs(**{field.name: getattr(rows.content, field.name) for field in dataclasses.fields(rows.content)})


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
