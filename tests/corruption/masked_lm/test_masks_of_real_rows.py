"""Masks of 2,000 rows of real text by the objectives' gin files: number of predictions, positions and replacements."""

import math

import numpy as np
import pytest

from bertfam.config import load
from bertfam.corruption.keys import fold
from bertfam.corruption.masked_lm.span_selection import WordNgrams
from bertfam.corruption.words import find_words

LENGTH, ROWS = 128, 2000
RATES = {"mlm_nsp": 0.15, "roberta": 0.15, "mlm_sop": 0.15, "modernbert": 0.3}


@pytest.fixture(scope="module", params=RATES)
def masked_rows(request, cache, tokens):
    """The objective's name, the rows, and the corrupted rows."""
    files = ["models/bert_tiny.gin", f"objectives/{request.param}.gin", "runs/defaults.gin"]
    data = load(files).build("Run").data
    examples = data.rows.examples(cache.documents("train", "text"), LENGTH, 5, tokens)
    rows = examples.rows(np.resize(np.arange(len(examples)), ROWS), fold(7, np.arange(ROWS)))
    return request.param, rows, data.corruption.corrupt(rows, fold(3, np.arange(ROWS)), tokens)


def test_number_of_predictions_of_every_objective(masked_rows):
    """BERT and ModernBERT round, RoBERTa rounds at random with an exact mean, and ALBERT's words fill most of the budget."""
    name, rows, result = masked_rows
    sizes, predictions = (rows["encoder_segment_ids"] > 0).sum(axis=1), result["masked_loss_weights"].sum(axis=1)
    exact = RATES[name] * sizes
    rounded = np.maximum(1, np.rint(exact))
    if name == "roberta":
        assert np.all((predictions == np.maximum(1, np.floor(exact))) | (predictions == np.ceil(exact)))
        fraction = exact - np.floor(exact)  # probability of one prediction more
        is_above_one = exact >= 1
        deviation = math.sqrt(np.sum(fraction * (1 - fraction)))
        assert deviation > 5 and abs(np.sum((predictions - exact)[is_above_one])) < 4 * deviation
    elif name == "mlm_sop":
        is_large = rounded > 3  # a single word may exceed a smaller budget
        assert np.all(predictions[is_large] <= rounded[is_large]) and predictions[is_large].sum() > 0.98 * rounded[is_large].sum()
    else:
        assert np.array_equal(predictions, rounded)
    assert abs(predictions.sum() / sizes.sum() - RATES[name]) < 0.01


def test_positions_and_replacement_shares_of_every_objective(masked_rows, tokens):
    """Only text is predicted, in packed rows too; 80% of it becomes [MASK], 10% random pieces, and 10% stays."""
    name, rows, result = masked_rows
    used, before, after = result["masked_loss_weights"] > 0, rows["encoder_input_tokens"], result["encoder_input_tokens"]
    packed = (before == tokens.cls).sum(axis=1)
    assert (packed.max() > 1) == (name == "modernbert") and packed.min() == 1
    row, slot = np.nonzero(used)
    places, targets = result["masked_positions"][row, slot], result["masked_target_tokens"][row, slot]
    assert not np.isin(targets, tokens.special).any() and rows["encoder_segment_ids"][row, places].all()
    restored = after.copy()
    restored[row, places] = targets
    assert np.array_equal(restored, before)
    inputs, total = after[row, places], len(row)
    pieces = len(tokens.pieces)
    for count, share in (
        ((inputs == tokens.mask).sum(), 0.8),
        ((inputs == targets).sum(), 0.1 + 0.1 / pieces),
        (((inputs != targets) & (inputs != tokens.mask)).sum(), 0.1 - 0.1 / pieces),
    ):
        assert total > 20_000 and abs(count / total - share) < 4 * math.sqrt(share * (1 - share) / total)
    assert not np.isin(inputs[inputs != tokens.mask], tokens.special).any()


@pytest.mark.parametrize("masked_rows", ["mlm_sop"], indirect=True)
def test_n_grams_consist_of_whole_words(masked_rows, tokens):
    """Expect one to three words, with a mean below 18/11, since the budget cuts the last n-gram."""
    _, rows, result = masked_rows
    words = find_words(rows, tokens)
    predicted = np.zeros(rows["maskable"].shape, bool)
    row, slot = np.nonzero(result["masked_loss_weights"])
    predicted[row, result["masked_positions"][row, slot]] = True
    inside = rows["maskable"][:, 1:] & rows["maskable"][:, :-1] & (words.number[:, 1:] == words.number[:, :-1])
    assert inside.sum() > 10_000 and np.array_equal(predicted[:, 1:][inside], predicted[:, :-1][inside])
    chosen = WordNgrams().choose(rows, np.full(ROWS, 60), 60, fold(3, np.arange(ROWS)), tokens)
    first, last = chosen.unit_bounds()
    begins = chosen.used & (chosen.leads == np.arange(60))
    words_per_gram = np.take_along_axis(words.number, last, axis=1) - np.take_along_axis(words.number, first, axis=1) + 1
    shares = np.bincount(words_per_gram[begins], minlength=4)[1:] / begins.sum()
    assert len(shares) == 3 and shares[0] > 6 / 11 and shares[0] > shares[1] > shares[2] > 0.05
