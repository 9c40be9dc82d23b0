"""Skip-grams against a slow reading of each row, and the distributions that they are drawn from."""

import numpy as np
import pytest

from bertfam.corruption import keys
from bertfam.corruption.skip_grams import SkipGrams
from bertfam.corruption.token_ids import TokenIds
from bertfam.errors import UserError

TOKENS = TokenIds(size=40, pad=0, unk=1, cls=2, sep=3, mask=4, special=(0, 1, 2, 3, 4), starts_word=np.ones(40, bool))
WORDS, ROWS = 24, 400
COUNTS = np.r_[np.full(5, 9_999), np.arange(1, 36) ** 2]  # those of special tokens do not matter


def clean_rows(seed=0):
    """Return rows of 0 to 24 tokens, some of them separators or unknown."""
    generator = np.random.default_rng(seed)
    sizes = generator.integers(0, WORDS + 1, ROWS)
    ids = generator.choice(40, (ROWS, WORDS), p=np.r_[0, 0.05, 0, 0.05, 0, COUNTS[5:] / COUNTS[5:].sum() * 0.9])
    real = np.arange(WORDS) < sizes[:, None]
    return {
        "encoder_input_tokens": np.where(real, ids, 0).astype(np.int32),
        "encoder_segment_ids": real.astype(np.int32),
        "maskable": real & (ids > 4),
    }


def drawn(rows, seed=0, **settings):
    noise = SkipGrams(**{"threshold": 0.0, "pairs_per_word": 6, "window": 3, "negatives": 2} | settings)
    return noise.fit(lambda: COUNTS).corrupt(rows, keys.fold(seed, np.arange(ROWS)), TOKENS)


def pairs_of(found, row):
    used = found["masked_loss_weights"][row] > 0
    text = found["encoder_input_tokens"][row]
    centres = found["masked_positions"][row][used]
    return list(zip(centres.tolist(), text[centres].tolist(), found["masked_target_tokens"][row][used].tolist(), strict=True))


def test_pairs_are_those_of_a_window_of_each_word():
    rows = clean_rows()
    found = drawn(rows)
    radii = []
    for row in range(ROWS):
        words = rows["encoder_input_tokens"][row][rows["maskable"][row]].tolist()
        size = len(words)
        assert found["encoder_input_tokens"][row].tolist() == words + [0] * (WORDS * 6 - size)
        assert found["encoder_segment_ids"][row].sum() == size
        pairs = pairs_of(found, row)
        for place, word in enumerate(words):
            own = [target for centre, _, target in pairs if centre == place]
            windows = {
                radius: [
                    words[other] for other in range(place - radius, place + radius + 1) if other != place and 0 <= other < size
                ]
                for radius in (1, 2, 3)
            }
            fitting = [radius for radius, window in windows.items() if window == own]
            assert fitting and all(centre != place or here == word for centre, here, _ in pairs)
            if 3 <= place < size - 3:
                radii += fitting
    share = np.bincount(radii, minlength=4)[1:] / len(radii)
    assert len(radii) > 1000 and np.allclose(share, 1 / 3, atol=0.05)


def test_frequent_words_are_left_out_by_their_frequency():
    rows = clean_rows()
    threshold, counts = 0.01, np.zeros(40)
    before = np.bincount(rows["encoder_input_tokens"][rows["maskable"]], minlength=40)
    for seed in range(5):
        found = drawn(rows, seed, threshold=threshold)
        counts += np.bincount(found["encoder_input_tokens"][found["encoder_segment_ids"] > 0], minlength=40) / 5
    frequency = COUNTS[5:] / COUNTS[5:].sum()
    expected = before[5:] * np.minimum(1, np.sqrt(threshold / frequency))
    assert np.all(counts[5:][frequency < threshold] == before[5:][frequency < threshold])
    assert np.all(np.abs(counts[5:] - expected) < 4 * np.sqrt(expected + 1))


def test_negatives_follow_the_power_of_the_frequencies():
    found = drawn(clean_rows())["noise_tokens"]
    share = np.bincount(found.ravel(), minlength=40) / found.size
    expected = COUNTS[5:] ** 0.75 / (COUNTS[5:] ** 0.75).sum()
    assert found.shape == (ROWS, WORDS * 6, 2) and not share[:5].any()
    assert np.all(np.abs(share[5:] - expected) < 5 * np.sqrt(expected / found.size))


def test_a_random_set_of_pairs_is_used_where_slots_are_few():
    rows = clean_rows()
    every, few = drawn(rows), drawn(rows, pairs_per_word=1)
    places, counts = [], every["masked_loss_weights"].sum(1)
    for row in range(ROWS):
        some, pairs = pairs_of(few, row), pairs_of(every, row)
        assert len(some) == min(len(pairs), WORDS) and not set(some) - set(pairs)
        if counts[row] > 2 * WORDS:
            places += [(centre + 0.5) / rows["maskable"][row].sum() for centre, _, _ in some]
    assert abs(np.mean(places) - 0.5) < 0.03


def test_draws_depend_on_the_key_of_the_row_alone():
    rows = clean_rows()
    found = drawn(rows)
    part = {name: value[7:9] for name, value in rows.items()}
    noise = SkipGrams(threshold=0.0, pairs_per_word=6, window=3, negatives=2).fit(lambda: COUNTS)
    again = noise.corrupt(part, keys.fold(0, np.arange(7, 9)), TOKENS)
    assert all(np.array_equal(value, found[name][7:9]) for name, value in again.items())
    assert not np.array_equal(drawn(rows, 1)["noise_tokens"], found["noise_tokens"])


def test_mistakes():
    with pytest.raises(UserError, match="1000 slots for pairs .*pairs_per_word, 3, does not divide"):
        SkipGrams(pairs_per_word=3).raw_length(1000)
    for wrong in ({"window": 0}, {"negatives": 0}, {"power": 2.0}, {"threshold": 1.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            SkipGrams(**wrong)
