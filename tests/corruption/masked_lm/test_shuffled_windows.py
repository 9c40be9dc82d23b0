"""StructBERT's noise: shuffled trigrams of unmasked tokens."""

import math
from collections import Counter

import numpy as np
import pytest
from noise_rows import VOCABULARIES, noise_rows

from bertfam.corruption.keys import fold
from bertfam.corruption.masked_lm.masking import BertMasking
from bertfam.corruption.masked_lm.selection import WholeWords
from bertfam.corruption.masked_lm.shuffled_windows import ShuffledWindows
from bertfam.data.rows.sentence_pairs import SentencePairs
from bertfam.data.text_data import TextData
from bertfam.features import RowShape

NOISE = BertMasking(shuffling=ShuffledWindows())
KEYS = fold(7, np.arange(2000))


def corrupt(rows, tokens, noise=NOISE, keys=KEYS):
    return noise.corrupt(rows, keys[: len(rows["maskable"])], tokens)


def shuffled_windows(result, row):
    """Return the positions of each shuffled window of a row."""
    slots = np.flatnonzero(result["shuffled_loss_weights"][row])
    positions = result["masked_positions"][row, slots].tolist()
    assert len(positions) % 3 == 0 and positions == sorted(positions)
    return [positions[at : at + 3] for at in range(0, len(positions), 3)]


@pytest.fixture(scope="module")
def real_rows(cache, tokens):
    """Rows (2,000) of pairs of real text, and the same rows after the noise."""
    examples = SentencePairs(relation="structure").examples(cache.documents("train", "text"), 128, 1, tokens)
    rows = examples.rows(np.resize(np.arange(len(examples)), 2000), fold(3, np.arange(2000)))
    return rows, corrupt(rows, tokens)


@pytest.mark.parametrize("tokens", VOCABULARIES.values(), ids=VOCABULARIES)
@pytest.mark.parametrize("choice", [BertMasking().choice, WholeWords()], ids=lambda choice: type(choice).__name__)
def test_windows_contain_unmasked_text_only(tokens, choice):
    rows = noise_rows(tokens, 400, 64)
    result = corrupt(rows, tokens, BertMasking(choice=choice, shuffling=ShuffledWindows(rate=0.2)))
    plain = corrupt(rows, tokens, BertMasking(choice=choice))
    slots = plain["masked_positions"].shape[1]
    shuffled = 0
    for name in ("masked_positions", "masked_target_tokens", "masked_loss_weights"):
        assert np.array_equal(result[name][:, :slots], plain[name])  # the masks equal those without shuffling
    assert not result["shuffled_loss_weights"][:, :slots].any()
    assert np.array_equal(result["shuffled_loss_weights"][:, slots:], result["masked_loss_weights"][:, slots:])
    for row in range(400):
        masked = set(plain["masked_positions"][row][plain["masked_loss_weights"][row] > 0].tolist())
        untouched = np.ones(64, bool)
        for window in shuffled_windows(result, row):
            shuffled += 1
            assert window == list(range(window[0], window[0] + 3))  # the positions are consecutive
            assert rows["maskable"][row, window].all() and not masked & set(window)
            assert len(set(rows["encoder_segment_ids"][row, window].tolist())) == 1
            before, after = rows["encoder_input_tokens"][row, window], result["encoder_input_tokens"][row, window]
            assert sorted(before) == sorted(after)
            untouched[window] = False
        assert np.array_equal(result["encoder_input_tokens"][row, untouched], plain["encoder_input_tokens"][row, untouched])
    assert shuffled > 500


@pytest.mark.parametrize("tokens", VOCABULARIES.values(), ids=VOCABULARIES)
def test_shuffled_rows_are_reversible_and_independent_of_other_rows(tokens):
    rows = noise_rows(tokens, 300, 64, seed=1)
    before = rows["encoder_input_tokens"].copy()
    result = corrupt(rows, tokens)
    assert np.array_equal(rows["encoder_input_tokens"], before)
    restored = result["encoder_input_tokens"].copy()
    row, slot = np.nonzero(result["masked_loss_weights"])
    restored[row, result["masked_positions"][row, slot]] = result["masked_target_tokens"][row, slot]
    assert np.array_equal(restored, before)
    used = result["masked_loss_weights"] > 0
    assert not np.isin(result["masked_target_tokens"][used], tokens.special).any()
    assert not result["masked_positions"][~used].any() and (result["masked_target_tokens"][~used] == tokens.pad).all()
    few = np.array([299, 5, 77])
    alone = NOISE.corrupt({name: value[few] for name, value in rows.items()}, KEYS[few], tokens)
    assert all(np.array_equal(alone[name], value[few]) for name, value in result.items())


def test_features_of_shuffled_windows_equal_their_specs(real_rows):
    rows, result = real_rows
    data = TextData(rows=SentencePairs(relation="structure"), corruption=NOISE)
    specs = data.features(128)
    assert specs.keys() == result.keys()
    for name, spec in specs.items():
        assert result[name].shape[1:] == spec.shape and result[name].dtype == spec.dtype, name
    assert data.shape(128) == RowShape(128, 20 + 9)
    assert "shuffled_loss_weights" not in TextData().features(128)


def test_shares_and_orders_of_shuffled_windows_in_real_text(real_rows):
    """Shuffle 5% of the tokens in equally likely orders; 15% are masked as without shuffling."""
    rows, result = real_rows
    sizes = rows["encoder_segment_ids"].sum(axis=1)
    expected_windows = np.maximum(1, 0.05 * sizes / 3)  # the mean for a row of this size, rounded by a uniform draw
    windows = result["shuffled_loss_weights"].sum(axis=1) / 3
    # Only a few rows are so full of masks that they have no room.
    deviation = math.sqrt(np.sum(0.25 * np.ones(len(sizes))))
    assert abs(windows.sum() - expected_windows.sum()) < 4 * deviation + 0.005 * expected_windows.sum()
    assert abs(3 * windows.sum() / sizes.sum() - 0.05) < 0.003
    assert abs((result["masked_loss_weights"].sum() - 3 * windows.sum()) / sizes.sum() - 0.15) < 0.003

    orders, total = Counter(), 0
    for row in range(len(sizes)):
        for window in shuffled_windows(result, row):
            before, after = (
                rows["encoder_input_tokens"][row, window].tolist(),
                result["encoder_input_tokens"][row, window].tolist(),
            )
            if len(set(before)) == 3:
                orders[tuple(before.index(token) for token in after)] += 1
                total += 1
    assert len(orders) == 6 and total > 3000
    assert all(abs(count / total - 1 / 6) < 4.5 * math.sqrt(5 / 36 / total) for count in orders.values())


def test_rows_without_room_have_no_windows():
    tokens = VOCABULARIES["wordpiece"]
    rows = noise_rows(tokens, 200, 64)
    result = corrupt(rows, tokens, BertMasking(rate=1.0, max_predictions=64, shuffling=ShuffledWindows()))
    assert not result["shuffled_loss_weights"].any()
    short = {name: value[:, :2] for name, value in rows.items()}
    assert not corrupt(short, tokens)["shuffled_loss_weights"].any()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ShuffledWindows(rate=0), r"rate 0 is not in \(0, 1\]"),
        (lambda: ShuffledWindows(size=1), "size 1 is not between 2 and 100 tokens"),
        (lambda: ShuffledWindows(rounding="down"), "rounding 'down' is not one of nearest, up, random"),
        (lambda: BertMasking(boundaries=True, shuffling=ShuffledWindows()), "boundaries is True and shuffling is set"),
    ],
)
def test_bad_settings_of_shuffled_windows_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
