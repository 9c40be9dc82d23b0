"""BART's text infilling: removed words, span lengths and arrangements."""

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


def text_rows(sizes, length, continued_share=0.4, seed=0):
    """Return rows `<s> text </s>` of distinct ascending tokens, a share of which continue words."""
    generator = np.random.default_rng(seed)
    sizes = np.asarray(sizes)[:, None]
    place = np.arange(length)
    inside, real = (place > 0) & (place <= sizes), place < sizes + 2
    tokens = np.where(real, 1000 + place, PAD).astype(np.int32)
    begins = generator.random(tokens.shape) >= continued_share
    begins[:, 1] = True
    return tokens, inside, begins & inside, real


def fill(noise, rows, keys):
    return noise.apply(FramedRows(*rows), keys, TokenIds(size=9999, pad=PAD, unk=0, mask=MASK))


@pytest.mark.parametrize("noise", [TextInfilling(), TextInfilling(0.5, 1.0), TextInfilling(0.15, 0.2)], ids=str)
def test_infilling_removes_whole_words_and_never_lengthens_rows(noise):
    n, length = 400, 48
    sizes = np.arange(n) % (length - 1)  # empty rows, one token, and rows without free positions
    rows = text_rows(sizes, length)
    result, counts = fill(noise, rows, fold(1, np.arange(n)))
    tokens, _, begins, _ = rows
    assert result.shape == (n, length) and result.dtype == np.int32 and counts.max() <= length
    for row in range(n):
        infilled, size = result[row, : counts[row]].tolist(), int(sizes[row])
        assert (result[row, counts[row] :] == PAD).all()
        assert (infilled[0], infilled[-1]) == (1000, 1000 + size + 1)
        kept = [token for token in infilled if token != MASK]
        assert kept == sorted(set(kept)) and set(kept) <= set(tokens[row].tolist())
        words = np.cumsum(begins[row])[1 : size + 1].tolist()
        lost_words = [words[token - 1001] for token in range(1001, 1001 + size) if token not in kept]
        assert not {words[token - 1001] for token in kept[1:-1]} & set(lost_words)
        # Exactly the budgeted number of words is removed, and a [MASK] stands wherever words are missing.
        assert len(set(lost_words)) == math.ceil(noise.rate * max(words, default=0))
        for place, token in enumerate(infilled[1:], 1):
            if MASK not in (token, infilled[place - 1]):
                assert token == infilled[place - 1] + 1


def test_number_of_spans_follows_poisson_lengths():
    n = 4000
    rows = text_rows(np.full(n, 300), 302, continued_share=0.0)
    result, counts = fill(TextInfilling(), rows, fold(2, np.arange(n)))
    masks = (result == MASK).sum(axis=1)
    # Each row loses 90 of 300 words; (90 + E[excess]) / 3 spans on average, as in the renewal process below.
    assert np.array_equal(302 - 90 + masks, counts)
    draws = np.random.default_rng(0).poisson(3.0, (20_000, 90))
    expected = (np.cumsum(draws, axis=1) - draws < 90).sum(axis=1)
    tolerance = 4 * expected.std() * math.sqrt(1 / n + 1 / 20_000)
    assert abs(masks.mean() - expected.mean()) < tolerance and abs(masks.std() / expected.std() - 1) < 0.1


def test_span_lengths_are_poisson():
    noise, n = TextInfilling(), 3000
    lengths, used = noise._spans(np.full(n, 1000), np.full(n, 1000), 1000, fold(3, np.arange(n)))
    assert np.all(lengths.sum(axis=1) == 300)
    counts = np.bincount(lengths[used], minlength=40)
    # Lengths are Poisson except each row's last, which is biased by the cut at the budget.
    shares = np.array([math.exp(-3) * 3**k / math.factorial(k) for k in range(9)])
    total = used.sum()
    assert np.all(np.abs(counts[:9] / total - shares) < 0.01 + 4 * np.sqrt(shares / total))
    assert counts[0] > 0.045 * total


def test_every_arrangement_of_spans_is_equally_likely():
    # Three of five words are removed. The six ways to remove one word and two words apart are equally likely.
    n = 30_000
    rows = text_rows(np.full(n, 5), 7, continued_share=0.0)
    result, counts = fill(TextInfilling(0.6, 1.5), rows, fold(4, np.arange(n)))
    ways = Counter()
    for row, count in zip(result.tolist(), counts.tolist(), strict=True):
        places = [place for place in range(count) if row[place] == MASK]
        if len(places) == 2 and places[1] > places[0] + 1:
            span_lengths = [row[place + 1] - row[place - 1] - 1 for place in places]
            if sorted(span_lengths) == [1, 2]:
                ways[tuple(row)] += 1
    mean = sum(ways.values()) / 6
    assert len(ways) == 6 and mean > 300
    assert sum((count - mean) ** 2 / mean for count in ways.values()) < chi_square_limit(5)


def test_infilled_row_does_not_depend_on_other_rows():
    rows = text_rows(np.arange(100) % 40, 42)
    keys = fold(5, np.arange(100))
    whole, counts = fill(TextInfilling(), rows, keys)
    selected = np.array([99, 20, 3])
    alone, counts_alone = fill(TextInfilling(), tuple(part[selected] for part in rows), keys[selected])
    assert np.array_equal(alone, whole[selected]) and np.array_equal(counts_alone, counts[selected])


@pytest.mark.parametrize(("settings", "message"), [({"rate": 0.0}, "rate 0.0"), ({"mean_length": 0.0}, "mean_length 0.0")])
def test_bad_settings_of_infilling_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        TextInfilling(**settings)
