"""BERT's masking: number of predictions, slots, replacement shares and independence of rows."""

import math

import numpy as np
import pytest

from bertfam.corruption.keys import fold
from bertfam.corruption.masked_lm.masking import BertMasking
from bertfam.corruption.token_ids import TokenIds

TOY = TokenIds(size=12, pad=0, unk=1, cls=2, sep=3, mask=4, special=(0, 1, 2, 3, 4))
DEFAULT = BertMasking()


def toy_rows(lengths, width, ids=TOY, seed=0):
    """Return rows `[CLS] a ... [SEP] b ... [SEP]` of real tokens only, padded to `width`; each of `lengths` is at least 5."""
    generator = np.random.default_rng(seed)
    lengths = np.asarray(lengths)[:, None]
    place = np.arange(width)
    real = place < lengths
    special = (place == 0) | (place == lengths // 2) | (place == lengths - 1)
    tokens = generator.choice(np.setdiff1d(np.arange(ids.size), ids.special), size=(len(lengths), width))
    tokens[np.broadcast_to(special, tokens.shape)] = ids.sep
    tokens[:, 0] = ids.cls
    return {
        "encoder_input_tokens": np.where(real, tokens, ids.pad).astype(np.int32),
        "encoder_segment_ids": real.astype(np.int32),
        "maskable": real & ~special,
        "next_sentence_labels": np.zeros((len(lengths), 1), np.int32),
    }


def corrupt(rows, masking=DEFAULT, ids=TOY, seed=1):
    return masking.corrupt(rows, fold(seed, np.arange(len(rows["maskable"]))), ids)


@pytest.fixture(scope="module")
def rows():
    return toy_rows(np.random.default_rng(3).integers(5, 65, 4000), 64)


@pytest.fixture(scope="module")
def corrupted(rows):
    return corrupt(rows)


def used_slots(result):
    return result["masked_loss_weights"] > 0


def gather(array, positions):
    return np.take_along_axis(array, positions, axis=1)


def test_number_of_predictions_equals_the_published_one(rows, corrupted):
    slots = math.ceil(0.15 * 64)
    lengths = rows["encoder_segment_ids"].sum(axis=1)
    # create_masked_lm_predictions: min(max_predictions_per_seq, max(1, int(round(len(tokens) * masked_lm_prob))))
    expected = [min(slots, max(1, int(round(int(n) * 0.15)))) for n in lengths]
    assert corrupted["masked_positions"].shape == (4000, slots)
    assert used_slots(corrupted).sum(axis=1).tolist() == expected


def test_slots_are_ascending_distinct_and_empty_at_the_end(corrupted):
    positions, used = corrupted["masked_positions"], used_slots(corrupted)
    assert np.all(used[:, :-1] >= used[:, 1:])
    assert np.all((np.diff(positions, axis=1) > 0) | ~used[:, 1:])
    for name in ("masked_positions", "masked_target_tokens", "masked_loss_weights"):
        assert not corrupted[name][~used].any()  # TOY.pad is 0
    assert set(np.unique(corrupted["masked_loss_weights"])) == {0.0, 1.0}


def test_only_maskable_positions_are_predicted_or_changed(rows, corrupted):
    used = used_slots(corrupted)
    assert gather(rows["maskable"], corrupted["masked_positions"])[used].all()
    before, after = rows["encoder_input_tokens"], corrupted["encoder_input_tokens"]
    assert np.array_equal(before[~rows["maskable"]], after[~rows["maskable"]])
    assert (after[rows["encoder_segment_ids"] == 0] == TOY.pad).all()
    assert np.array_equal(rows["encoder_segment_ids"], corrupted["encoder_segment_ids"])
    assert "maskable" not in corrupted and "next_sentence_labels" in corrupted


def test_targets_restore_the_clean_row(rows, corrupted):
    restored, used = corrupted["encoder_input_tokens"].copy(), used_slots(corrupted)
    row, slot = np.nonzero(used)
    restored[row, corrupted["masked_positions"][row, slot]] = corrupted["masked_target_tokens"][row, slot]
    assert np.array_equal(restored, rows["encoder_input_tokens"])
    assert not np.isin(corrupted["masked_target_tokens"][used], TOY.special).any()
    assert np.shares_memory(rows["encoder_input_tokens"], corrupted["encoder_input_tokens"]) is False


def is_near(count, total, share):
    """Return True if a count is within four standard deviations of a binomial's mean."""
    return abs(count / total - share) < 4 * math.sqrt(share * (1 - share) / total)


def test_shares_of_masked_random_and_kept(rows, corrupted):
    used = used_slots(corrupted)
    inputs = gather(corrupted["encoder_input_tokens"], corrupted["masked_positions"])[used]
    targets = corrupted["masked_target_tokens"][used]
    assert used.sum() > 20_000
    assert is_near((inputs == TOY.mask).sum(), len(inputs), 0.8)
    # A random token is the original one in 1 of 7 cases.
    assert is_near((inputs == targets).sum(), len(inputs), 0.1 + 0.1 / 7)
    replaced = inputs[(inputs != TOY.mask) & (inputs != targets)]
    assert set(np.unique(replaced)) == set(range(5, 12))
    counts = np.bincount(inputs[inputs != TOY.mask], minlength=12)[5:]
    assert counts.min() > 0.7 * counts.max()


def test_random_tokens_of_the_whole_vocabulary_include_special_ones():
    rows = toy_rows(np.full(4000, 64), 64)
    result = corrupt(rows, BertMasking(mask_share=0.0, random_share=1.0, random_tokens="vocabulary"))
    inputs = gather(result["encoder_input_tokens"], result["masked_positions"])[used_slots(result)]
    assert set(np.unique(inputs)) == set(range(12))
    result = corrupt(rows, BertMasking(mask_share=0.0, random_share=1.0))
    inputs = gather(result["encoder_input_tokens"], result["masked_positions"])[used_slots(result)]
    assert set(np.unique(inputs)) == set(range(5, 12))


def test_special_tokens_may_have_any_ids():
    ids = TokenIds(size=12, pad=9, unk=1, cls=11, sep=0, mask=5, special=(0, 1, 5, 9, 11))
    rows = toy_rows(np.full(500, 20), 32, ids)
    result = corrupt(rows, ids=ids)
    used = used_slots(result)
    inputs = gather(result["encoder_input_tokens"], result["masked_positions"])[used]
    assert set(np.unique(inputs)) <= {2, 3, 4, 5, 6, 7, 8, 10}
    assert (result["masked_target_tokens"][~used] == ids.pad).all() and not result["masked_positions"][~used].any()
    assert (result["encoder_input_tokens"][:, 20:] == ids.pad).all()


def test_id_0_is_an_ordinary_token():
    ids = TokenIds(size=9, pad=8, unk=4, cls=5, sep=6, mask=7, special=(4, 5, 6, 7, 8))
    rows = toy_rows(np.full(300, 32), 40, ids)
    result = corrupt(rows, BertMasking(rate=1.0), ids)
    # Every real token is predicted, including those with id 0.
    assert result["masked_loss_weights"].sum() == rows["maskable"].sum()
    targets = result["masked_target_tokens"][used_slots(result)]
    assert (targets == 0).sum() == (rows["encoder_input_tokens"] == 0).sum() > 1000


def test_every_maskable_position_is_equally_likely():
    rows = toy_rows(np.full(6000, 32), 32)
    result = corrupt(rows, BertMasking(max_predictions=3))
    counts = np.bincount(result["masked_positions"].ravel(), minlength=32)
    maskable = rows["maskable"][0]
    assert not counts[~maskable].any()
    expected = counts.sum() / maskable.sum()
    assert np.all(np.abs(counts[maskable] - expected) < 4.5 * math.sqrt(expected))


@pytest.mark.parametrize(("masking", "slots"), [(DEFAULT, 20), (BertMasking(max_predictions=76), 76), (BertMasking(rate=1), 128)])
def test_number_of_slots_at_length_128(masking, slots):
    rows = toy_rows([128, 5, 6, 64], 128)
    result = corrupt(rows, masking)
    expected = [min(slots, max(1, round(masking.rate * n))) for n in (128, 5, 6, 64)]
    expected = np.minimum(expected, rows["maskable"].sum(axis=1))
    assert masking.predictions(128) == slots == result["masked_positions"].shape[1]
    assert used_slots(result).sum(axis=1).tolist() == expected.tolist()


def test_unused_slots_with_more_slots_than_positions():
    rows = toy_rows([5, 8], 8)
    result = corrupt(rows, BertMasking(rate=1.0, max_predictions=20))
    assert result["masked_positions"].shape == (2, 20)
    assert used_slots(result).sum(axis=1).tolist() == rows["maskable"].sum(axis=1).tolist() == [2, 5]


def test_masked_row_does_not_depend_on_other_rows(rows, corrupted):
    chosen = np.array([7, 3, 3999, 100])
    few = BertMasking().corrupt({name: value[chosen] for name, value in rows.items()}, fold(1, chosen), TOY)
    for name, value in few.items():
        assert np.array_equal(value, corrupted[name][chosen]), name


def test_other_keys_give_other_masks(rows, corrupted):
    other = corrupt(rows, seed=2)
    has_several = corrupted["masked_loss_weights"].sum(axis=1) > 3
    same = (other["masked_positions"] == corrupted["masked_positions"]).all(axis=1)
    assert same[has_several].mean() < 0.01


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rate": 0}, r"rate 0 is not in \(0, 1\]"),
        ({"rate": 1.5}, "rate 1.5 is not"),
        ({"max_predictions": 0}, "max_predictions 0 is less than 1"),
        ({"mask_share": 0.9, "random_share": 0.2}, "mask_share 0.9 and random_share 0.2"),
        ({"random_share": -0.1}, "random_share -0.1"),
    ],
)
def test_bad_settings_of_masking_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        BertMasking(**settings)
