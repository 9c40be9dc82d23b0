"""DistilBERT's masking: single tokens, the rarer the likelier."""

import dataclasses
import math

import numpy as np
import pytest
from chi_square import chi_square_limit
from noise_rows import VOCABULARIES, noise_rows

from bertfam.corruption.keys import fold
from bertfam.corruption.masked_lm.masking import BertMasking
from bertfam.corruption.masked_lm.selection import RareTokens
from bertfam.data.rows.running_text import FullSentences
from bertfam.data.text_data import TextData

DISTILBERT = BertMasking(choice=RareTokens(), rounding="up")
LENGTH, ROWS = 128, 2000


@pytest.fixture(scope="module")
def counts(cache, tokens):
    return np.bincount(cache.documents("train", "text").tokens, minlength=tokens.size)


def corrupt(rows, counts, tokens, masking=DISTILBERT, seed=3):
    return masking.fit(lambda: counts).corrupt(rows, fold(seed, np.arange(len(rows["maskable"]))), tokens)


@pytest.fixture(scope="module")
def rows(cache, tokens):
    """2,000 rows of real text."""
    examples = FullSentences().examples(cache.documents("train", "text"), LENGTH, 5, tokens)
    numbers = np.arange(ROWS)
    return examples.rows(numbers % len(examples), fold(7, numbers))


@pytest.fixture(scope="module")
def corrupted(rows, counts, tokens):
    return corrupt(rows, counts, tokens)


def test_fifteen_percent_of_each_row(rows, corrupted):
    real = (rows["encoder_segment_ids"] > 0).sum(axis=1)
    expected = np.minimum([math.ceil(0.15 * int(n)) for n in real], DISTILBERT.predictions(LENGTH))
    assert np.array_equal(corrupted["masked_loss_weights"].sum(axis=1), expected)


def test_specials_are_never_touched_and_targets_restore_the_text(rows, corrupted, tokens):
    before, after, used = rows["encoder_input_tokens"], corrupted["encoder_input_tokens"], corrupted["masked_loss_weights"] > 0
    assert np.array_equal(before[~rows["maskable"]], after[~rows["maskable"]])
    restored = after.copy()
    row, slot = np.nonzero(used)
    restored[row, corrupted["masked_positions"][row, slot]] = corrupted["masked_target_tokens"][row, slot]
    assert np.array_equal(restored, before)
    assert not np.isin(corrupted["masked_target_tokens"][used], tokens.special).any()
    changed, chosen = int((before != after).sum()), int(used.sum())
    # 80 % [MASK] and 10 % other tokens, which are the token itself hardly ever
    assert chosen > 30_000 and abs(changed / chosen - 0.9) < 4 * math.sqrt(0.9 * 0.1 / chosen) + 1 / len(tokens.pieces)


def test_one_draw_is_in_proportion_to_the_weights():
    """The weights written out, of one row with tokens that occur 0 to 10,000 times."""
    tokens, counts = VOCABULARIES["wordpiece"], np.array([0, 1, 2, 10, 300, 10_000] * 10)
    ids = np.array([2, *range(30, 42), 3], np.int32)  # [CLS] ... [SEP]
    n = 40_000
    rows = {
        "encoder_input_tokens": np.tile(ids, (n, 1)),
        "encoder_segment_ids": np.ones((n, len(ids)), np.int32),
        "maskable": np.tile(ids >= 5, (n, 1)),
    }
    once = BertMasking(choice=RareTokens(0.7), max_predictions=1, mask_share=1.0, random_share=0.0)
    places = corrupt(rows, counts, tokens, once, 11)["masked_positions"][:, 0]
    weights = np.array([1.0, 1.0, 2**-0.7, 10**-0.7, 300**-0.7, 10_000**-0.7] * 2)
    expected = n * weights / weights.sum()
    found = np.bincount(places, minlength=len(ids))
    assert found[0] == found[-1] == 0
    assert ((found[1:-1] - expected) ** 2 / expected).sum() < chi_square_limit(len(expected) - 1)


def test_rare_tokens_are_favoured_as_by_drawing_one_after_another(rows, corrupted, counts):
    """Chosen tokens by how often they occur, beside NumPy's own draws without replacement from the same weights."""
    generator = np.random.default_rng(0)
    weights = np.maximum(counts, 1.0) ** -0.7
    bounds = np.quantile(counts[rows["encoder_input_tokens"][rows["maskable"]]], np.linspace(0, 1, 9)[1:-1])
    theirs, ours, there = (np.zeros(len(bounds) + 1) for _ in range(3))
    for row in range(ROWS):
        maskable = np.flatnonzero(rows["maskable"][row])
        ids = rows["encoder_input_tokens"][row]
        wanted = int(corrupted["masked_loss_weights"][row].sum())
        drawn = generator.choice(maskable, wanted, replace=False, p=weights[ids[maskable]] / weights[ids[maskable]].sum())
        found = corrupted["masked_positions"][row, :wanted]
        for sums, places in ((theirs, drawn), (ours, found), (there, maskable)):
            sums += np.bincount(np.searchsorted(bounds, counts[ids[places]]), minlength=len(sums))
    shares = theirs / there
    assert shares[0] > 3 * shares[-1]  # the rarest eighth of the text beside the commonest
    assert (np.abs(ours - theirs) < 4.5 * np.sqrt(2 * there * shares * (1 - shares))).all()


def test_without_an_exponent_every_token_is_as_likely(rows, counts, tokens):
    found = corrupt(rows, counts, tokens, BertMasking(choice=RareTokens(0.0)))
    rare = counts <= 20
    targets, used = found["masked_target_tokens"], found["masked_loss_weights"] > 0
    share = rare[rows["encoder_input_tokens"][rows["maskable"]]].mean()
    assert abs(rare[targets[used]].mean() - share) < 4 * math.sqrt(share * (1 - share) / used.sum())


@pytest.mark.parametrize("kind", VOCABULARIES)
def test_rows_of_any_length(kind):
    """Rows with nothing to mask get nothing; no two slots name one position."""
    tokens = VOCABULARIES[kind]
    rows = noise_rows(tokens, 200, 64)
    found = corrupt(rows, np.arange(60)[::-1], tokens)
    for row in range(200):
        places = found["masked_positions"][row, found["masked_loss_weights"][row] > 0].tolist()
        assert places == sorted(set(places)) and rows["maskable"][row, places].all()
        assert bool(places) == bool(rows["maskable"][row].any())


def test_counts_are_those_of_the_training_text(cache, tokens, counts):
    """Held-out rows, too, are masked by the counts of the training text."""
    data = TextData(rows=FullSentences(), corruption=DISTILBERT)
    for batches in (data.training(cache, tokens, LENGTH, 4, 0), data.held_out(cache, tokens, LENGTH, 4).source):
        part = getattr(batches.sequence, "parts", (batches.sequence,))[0]
        np.testing.assert_allclose(part.corruption.choice.weights, np.maximum(counts, 1.0) ** -0.7)
    first, again = (data.training(cache, tokens, LENGTH, 4, 0).rows(7, 0, 4) for _ in range(2))
    assert all(np.array_equal(first[name], again[name]) for name in first)


def test_together_with_random_tokens_of_the_text(rows, counts, tokens):
    both = dataclasses.replace(DISTILBERT, random_tokens="text", mask_share=0.0, random_share=1.0)
    found = corrupt(rows, counts, tokens, both)
    assert np.array_equal(found["masked_positions"], corrupt(rows, counts, tokens)["masked_positions"])
    changed = found["encoder_input_tokens"] != rows["encoder_input_tokens"]
    assert (counts[found["encoder_input_tokens"][changed]] > 0).all() and changed.sum() > 20_000


@pytest.mark.parametrize("exponent", [-1, math.nan, math.inf])
def test_no_exponent(exponent):
    with pytest.raises(ValueError, match=f"exponent {exponent} must be a number of at least 0"):
        RareTokens(exponent)
