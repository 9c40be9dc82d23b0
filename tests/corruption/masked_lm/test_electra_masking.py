"""ELECTRA's masking: positions drawn with replacement, a mask share of 0.85, and its own number of slots."""

import math

import numpy as np
import pytest
from noise_rows import VOCABULARIES, noise_rows, random_words

from bertfam.corruption import streams
from bertfam.corruption.keys import fold
from bertfam.corruption.masked_lm.masking import BertMasking
from bertfam.corruption.masked_lm.selection import WithReplacement
from bertfam.data.rows.two_segments import TwoSegments

ELECTRA = BertMasking(mask_share=0.85, random_share=0.0, choice=WithReplacement(), slot_margin=0.005)
LENGTH = 128


def budget(real, slots, rate=0.15):
    """Return max(1, min(N, round(num_tokens * mask_prob))), rounded half to even."""
    return max(1, min(slots, round(rate * real)))


@pytest.fixture(scope="module")
def rows(cache, tokens):
    """Rows (2,000) of real text."""
    examples = TwoSegments(short_row_rate=0.3).examples(cache.documents("train", "text"), LENGTH, 5, tokens)
    numbers = np.arange(2000)
    return examples.rows(numbers % len(examples), fold(7, numbers))


@pytest.fixture(scope="module")
def corrupted(rows, tokens):
    return ELECTRA.corrupt(rows, fold(3, np.arange(2000)), tokens)


def test_number_of_slots_equals_the_published_one():
    for rate in (0.15, 0.25):
        masking = BertMasking(rate=rate, slot_margin=0.005)
        assert [masking.predictions(n) for n in range(1, 513)] == [max(1, int((rate + 0.005) * n)) for n in range(1, 513)]
    assert (ELECTRA.predictions(128), ELECTRA.predictions(512)) == (19, 79)
    for settings in ({"slot_margin": -0.1}, {"slot_margin": 0.005, "max_predictions": 3}):
        with pytest.raises(ValueError, match="slot_margin .* must be in .*, and max_predictions None"):
            BertMasking(**settings)


@pytest.mark.parametrize("kind", VOCABULARIES)
def test_rows_equal_a_naive_implementation(kind):
    tokens = VOCABULARIES[kind]
    rows, keys = noise_rows(tokens, 200, 64), fold(1, np.arange(200))
    result = ELECTRA.corrupt(rows, keys, tokens)
    slots = ELECTRA.predictions(64)
    for row in range(200):
        maskable = np.flatnonzero(rows["maskable"][row])
        num_draws = budget(int((rows["encoder_segment_ids"][row] > 0).sum()), slots)
        words = random_words(keys[row], streams.SELECTION, slots)[:num_draws]
        # the upper half of each word, as a fraction of 2^32, selects a maskable position
        expected = sorted({int(maskable[(word >> 32) * len(maskable) >> 32]) for word in words}) if len(maskable) else []
        used = result["masked_loss_weights"][row] > 0
        assert result["masked_positions"][row, used].tolist() == expected


def test_positions_drawn_twice_count_once(rows, corrupted):
    """Expect m (1 - (1 - 1/m)^k) distinct positions on average for k draws from m positions."""
    real, maskable = (rows["encoder_segment_ids"] > 0).sum(axis=1), rows["maskable"].sum(axis=1)
    num_draws = np.array([budget(int(n), 19) for n in real])
    distinct = corrupted["masked_loss_weights"].sum(axis=1)
    assert (distinct <= num_draws).all() and (distinct >= 1).all() and (distinct < num_draws).any()
    expected = maskable * (1 - (1 - 1 / maskable) ** num_draws)
    error = distinct - expected
    assert abs(error.mean()) < 4 * error.std() / math.sqrt(len(error))


def test_control_tokens_stay_and_targets_restore_the_text(rows, corrupted, tokens):
    before, after, used = rows["encoder_input_tokens"], corrupted["encoder_input_tokens"], corrupted["masked_loss_weights"] > 0
    assert np.array_equal(before[~rows["maskable"]], after[~rows["maskable"]])
    assert np.take_along_axis(rows["maskable"], corrupted["masked_positions"], axis=1)[used].all()
    restored = after.copy()
    row, slot = np.nonzero(used)
    restored[row, corrupted["masked_positions"][row, slot]] = corrupted["masked_target_tokens"][row, slot]
    assert np.array_equal(restored, before)
    assert not np.isin(corrupted["masked_target_tokens"][used], tokens.special).any()


def test_85_percent_of_the_selected_tokens_are_masked_and_the_rest_kept(rows, corrupted, tokens):
    before, after = rows["encoder_input_tokens"], corrupted["encoder_input_tokens"]
    changed, chosen = before != after, int(corrupted["masked_loss_weights"].sum())
    assert (after[changed] == tokens.mask).all()  # no random tokens
    assert chosen > 20_000 and abs(changed.sum() / chosen - 0.85) < 4 * math.sqrt(0.85 * 0.15 / chosen)
