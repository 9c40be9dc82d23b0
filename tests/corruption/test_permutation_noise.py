"""Spans of XLNet's partial prediction, against a plain walk as in the published code, and its statistics."""

import dataclasses

import numpy as np
import pytest

from bertfam.corruption import keys, streams
from bertfam.corruption.permutation_noise import PermutationNoise
from bertfam.corruption.token_ids import TokenIds
from bertfam.data.rows.recurrent_pairs import RecurrentPairs
from bertfam.data.text_data import TextData
from bertfam.errors import UserError

SIZE = 200
IDS = TokenIds(SIZE, pad=5, unk=0, cls=3, sep=4, eos=7, mask=6, special=(0, 3, 4, 5, 6, 7), starts_word=np.arange(SIZE) % 3 == 0)


def random_rows(n, length, side="right", seed=0, shortest=1):
    """Return rows of random tokens that end with [SEP] [CLS], some of them reversed, with padding on one side."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(min(shortest, length), length + 1, n)
    real = np.arange(length) < lengths[:, None]
    real = real[:, ::-1] if side == "left" else real
    tokens = np.where(real, generator.integers(8, SIZE, (n, length)), IDS.pad).astype(np.int32)
    for row in range(n):
        for place, token in zip(np.flatnonzero(real[row])[-2:], (IDS.sep, IDS.cls), strict=False):
            tokens[row, place] = token
    return {
        "encoder_input_tokens": tokens,
        "encoder_segment_ids": real.astype(np.int32),
        "encoder_token_type_ids": np.zeros_like(tokens),
        "encoder_reversed": generator.integers(0, 2, (n, 1)).astype(np.int32),
        "maskable": real & ~IDS.control[tokens],
    }


def walked(noise, begins, share, key):
    """Return the selected places of a block of tokens in order of reading, one draw at a time as in the published code."""
    length, selected = len(begins), set()
    goal = min(share, -(-length // noise.context))
    words = keys.bits(np.array([key], np.uint64), streams.SPANS, 2 * share)[0]
    weights = 1 / np.arange(1, noise.longest_span + 1)
    limits = np.cumsum(weights / weights.sum())
    draws, at = iter(words), 0
    while at < length and len(selected) < goal:
        size = 1 + int((keys.uniform(next(draws)) >= limits[:-1]).sum())
        size = min(size, goal - len(selected))
        before = int(keys.integers(next(draws), size * noise.context))
        first = at + before
        while first < length and not begins[first]:
            first += 1
        if first >= length:
            break
        # The published search for the end tests the first token each time, which begins a word: a "gram" is a token.
        end, grams = first + 1, 1
        while end < length:
            if begins[first]:
                grams += 1
                if grams > size:
                    break
            end += 1
        if end >= length:
            break
        selected |= set(range(first, end))
        at = end + size * noise.context - before
    return selected, goal


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(
    ("length", "options"), [(64, {}), (64, {"blocks": 1, "longest_span": 3}), (37, {"context": 3}), (48, {"max_predictions": 5})]
)
def test_spans_equal_those_of_a_plain_walk(length, options, side):
    """What the walk does not reach is filled up with single tokens; control tokens are selected, but not predicted."""
    noise = PermutationNoise(**options)
    rows, row_keys = random_rows(80, length, side), keys.fold(1, np.arange(80))
    before = {name: value.copy() for name, value in rows.items()}
    result = noise.corrupt(rows, row_keys, IDS)
    assert all(np.array_equal(rows[name], value) for name, value in before.items())
    assert np.array_equal(result["encoder_input_tokens"], rows["encoder_input_tokens"])
    slots, width = noise.predictions(length), -(-length // noise.blocks)
    for row in range(80):
        tokens, real = rows["encoder_input_tokens"][row], rows["encoder_segment_ids"][row] > 0
        used = result["masked_loss_weights"][row] > 0
        positions = result["masked_positions"][row][used]
        assert np.array_equal(result["masked_target_tokens"][row][used], tokens[positions])
        assert rows["maskable"][row, positions].all() and not np.any(np.diff(positions) <= 0)
        left = slots
        for block in range(noise.blocks):
            share = -(-left // (noise.blocks - block))
            left -= share
            places = [place for place in range(block * width, min((block + 1) * width, length)) if real[place]]
            places = places[::-1] if rows["encoder_reversed"][row, 0] else places
            begins = [bool(IDS.starts_word[tokens[place]] or IDS.control[tokens[place]]) for place in places]
            selected, goal = walked(noise, begins, share, keys.fold(row_keys[row : row + 1], block)[0])
            spans, chosen = {places[place] for place in selected}, set(positions) & set(places)
            maskable = {place for place in places if rows["maskable"][row, place]}
            assert spans & maskable <= chosen
            assert len(chosen) <= goal and (len(chosen - spans) <= goal - len(spans))
            assert len(chosen) >= min(goal, len(maskable)) - 2  # [SEP] and [CLS] may have been selected


def test_published_shares_of_full_rows():
    """85 of 512 tokens, 43 and 42 of the halves, but for control tokens; spans of 1 to 5 tokens in proportion to 1 / length."""
    noise, rows = PermutationNoise(), random_rows(2000, 512, shortest=512)
    rows["encoder_reversed"][:] = 0
    tokens = TokenIds(SIZE, pad=5, unk=0, cls=3, sep=4, mask=6, special=(0, 3, 4, 5, 6))  # spans may begin with any token
    result = noise.corrupt(rows, keys.fold(2, np.arange(2000)), tokens)
    assert noise.predictions(512) == 85 == result["masked_positions"].shape[1]
    used, positions = result["masked_loss_weights"] > 0, result["masked_positions"]
    of_first = ((positions < 256) & used).sum(axis=1)
    assert (of_first == 43).all() and (used.sum(axis=1) - of_first <= 42).all()
    assert 84.5 < used.sum(axis=1).mean() < 85  # [SEP] and [CLS] are at the end, which spans rarely reach

    # Where a row has room for all spans, none touch and no token is added; the last of a row may be cut.
    few = dataclasses.replace(noise, blocks=1, max_predictions=40).corrupt(rows, keys.fold(3, np.arange(2000)), tokens)
    chosen = np.zeros((2000, 514), bool)
    row, slot = np.nonzero(few["masked_loss_weights"])
    chosen[row, few["masked_positions"][row, slot] + 1] = True
    edges = np.diff(chosen.astype(int), axis=1)
    (row, begin), (_, end) = np.nonzero(edges > 0), np.nonzero(edges < 0)
    sizes = (end - begin)[:-1][row[1:] == row[:-1]]
    shares = np.bincount(sizes, minlength=6)[1:6] / len(sizes)
    assert shares == pytest.approx(1 / np.arange(1, 6) / (1 / np.arange(1, 6)).sum(), abs=0.015), shares
    # Six tokens of context for each, and on average as many before a span as after it.
    gaps = (begin[1:] - end[:-1])[row[1:] == row[:-1]]
    assert gaps.mean() == pytest.approx(6 * sizes.mean(), rel=0.1)


def test_rows_of_real_text(cache, tokens):
    """Rows of the command line's data: words begin spans, half of the rows run backwards, and a second half sees the first."""
    data = TextData(rows=RecurrentPairs(), corruption=PermutationNoise(), order="streams")
    batches = data.training(cache, tokens, 64, 16, seed=0)
    rows = batches.rows(3, 0, 16)
    assert set(rows) == set(data.features(64))
    for name, spec in data.features(64).items():
        assert rows[name].shape == (16, *spec.shape) and rows[name].dtype == spec.dtype, name
    assert rows["encoder_reversed"][:, 0].tolist() == [0] * 8 + [1] * 8
    assert (rows["masked_loss_weights"].sum(axis=1) >= 8).all()
    ranks = rows["encoder_ranks"]
    assert (ranks[:, :32].max(axis=1) < ranks[:, 32:].min(axis=1)).all()
    # Rows do not depend on how many are made at once.
    some = batches.rows(3, 5, 11)
    assert all(np.array_equal(some[name], value[5:11]) for name, value in rows.items())


def test_too_short_rows_are_refused():
    with pytest.raises(UserError, match="length 11 is too short for PermutationNoise.* at least 12"):
        PermutationNoise().check(11, IDS)
    with pytest.raises(ValueError, match="context 1 is less than 2"):
        PermutationNoise(context=1)
