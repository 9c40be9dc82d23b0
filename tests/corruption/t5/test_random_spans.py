"""T5's random spans, random tokens and random prefixes."""

import math

import numpy as np
import pytest
from chi_square import chi_square_limit

from bertfam.corruption.keys import fold
from bertfam.corruption.t5.random_spans import RandomSpans
from bertfam.corruption.t5.random_tokens import RandomPrefix, RandomTokens

SETTINGS = [(density, mean) for density in (0.1, 0.15, 0.25, 0.5) for mean in (2.0, 3.0, 5.0, 10.0)]


@pytest.mark.parametrize(("density", "mean"), SETTINGS)
def test_noise_has_the_counted_spans(density, mean):
    spans, n, width = RandomSpans(density, mean), 120, 100
    lengths = np.arange(n) % width + 1
    noise = spans.draw(lengths, width, fold(1, np.arange(n)))
    counts = spans.counts(lengths)
    assert counts.exact
    for row, length in enumerate(lengths.tolist()):
        mask = noise[row, :length]
        assert not noise[row, length:].any() and mask.sum() == counts.noise[row]
        runs = np.flatnonzero(np.diff(np.concatenate([[0], mask, [0]])) == 1)
        assert len(runs) == counts.spans[row] and (np.diff(np.concatenate([[1], mask])) == -1).sum() == counts.clear[row]
        if length > 1:
            assert not mask[0] and mask[-1]


def test_shortest_rows():
    counts = RandomSpans().counts(np.arange(13))
    assert counts.noise.tolist() == [0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2]
    assert counts.spans.tolist() == [0, 0] + [1] * 11 and counts.clear.tolist() == [0] + [1] * 12
    assert RandomSpans().draw(np.array([1, 0]), 1, fold(1, np.arange(2))).tolist() == [[False], [False]]


def test_row_of_mostly_noise_has_clear_text_before_every_span():
    lengths = np.arange(1, 60)
    spans = RandomSpans(0.8, 1.0)
    noise = spans.draw(lengths, 60, fold(1, lengths))
    assert np.array_equal(noise.sum(axis=1), spans.counts(lengths).noise)
    assert np.array_equal((np.diff(noise.astype(int), axis=1) == 1).sum(axis=1), spans.counts(lengths).spans)


def test_every_segmentation_is_equally_likely():
    # Of 9 tokens 4 are noise in 2 spans: 3 ways to cut the noise times 4 ways to cut the rest.
    n = 12_000
    noise = RandomSpans(0.45, 2.0).draw(np.full(n, 9), 9, fold(7, np.arange(n)))
    masks, counts = np.unique(noise, axis=0, return_counts=True)
    assert len(masks) == 12 and ((counts - n / 12) ** 2 / (n / 12)).sum() < chi_square_limit(11)


def test_noise_is_uniform_over_the_middle_positions():
    noise = RandomSpans().draw(np.full(2000, 512), 512, fold(2, np.arange(2000)))
    assert noise.sum() == 2000 * 77
    # Rows start without noise and end with it; positions in between are equally likely.
    middle = noise[:, 20:-20].mean(axis=0)
    assert abs(middle.mean() - 0.15) < 0.005
    assert np.all(np.abs(middle - middle.mean()) < 5 * math.sqrt(0.15 * 0.85 / 2000))


@pytest.mark.parametrize("noise", [RandomSpans(), RandomTokens(), RandomPrefix()], ids=str)
def test_noise_of_a_row_does_not_depend_on_other_rows(noise):
    lengths = np.random.default_rng(1).integers(1, 90, 200)
    whole = noise.draw(lengths, 90, fold(3, np.arange(200)))
    few = np.array([199, 3, 50])
    assert np.array_equal(noise.draw(lengths[few], 90, fold(3, few)), whole[few])
    assert not whole[np.arange(90) >= lengths[:, None]].any()


@pytest.mark.parametrize("density", [0.1, 0.15, 0.25, 0.5])
def test_random_tokens_are_independent(density):
    n, width = 4000, 127
    noise, random_tokens = RandomTokens(density).draw(np.full(n, width), width, fold(4, np.arange(n))), RandomTokens(density)
    assert abs(noise.mean() - density) < 5 * math.sqrt(density * (1 - density) / noise.size)
    after_noise, after_clear = (noise[:, 1:][noise[:, :-1] == value].mean() for value in (True, False))
    assert abs(after_noise - after_clear) < 5 * math.sqrt(density * (1 - density) / noise.size * (1 / density + 2))
    counts = random_tokens.counts(width)
    spans = (np.diff(noise.astype(int), axis=1) == 1).sum(axis=1) + noise[:, 0]
    for observed, limit in ((noise.sum(axis=1), counts.noise), (spans, counts.spans)):
        # The limit is about four standard deviations above the mean.
        assert (observed > limit).mean() < 0.002 and 3.5 < (limit - observed.mean()) / observed.std() < 4.6


def test_prefix_lengths_are_uniform_without_zero_and_all():
    n = 9000
    prefix = RandomPrefix().draw(np.full(n, 10), 12, fold(5, np.arange(n)))
    sizes = prefix.sum(axis=1)
    assert np.array_equal(prefix, np.arange(12) < sizes[:, None])
    counts = np.bincount(sizes, minlength=11)
    assert counts[0] == counts[10] == 0 and ((counts[1:10] - n / 9) ** 2 / (n / 9)).sum() < chi_square_limit(8)
    assert RandomPrefix().draw(np.array([0, 1, 2]), 2, fold(5, np.arange(3))).sum(axis=1).tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("noise", "settings", "message"),
    [
        (RandomSpans, {"density": 0.0}, "density 0.0"),
        (RandomSpans, {"density": 1.0}, "density 1.0"),
        (RandomSpans, {"mean_length": 0.5}, "mean_length 0.5 is not a finite number of at least 1"),
        (RandomTokens, {"density": 0.0}, "density 0.0"),
        (RandomTokens, {"density": 1.1}, "density 1.1"),
    ],
)
def test_bad_settings_of_noise_are_refused(noise, settings, message):
    with pytest.raises(ValueError, match=message):
        noise(**settings)


@pytest.mark.parametrize(("density", "mean"), SETTINGS)
def test_rolled_noise_is_the_same_noise_rotated(density, mean):
    lengths = np.arange(200) % 80 + 1
    plain, rolled = (RandomSpans(density, mean, random_roll=roll) for roll in (False, True))
    noise, turned = (spans.draw(lengths, 90, fold(1, np.arange(200))) for spans in (plain, rolled))
    counts = rolled.counts(lengths)
    assert np.array_equal(counts.noise, noise.sum(axis=1)) and counts.exact
    starts_with_noise = 0
    for row, length in enumerate(lengths.tolist()):
        mask = turned[row, :length]
        assert not turned[row, length:].any()
        assert any(np.array_equal(np.roll(noise[row, :length], turn), mask) for turn in range(length))
        assert (np.diff(np.concatenate([[0], mask, [0]])) == 1).sum() <= counts.spans[row]
        assert (np.diff(np.concatenate([[1], mask])) == -1).sum() <= counts.clear[row]
        starts_with_noise += mask[0]
    assert starts_with_noise > 0


def test_rolled_noise_is_uniform_over_all_positions():
    n = 6000
    for length in (6, 40):  # one span of a token; two spans of six
        noise = RandomSpans(random_roll=True).draw(np.full(n, length), length, fold(2, np.arange(n)))
        share = RandomSpans().counts(length).noise / length
        assert np.all(np.abs(noise.mean(axis=0) - share) < 5 * math.sqrt(share * (1 - share) / n))
    tail = RandomSpans().draw(np.full(50, 6), 6, fold(2, np.arange(50)))
    assert tail[:, -1].all() and tail.sum() == 50  # as published, the only span of a short row is its end
