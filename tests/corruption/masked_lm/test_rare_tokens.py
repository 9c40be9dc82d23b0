"""DistilBERT's masking: single tokens, of which rare ones are more likely."""

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
    """Rows (2,000) of real text."""
    examples = FullSentences().examples(cache.documents("train", "text"), LENGTH, 5, tokens)
    numbers = np.arange(ROWS)
    return examples.rows(numbers % len(examples), fold(7, numbers))


@pytest.fixture(scope="module")
def corrupted(rows, counts, tokens):
    return corrupt(rows, counts, tokens)


def test_fifteen_percent_of_every_row_are_predicted(rows, corrupted):
    real = (rows["encoder_segment_ids"] > 0).sum(axis=1)
    expected = np.minimum([math.ceil(0.15 * int(n)) for n in real], DISTILBERT.predictions(LENGTH))
    assert np.array_equal(corrupted["masked_loss_weights"].sum(axis=1), expected)


def test_control_tokens_stay_and_targets_restore_the_text_of_rare_tokens(rows, corrupted, tokens):
    before, after, used = rows["encoder_input_tokens"], corrupted["encoder_input_tokens"], corrupted["masked_loss_weights"] > 0
    assert np.array_equal(before[~rows["maskable"]], after[~rows["maskable"]])
    restored = after.copy()
    row, slot = np.nonzero(used)
    restored[row, corrupted["masked_positions"][row, slot]] = corrupted["masked_target_tokens"][row, slot]
    assert np.array_equal(restored, before)
    assert not np.isin(corrupted["masked_target_tokens"][used], tokens.special).any()
    changed, chosen = int((before != after).sum()), int(used.sum())
    # 80% become [MASK] and 10% random tokens, which rarely equal the original
    assert chosen > 30_000 and abs(changed / chosen - 0.9) < 4 * math.sqrt(0.9 * 0.1 / chosen) + 1 / len(tokens.pieces)


def test_single_draw_is_proportional_to_the_weights():
    """Write out the weights for one row with tokens that occur 0 to 10,000 times."""
    tokens, counts = VOCABULARIES["wordpiece"], np.array([0, 1, 2, 10, 300, 10_000] * 10)
    ids = np.array([2, *range(30, 42), 3], np.int32)  # [CLS] ... [SEP]
    n = 40_000
    rows = {
        "encoder_input_tokens": np.tile(ids, (n, 1)),
        "encoder_segment_ids": np.ones((n, len(ids)), np.int32),
        "maskable": np.tile(ids >= 5, (n, 1)),
    }
    one_prediction = BertMasking(choice=RareTokens(0.7), max_predictions=1, mask_share=1.0, random_share=0.0)
    places = corrupt(rows, counts, tokens, one_prediction, 11)["masked_positions"][:, 0]
    weights = np.array([1.0, 1.0, 2**-0.7, 10**-0.7, 300**-0.7, 10_000**-0.7] * 2)
    expected = n * weights / weights.sum()
    drawn = np.bincount(places, minlength=len(ids))
    assert drawn[0] == drawn[-1] == 0
    assert ((drawn[1:-1] - expected) ** 2 / expected).sum() < chi_square_limit(len(expected) - 1)


def test_rare_tokens_are_favoured_as_in_sequential_draws(rows, corrupted, counts):
    """Compare selected tokens, by frequency, with NumPy's draws without replacement from the same weights."""
    generator = np.random.default_rng(0)
    weights = np.maximum(counts, 1.0) ** -0.7
    bounds = np.quantile(counts[rows["encoder_input_tokens"][rows["maskable"]]], np.linspace(0, 1, 9)[1:-1])
    numpy_counts, own_counts, maskable_counts = (np.zeros(len(bounds) + 1) for _ in range(3))
    for row in range(ROWS):
        maskable = np.flatnonzero(rows["maskable"][row])
        ids = rows["encoder_input_tokens"][row]
        num_selected = int(corrupted["masked_loss_weights"][row].sum())
        numpy_selected = generator.choice(
            maskable, num_selected, replace=False, p=weights[ids[maskable]] / weights[ids[maskable]].sum()
        )
        selected = corrupted["masked_positions"][row, :num_selected]
        for sums, places in ((numpy_counts, numpy_selected), (own_counts, selected), (maskable_counts, maskable)):
            sums += np.bincount(np.searchsorted(bounds, counts[ids[places]]), minlength=len(sums))
    shares = numpy_counts / maskable_counts
    assert shares[0] > 3 * shares[-1]  # the rarest eighth of the text against the most frequent
    assert (np.abs(own_counts - numpy_counts) < 4.5 * np.sqrt(2 * maskable_counts * shares * (1 - shares))).all()


def test_exponent_of_zero_makes_every_token_equally_likely(rows, counts, tokens):
    result = corrupt(rows, counts, tokens, BertMasking(choice=RareTokens(0.0)))
    rare = counts <= 20
    targets, used = result["masked_target_tokens"], result["masked_loss_weights"] > 0
    share = rare[rows["encoder_input_tokens"][rows["maskable"]]].mean()
    assert abs(rare[targets[used]].mean() - share) < 4 * math.sqrt(share * (1 - share) / used.sum())


@pytest.mark.parametrize("kind", VOCABULARIES)
def test_slots_of_rare_tokens_are_distinct_in_rows_of_any_length(kind):
    """Check rows without maskable tokens too, which get no predictions."""
    tokens = VOCABULARIES[kind]
    rows = noise_rows(tokens, 200, 64)
    result = corrupt(rows, np.arange(60)[::-1], tokens)
    for row in range(200):
        places = result["masked_positions"][row, result["masked_loss_weights"][row] > 0].tolist()
        assert places == sorted(set(places)) and rows["maskable"][row, places].all()
        assert bool(places) == bool(rows["maskable"][row].any())


def test_weights_come_from_the_training_text(cache, tokens, counts):
    """Use the counts of the training text for held-out rows too."""
    data = TextData(rows=FullSentences(), corruption=DISTILBERT)
    for batches in (data.training(cache, tokens, LENGTH, 4, 0), data.held_out(cache, tokens, LENGTH, 4).source):
        part = getattr(batches.sequence, "parts", (batches.sequence,))[0]
        np.testing.assert_allclose(part.corruption.choice.weights, np.maximum(counts, 1.0) ** -0.7)
    first, again = (data.training(cache, tokens, LENGTH, 4, 0).rows(7, 0, 4) for _ in range(2))
    assert all(np.array_equal(first[name], again[name]) for name in first)


def test_rare_tokens_with_random_tokens_of_the_text(rows, counts, tokens):
    masking = dataclasses.replace(DISTILBERT, random_tokens="text", mask_share=0.0, random_share=1.0)
    result = corrupt(rows, counts, tokens, masking)
    assert np.array_equal(result["masked_positions"], corrupt(rows, counts, tokens)["masked_positions"])
    changed = result["encoder_input_tokens"] != rows["encoder_input_tokens"]
    assert (counts[result["encoder_input_tokens"][changed]] > 0).all() and changed.sum() > 20_000


@pytest.mark.parametrize("exponent", [-1, math.nan, math.inf])
def test_bad_exponents_are_refused(exponent):
    with pytest.raises(ValueError, match=f"exponent {exponent} must be a number of at least 0"):
        RareTokens(exponent)
