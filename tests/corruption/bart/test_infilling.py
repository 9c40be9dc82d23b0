import math
from collections import Counter

import numpy as np
import pytest
from chi_square import chi_square_limit

from bertfam.corruption.bart.infilling import TextInfilling
from bertfam.corruption.bart.token_noise import FramedRows
from bertfam.corruption.keys import fold
from bertfam.corruption.token_ids import TokenIds

MASK, PAD = 99, 1


def text_rows(sizes, length, several=0.4, seed=0):
    """Rows `<s> text </s>` of distinct ascending tokens; a share of the tokens continues words."""
    generator = np.random.default_rng(seed)
    sizes = np.asarray(sizes)[:, None]
    place = np.arange(length)
    inside, real = (place > 0) & (place <= sizes), place < sizes + 2
    tokens = np.where(real, 1000 + place, PAD).astype(np.int32)
    begins = generator.random(tokens.shape) >= several
    begins[:, 1] = True
    return tokens, inside, begins & inside, real


def fill(noise, rows, keys):
    return noise.apply(FramedRows(*rows), keys, TokenIds(size=9999, pad=PAD, unk=0, mask=MASK))


@pytest.mark.parametrize("noise", [TextInfilling(), TextInfilling(0.5, 1.0), TextInfilling(0.15, 0.2)], ids=str)
def test_rows_lose_whole_words_and_never_grow(noise):
    n, length = 400, 48
    sizes = np.arange(n) % (length - 1)  # of nothing, one token, and rows without a free place
    rows = text_rows(sizes, length)
    result, counts = fill(noise, rows, fold(1, np.arange(n)))
    tokens, _, begins, _ = rows
    assert result.shape == (n, length) and result.dtype == np.int32 and counts.max() <= length
    for row in range(n):
        found, size = result[row, : counts[row]].tolist(), int(sizes[row])
        assert (result[row, counts[row] :] == PAD).all()
        assert (found[0], found[-1]) == (1000, 1000 + size + 1)
        kept = [token for token in found if token != MASK]
        assert kept == sorted(set(kept)) and set(kept) <= set(tokens[row].tolist())
        words = np.cumsum(begins[row])[1 : size + 1].tolist()
        gone = [words[token - 1001] for token in range(1001, 1001 + size) if token not in kept]
        assert not {words[token - 1001] for token in kept[1:-1]} & set(gone)
        # Exactly as many words as wanted are gone, and wherever some are there is a [MASK].
        assert len(set(gone)) == math.ceil(noise.rate * max(words, default=0))
        for place, token in enumerate(found[1:], 1):
            if MASK not in (token, found[place - 1]):
                assert token == found[place - 1] + 1


def test_the_lengths_are_poisson():
    n = 4000
    rows = text_rows(np.full(n, 300), 302, several=0.0)
    result, counts = fill(TextInfilling(), rows, fold(2, np.arange(n)))
    masks = (result == MASK).sum(axis=1)
    # 90 of 300 words are gone in every row; (90 + E[excess]) / 3 spans in the mean, that of the renewal process below.
    assert np.array_equal(302 - 90 + masks, counts)
    draws = np.random.default_rng(0).poisson(3.0, (20_000, 90))
    expected = (np.cumsum(draws, axis=1) - draws < 90).sum(axis=1)
    tolerance = 4 * expected.std() * math.sqrt(1 / n + 1 / 20_000)
    assert abs(masks.mean() - expected.mean()) < tolerance and abs(masks.std() / expected.std() - 1) < 0.1


def test_lengths_of_spans():
    noise, n = TextInfilling(), 3000
    lengths, used = noise._spans(np.full(n, 1000), np.full(n, 1000), 1000, fold(3, np.arange(n)))
    assert np.all(lengths.sum(axis=1) == 300)
    counts = np.bincount(lengths[used], minlength=40)
    # All but each row's last are Poisson; the last is biased by where it is cut.
    shares = np.array([math.exp(-3) * 3**k / math.factorial(k) for k in range(9)])
    total = used.sum()
    assert np.all(np.abs(counts[:9] / total - shares) < 0.01 + 4 * np.sqrt(shares / total))
    assert counts[0] > 0.045 * total


def test_every_arrangement_is_equally_likely():
    # Three of five words are gone. Of the rows with two [MASK] apart, one for one word and one for two, the six ways are alike.
    n = 30_000
    rows = text_rows(np.full(n, 5), 7, several=0.0)
    result, counts = fill(TextInfilling(0.6, 1.5), rows, fold(4, np.arange(n)))
    ways = Counter()
    for row, count in zip(result.tolist(), counts.tolist(), strict=True):
        places = [place for place in range(count) if row[place] == MASK]
        if len(places) == 2 and places[1] > places[0] + 1:
            gone = [row[place + 1] - row[place - 1] - 1 for place in places]
            if sorted(gone) == [1, 2]:
                ways[tuple(row)] += 1
    mean = sum(ways.values()) / 6
    assert len(ways) == 6 and mean > 300
    assert sum((count - mean) ** 2 / mean for count in ways.values()) < chi_square_limit(5)


def test_a_row_does_not_depend_on_its_neighbours():
    rows = text_rows(np.arange(100) % 40, 42)
    keys = fold(5, np.arange(100))
    whole, counts = fill(TextInfilling(), rows, keys)
    few = np.array([99, 20, 3])
    alone, some = fill(TextInfilling(), tuple(part[few] for part in rows), keys[few])
    assert np.array_equal(alone, whole[few]) and np.array_equal(some, counts[few])


@pytest.mark.parametrize(("settings", "message"), [({"rate": 0.0}, "rate 0.0"), ({"mean_length": 0.0}, "mean_length 0.0")])
def test_settings_of_infilling_are_checked(settings, message):
    with pytest.raises(ValueError, match=message):
        TextInfilling(**settings)
