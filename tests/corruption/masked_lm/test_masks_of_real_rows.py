"""The masks that the objectives' gin files make of 2,000 rows of real text: how many, which, and what stands there."""

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
def made(request, cache, tokens):
    """The objective's name, rows, and what its noise makes of them."""
    files = ["models/bert_tiny.gin", f"objectives/{request.param}.gin", "runs/defaults.gin"]
    data = load(files).build("Run").data
    examples = data.rows.examples(cache.documents("train", "text"), LENGTH, 5, tokens)
    rows = examples.rows(np.resize(np.arange(len(examples)), ROWS), fold(7, np.arange(ROWS)))
    return request.param, rows, data.corruption.corrupt(rows, fold(3, np.arange(ROWS)), tokens)


def test_how_many(made):
    """BERT's and ModernBERT's are rounded, RoBERTa's at random with an exact mean; ALBERT's words fill most of the budget."""
    name, rows, result = made
    sizes, found = (rows["encoder_segment_ids"] > 0).sum(axis=1), result["masked_loss_weights"].sum(axis=1)
    exact = RATES[name] * sizes
    rounded = np.maximum(1, np.rint(exact))
    if name == "roberta":
        assert np.all((found == np.maximum(1, np.floor(exact))) | (found == np.ceil(exact)))
        chance = exact - np.floor(exact)  # of one more
        whole = exact >= 1
        deviation = math.sqrt(np.sum(chance * (1 - chance)))
        assert deviation > 5 and abs(np.sum((found - exact)[whole])) < 4 * deviation
    elif name == "mlm_sop":
        several = rounded > 3  # of fewer one word may be more
        assert np.all(found[several] <= rounded[several]) and found[several].sum() > 0.98 * rounded[several].sum()
    else:
        assert np.array_equal(found, rounded)
    assert abs(found.sum() / sizes.sum() - RATES[name]) < 0.01


def test_which_and_what_stands_there(made, tokens):
    """Never [CLS], [SEP], unknown text or padding, of packed rows too; 80 % [MASK], 10 % random pieces, 10 % what was there."""
    name, rows, result = made
    used, before, after = result["masked_loss_weights"] > 0, rows["encoder_input_tokens"], result["encoder_input_tokens"]
    packed = (before == tokens.cls).sum(axis=1)
    assert (packed.max() > 1) == (name == "modernbert") and packed.min() == 1
    row, slot = np.nonzero(used)
    places, targets = result["masked_positions"][row, slot], result["masked_target_tokens"][row, slot]
    assert not np.isin(targets, tokens.special).any() and rows["encoder_segment_ids"][row, places].all()
    restored = after.copy()
    restored[row, places] = targets
    assert np.array_equal(restored, before)
    seen, total = after[row, places], len(row)
    pieces = len(tokens.pieces)
    for count, share in (
        ((seen == tokens.mask).sum(), 0.8),
        ((seen == targets).sum(), 0.1 + 0.1 / pieces),
        (((seen != targets) & (seen != tokens.mask)).sum(), 0.1 - 0.1 / pieces),
    ):
        assert total > 20_000 and abs(count / total - share) < 4 * math.sqrt(share * (1 - share) / total)
    assert not np.isin(seen[seen != tokens.mask], tokens.special).any()


@pytest.mark.parametrize("made", ["mlm_sop"], indirect=True)
def test_n_grams_are_of_whole_words(made, tokens):
    """Of one to three; shorter than 18/11 words in the mean, since the budget cuts the last."""
    _, rows, result = made
    words = find_words(rows, tokens)
    predicted = np.zeros(rows["maskable"].shape, bool)
    row, slot = np.nonzero(result["masked_loss_weights"])
    predicted[row, result["masked_positions"][row, slot]] = True
    inside = rows["maskable"][:, 1:] & rows["maskable"][:, :-1] & (words.number[:, 1:] == words.number[:, :-1])
    assert inside.sum() > 10_000 and np.array_equal(predicted[:, 1:][inside], predicted[:, :-1][inside])
    chosen = WordNgrams().choose(rows, np.full(ROWS, 60), 60, fold(3, np.arange(ROWS)), tokens)
    first, last = chosen.unit_bounds()
    begins = chosen.used & (chosen.leads == np.arange(60))
    of_words = np.take_along_axis(words.number, last, axis=1) - np.take_along_axis(words.number, first, axis=1) + 1
    shares = np.bincount(of_words[begins], minlength=4)[1:] / begins.sum()
    assert len(shares) == 3 and shares[0] > 6 / 11 and shares[0] > shares[1] > shares[2] > 0.05
