"""BertMasking with the budgets, selections and replacements of BERT's variants."""

import math

import numpy as np
import pytest
from chi_square import chi_square_limit
from noise_rows import VOCABULARIES, noise_rows

from bertfam.corruption.keys import fold
from bertfam.corruption.masked_lm.budgets import budget
from bertfam.corruption.masked_lm.masking import BertMasking
from bertfam.corruption.masked_lm.replacement import as_frequent_as, replace
from bertfam.corruption.masked_lm.selection import SingleTokens, WholeWords
from bertfam.corruption.masked_lm.span_selection import WordNgrams, WordSpans
from bertfam.corruption.token_ids import TokenIds
from bertfam.data.checks.vocabulary_check import check_vocabulary_fits
from bertfam.data.rows.packing import Packed
from bertfam.data.rows.running_text import FullSentences, WholeDocuments
from bertfam.data.text_data import TextData
from bertfam.data.token_cache import documents
from bertfam.data.token_cache.documents import Documents

TOY = TokenIds(size=12, pad=0, unk=1, cls=2, sep=3, mask=4, special=(0, 1, 2, 3, 4), starts_word=np.arange(12) % 2 > 0)
NOISES = {
    "bert": BertMasking(rate=0.3),
    "whole_words": BertMasking(rate=0.3, choice=WholeWords()),
    "roberta": BertMasking(rounding="random"),
    "spanbert": BertMasking(choice=WordSpans(), rounding="up", counted="maskable", drawn_by="unit"),
    "albert": BertMasking(rate=0.3, choice=WordNgrams()),
    "ernie": BertMasking(choice=WholeWords(), drawn_by="unit", random_tokens="vocabulary"),
}


def test_slots_may_be_a_share_of_the_length():
    """BigBird's published 75 in 512 tokens, and as many in longer rows."""
    masking = BertMasking(slot_share=75 / 512)
    assert [masking.predictions(length) for length in (3, 512, 4096)] == [1, 75, 600]
    for settings in ({"slot_share": 0.0}, {"slot_share": 0.1, "max_predictions": 3}, {"slot_share": 0.1, "slot_margin": 0.0}):
        with pytest.raises(ValueError, match="slot_share .* must be in .*, and max_predictions and slot_margin None"):
            BertMasking(**settings)


def is_near(count, total, share):
    """Return True if a count is within four standard deviations of a binomial's mean."""
    return abs(count / total - share) < 4 * math.sqrt(share * (1 - share) / total)


@pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES)
@pytest.mark.parametrize("tokens", VOCABULARIES.values(), ids=VOCABULARIES)
def test_every_noise_is_reversible_and_independent_of_other_rows(tokens, noise):
    rows = noise_rows(tokens, 300, 64, seed=1)
    before = rows["encoder_input_tokens"].copy()
    keys = fold(3, np.arange(300))
    result = noise.corrupt(rows, keys, tokens)
    assert np.array_equal(rows["encoder_input_tokens"], before)
    used, positions = result["masked_loss_weights"] > 0, result["masked_positions"]
    assert np.array_equal(used.any(axis=1), rows["maskable"].any(axis=1))
    restored = result["encoder_input_tokens"].copy()
    row, slot = np.nonzero(used)
    restored[row, positions[row, slot]] = result["masked_target_tokens"][row, slot]
    assert np.array_equal(restored, before)
    assert not np.isin(result["masked_target_tokens"][used], tokens.special).any()
    changed = result["encoder_input_tokens"] != before
    assert changed.any() and rows["maskable"][changed].all()
    assert result["encoder_input_tokens"].max() < tokens.size
    few = np.array([299, 5, 77])
    alone = noise.corrupt({name: value[few] for name, value in rows.items()}, keys[few], tokens)
    assert all(np.array_equal(alone[name], value[few]) for name, value in result.items())


@pytest.mark.parametrize(
    "choice", [SingleTokens(), WholeWords(), WordSpans(), WordNgrams()], ids=lambda choice: type(choice).__name__
)
def test_budget_of_padded_rows_counts_real_tokens_only(choice):
    ids = np.random.default_rng(0).integers(5, 12, (3000, 64)).astype(np.int32)
    lengths = np.tile([3, 9, 64], 1000)[:, None]
    place = np.arange(64)
    ids[:, 0] = TOY.cls
    np.put_along_axis(ids, lengths - 1, TOY.sep, axis=1)
    ids[place >= lengths] = TOY.pad
    rows = {"encoder_input_tokens": ids, "encoder_segment_ids": (place < lengths).astype(np.int32), "maskable": ids > 4}
    result = BertMasking(choice=choice).corrupt(rows, fold(1, np.arange(3000)), TOY)
    predictions = result["masked_loss_weights"].sum(axis=1).reshape(1000, 3)
    assert np.all(predictions[:, 0] == 1) and np.all(predictions >= 1) and np.all(predictions <= [1, 7, 10])
    assert abs(predictions[:, 2].mean() - 10) < 0.1
    assert (result["encoder_input_tokens"][place >= lengths] == TOY.pad).all()


def test_replacement_shares_in_a_vocabulary_of_seven_pieces():
    rows = noise_rows(TOY, 3000, 64, seed=2)
    for drawn_by, choice in (("token", WholeWords()), ("unit", WordSpans())):
        noise = BertMasking(rate=0.3, choice=choice, drawn_by=drawn_by)
        result = noise.corrupt(rows, fold(4, np.arange(3000)), TOY)
        used = result["masked_loss_weights"] > 0
        inputs = np.take_along_axis(result["encoder_input_tokens"], result["masked_positions"], axis=1)[used]
        targets = result["masked_target_tokens"][used]
        assert len(inputs) > 10_000 and set(np.unique(inputs)) == set(range(4, 12))
        if drawn_by == "token":
            assert is_near((inputs == TOY.mask).sum(), len(inputs), 0.8)
            assert is_near((inputs == targets).sum(), len(inputs), 0.1 + 0.1 / 7)
        # The shares vary more where the tokens of a unit share one draw.
        assert abs((inputs == TOY.mask).mean() - 0.8) < 0.02


def test_tokens_of_a_unit_share_their_replacement():
    tokens = VOCABULARIES["wordpiece"]
    rows = noise_rows(tokens, 2000, 64, seed=3)
    keys = fold(5, np.arange(2000))
    noise = BertMasking(choice=WordSpans(), drawn_by="unit", rate=0.3, random_tokens="vocabulary")
    result = noise.corrupt(rows, keys, tokens)
    used, positions = result["masked_loss_weights"] > 0, result["masked_positions"]
    inputs = np.take_along_axis(result["encoder_input_tokens"], positions, axis=1)
    masked, kept = inputs == tokens.mask, inputs == result["masked_target_tokens"]
    adjacent = used[:, 1:] & (np.diff(positions, axis=1) == 1)
    # A random token of the whole vocabulary of 60 is occasionally [MASK] or the token itself.
    assert adjacent.sum() > 3000
    assert (masked[:, 1:] != masked[:, :-1])[adjacent].mean() < 0.02
    assert (kept[:, 1:] != kept[:, :-1])[adjacent].mean() < 0.02
    unit_starts = used.copy()
    unit_starts[:, 1:] &= ~adjacent
    assert is_near(masked[unit_starts].sum(), unit_starts.sum(), 0.8 + 0.1 / 60)
    drawn_by_token = BertMasking(choice=WordSpans(), rate=0.3).corrupt(rows, keys, tokens)
    inputs = np.take_along_axis(drawn_by_token["encoder_input_tokens"], positions, axis=1) == tokens.mask
    assert (inputs[:, 1:] != inputs[:, :-1])[adjacent].mean() > 0.25  # 2 x 0.8 x 0.2 with separate draws


def test_random_tokens_follow_the_given_counts():
    counts = np.array([0, 0, 5, 0, 3, 2, 0])
    drawn = as_frequent_as(counts)(np.array([0, 2**64 - 1], np.uint64))
    assert drawn.tolist() == [2, 5]
    ids = np.full((4000, 8), 6, np.int32)
    rows = {"encoder_input_tokens": ids, "maskable": ids > 0}
    keys = fold(1, np.arange(4000))
    chosen = SingleTokens().choose(rows, np.full(4000, 8), 8, keys, TOY)
    noisy = replace(ids, chosen, keys, mask=0, mask_share=0.0, random_share=1.0, random_ids=as_frequent_as(counts))
    frequencies = np.bincount(noisy.ravel(), minlength=7)
    assert all(
        is_near(frequencies[token], noisy.size, counts[token] / 10) if counts[token] else frequencies[token] == 0
        for token in range(7)
    )


@pytest.mark.parametrize("rows", [FullSentences(), Packed(WholeDocuments())], ids=["sentences", "packed"])
def test_random_tokens_follow_the_counts_of_the_training_text(cache, tokens, rows):
    """Training and held-out rows use the same counts; control tokens are never drawn."""
    noise = BertMasking(mask_share=0.0, random_share=1.0, random_tokens="text")
    data = TextData(rows=rows, corruption=noise)
    counts = np.bincount(cache.documents("train", "text").tokens, minlength=tokens.size)
    counts[list(tokens.special)] = 0
    sources = {"train": data.training(cache, tokens, 64, 2000, 7), "held out": data.held_out(cache, tokens, 64, 2000).source}
    for source in sources.values():
        batch = source.rows(0, 0, 2000)
        inputs = np.take_along_axis(batch["encoder_input_tokens"], batch["masked_positions"], axis=1)
        drawn_counts = np.bincount(inputs[batch["masked_loss_weights"] > 0], minlength=tokens.size)
        assert drawn_counts.sum() > 800 and not drawn_counts[counts == 0].any()
        # The 20 most frequent tokens are compared one by one, the others as one group.
        common = np.argsort(-counts)[:20]
        expected = np.append(counts[common], counts.sum() - counts[common].sum()) / counts.sum() * drawn_counts.sum()
        observed = np.append(drawn_counts[common], drawn_counts.sum() - drawn_counts[common].sum())
        assert np.sum((observed - expected) ** 2 / expected) < chi_square_limit(20)
    repeated = data.training(cache, tokens, 64, 500, 7).rows(3, 100, 400)
    assert all(np.array_equal(value[1600:1900], repeated[name]) for name, value in sources["train"].rows(0, 0, 2000).items())
    check_vocabulary_fits(data, tokens, "vocab", 64)


def test_tokens_of_a_long_text_are_counted_in_samples(monkeypatch):
    ids = np.arange(1000, dtype=np.uint16) // 10
    text = Documents("a text", ids, np.array([0, 1000]), np.array([0, 1]))
    assert text.token_counts(120).tolist() == [10] * 100 + [0] * 20
    monkeypatch.setattr(documents, "_PARTS", 3)
    monkeypatch.setattr(documents, "_PART", 20)
    assert np.flatnonzero(text.token_counts(120)).tolist() == [0, 1, 49, 50, 98, 99]


def test_budgets_of_every_rounding():
    lengths = np.array([1, 5, 10, 20, 33, 128, 512])
    keys = fold(1, np.arange(7))
    assert budget(0.15, lengths, "nearest", keys).tolist() == [max(1, round(0.15 * n)) for n in lengths.tolist()]
    assert budget(0.15, lengths, "up", keys).tolist() == [math.ceil(0.15 * n) for n in lengths.tolist()]
    random_budgets = budget(0.15, np.full(20_000, 33), "random", fold(2, np.arange(20_000)))
    assert set(random_budgets.tolist()) == {4, 5} and is_near((random_budgets == 5).sum(), 20_000, 0.95)
    assert set(budget(0.15, np.full(500, 20), "random", fold(3, np.arange(500))).tolist()) == {3}
    assert budget(0.15, np.full(500, 2), "random", fold(4, np.arange(500))).min() == 1


def test_budget_counts_row_or_maskable_tokens():
    rows = noise_rows(TOY, 300, 64)
    for counted, is_counted in (("row", rows["encoder_segment_ids"] > 0), ("maskable", rows["maskable"])):
        result = BertMasking(counted=counted, rounding="up").corrupt(rows, fold(1, np.arange(300)), TOY)
        expected = np.minimum(np.ceil(0.15 * is_counted.sum(axis=1)), rows["maskable"].sum(axis=1))
        assert np.array_equal(result["masked_loss_weights"].sum(axis=1), expected)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rounding": "down"}, "rounding 'down' is not one of nearest, up, random"),
        ({"counted": "tokens"}, "counted 'tokens' is not one of row, maskable"),
        ({"drawn_by": "word"}, "drawn_by 'word' is not one of token, unit"),
        ({"random_tokens": "all"}, "random_tokens 'all' is not one of pieces, vocabulary"),
    ],
)
def test_unknown_values_of_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        BertMasking(**settings)
