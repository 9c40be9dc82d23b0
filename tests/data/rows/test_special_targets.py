"""Unknown, control and padding tokens as targets, for each kind of noise; docs/data.md has the same table."""

import numpy as np
import pytest

from bertfam.corruption.bart.denoising import Denoising
from bertfam.corruption.bart.token_noise import TokenMasking
from bertfam.corruption.corruption import FRAMED
from bertfam.corruption.keys import fold
from bertfam.corruption.masked_lm.masking import BertMasking
from bertfam.corruption.next_tokens import NextTokens
from bertfam.corruption.t5.span_corruption import SpanCorruption
from bertfam.corruption.token_ids import TokenIds
from bertfam.data.rows.running_text import Chunks, FullSentences
from bertfam.data.rows.sentence_pairs import SentencePairs
from bertfam.data.token_cache.documents import Documents

PAD, UNK, CLS, SEP, MASK, END = range(6)
SIZE, SENTINELS = 200, tuple(range(199, 99, -1))
FRAME = TokenIds(size=SIZE, pad=PAD, unk=UNK, cls=CLS, sep=SEP, mask=MASK, special=(0, 1, 2, 3, 4))
BARE = TokenIds(size=SIZE, pad=PAD, unk=UNK, eos=END, mask=MASK, special=(0, 1, 4, 5), sentinels=SENTINELS)
# GPT-2's end-of-text token pads rows too.
SAME = TokenIds(size=SIZE, pad=END, unk=END, eos=END, special=(END,))
LENGTH = 32


@pytest.fixture(scope="module")
def documents():
    """Forty documents of three sentences of seven tokens, of which a fifth is unknown."""
    generator = np.random.default_rng(0)
    tokens = generator.integers(6, 100, 840).astype(np.uint32)
    tokens[generator.random(840) < 0.2] = UNK
    return Documents("toy", tokens, np.arange(0, 841, 7), np.arange(0, 121, 3))


def corrupted(documents, rows, corruption, ids):
    """Return all finished rows of a noise."""
    form = FRAMED if isinstance(rows, SentencePairs) else corruption.form
    examples = rows.examples(documents, corruption.raw_length(LENGTH), 0, ids, form)
    numbers = np.arange(len(examples))
    row_keys = fold(np.full(len(numbers), 7, np.uint64), numbers)
    return corruption.corrupt(examples.rows(numbers, row_keys), row_keys, ids)


def decoder_targets(rows):
    """Return the targets that have a weight, after a check that padding has none."""
    real = rows["decoder_loss_weights"] > 0
    assert np.array_equal(real, rows["decoder_segment_ids"] > 0)
    return rows["decoder_target_tokens"][real]


@pytest.mark.parametrize("rows", [FullSentences(), SentencePairs()], ids=lambda rows: type(rows).__name__)
def test_masked_language_models_predict_text_alone(documents, rows):
    result = corrupted(documents, rows, BertMasking(rate=1.0, max_predictions=LENGTH), FRAME)
    used = result["masked_loss_weights"] > 0
    targets = result["masked_target_tokens"][used]
    assert len(targets) and not set(targets.tolist()) & {PAD, UNK, CLS, SEP, MASK}
    assert UNK in result["encoder_input_tokens"]  # it stays where it is, as context


@pytest.mark.parametrize("ids", [BARE, SAME], ids=["own padding", "end-of-text token as padding"])
def test_causal_language_models_predict_unknown_and_end_of_text_tokens_and_no_padding(documents, ids):
    targets = decoder_targets(corrupted(documents, Chunks(), NextTokens(), ids))
    counts = np.bincount(targets, minlength=SIZE)
    assert counts[UNK] == np.count_nonzero(documents.tokens == UNK) and counts[END] == len(documents)
    assert counts[PAD] == 0 and len(targets) == len(documents.tokens) + len(documents)


def test_t5_predicts_unknown_tokens_sentinels_and_one_end(documents):
    result = corrupted(documents, Chunks(), SpanCorruption(), BARE)
    targets = set(decoder_targets(result).tolist())
    assert {UNK, SENTINELS[0], END} <= targets and not targets & {PAD, MASK}


def test_bart_predicts_whole_rows_with_both_ends(documents):
    result = corrupted(documents, FullSentences(), Denoising(permute=0.0, tokens=TokenMasking()), FRAME)
    targets = set(decoder_targets(result).tolist())
    assert {UNK, CLS, SEP} <= targets and not targets & {PAD, MASK}
