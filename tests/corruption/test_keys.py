"""Keys of random numbers: splitmix64, bounds and distributions."""

import numpy as np
import pytest
from chi_square import chi_square_limit

from bertfam.corruption.keys import bits, coin_sums, fold, integers, unfold, uniform


def test_keys_equal_splitmix64():
    # These are the first outputs of Vigna's splitmix64.c seeded with 1234567: it mixes after each addition of the golden ratio.
    state = np.uint64(1234567)
    words = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    from bertfam.corruption import keys

    with np.errstate(over="ignore"):
        outputs = keys._mix(state + np.arange(1, 6, dtype=np.uint64) * keys._GOLDEN)
    assert outputs.tolist() == words


def test_fold_depends_on_all_data_and_their_order():
    keys = [fold(0), fold(1), fold(0, 0), fold(0, 1), fold(1, 0), fold(0, 0, 0), fold(0, 1, 2), fold(0, 2, 1)]
    assert len({int(key[0]) for key in keys}) == len(keys)
    # Broadcasting equals folding every datum alone.
    rows = fold(7, np.arange(3)[:, None], np.arange(4))
    assert rows.shape == (3, 4) and rows[2, 3] == fold(7, 2, 3)[0]
    assert len(np.unique(fold(7, np.arange(300)[:, None], np.arange(300)))) == 300 * 300


def test_unfold_returns_the_keys_and_leaves_its_arguments():
    keys, data = fold(3, np.arange(500)), np.arange(0, 2**40, 2**40 // 500)[:500]
    folded = fold(keys, data)
    assert np.array_equal(unfold(folded, data), keys) and np.array_equal(folded, fold(keys, data))


def test_longer_reads_extend_the_same_stream():
    keys = fold(3, np.arange(5))
    assert np.array_equal(bits(keys, 1, 9)[:, :4], bits(keys, 1, 4))
    assert not np.any(bits(keys, 1, 4) == bits(keys, 2, 4))


def test_uniform_and_integers_keep_their_bounds():
    ends = np.array([0, 2**64 - 1], np.uint64)
    low, high = uniform(ends)
    assert low == 0 and 1 - 2**-52 < high < 1
    for bound in (1, 2, 3, 1000, 2**32 - 1):
        assert integers(ends, bound).tolist() == [0, bound - 1]
    assert integers(ends[[1, 1, 1]], np.array([1, 5, 9])).tolist() == [0, 4, 8]


@pytest.mark.parametrize("bound", [2, 7, 100])
def test_integers_are_uniform(bound):
    drawn = integers(bits(fold(5, np.arange(2000)), 1, 10), bound).ravel()
    counts = np.bincount(drawn, minlength=bound)
    expected = drawn.size / bound
    assert len(counts) == bound and ((counts - expected) ** 2 / expected).sum() < chi_square_limit(bound - 1)


def test_uniform_numbers_are_uniform():
    drawn = uniform(bits(fold(6, np.arange(2000)), 1, 10)).ravel()
    counts = np.bincount((drawn * 50).astype(int), minlength=50)
    assert ((counts - 400) ** 2 / 400).sum() < chi_square_limit(49)


@pytest.mark.parametrize("tosses", [1, 5, 63, 64, 65, 200])
def test_coin_sums_are_binomial(tosses):
    sums = coin_sums(fold(9, np.arange(8000)), 4, np.full(8000, tosses))
    assert sums.min() >= 0 and sums.max() <= tosses
    deviation = np.sqrt(tosses) / 2
    assert abs(sums.mean() - tosses / 2) < 4 * deviation / np.sqrt(8000)
    assert abs(sums.var() / deviation**2 - 1) < 4 * np.sqrt(2 / 8000)
    if tosses == 5:
        expected = 8000 / 32 * np.array([1, 5, 10, 10, 5, 1])
        assert ((np.bincount(sums, minlength=6) - expected) ** 2 / expected).sum() < chi_square_limit(5)


def test_coin_sums_of_a_key_do_not_depend_on_other_keys():
    keys, tosses = fold(2, np.arange(6)), np.array([0, 3, 64, 100_000, 1, 700])
    together = coin_sums(keys, 4, tosses)
    assert together.tolist() == [coin_sums(keys[i : i + 1], 4, tosses[i : i + 1])[0] for i in range(6)]
    assert together[0] == 0 and abs(together[3] - 50_000) < 5 * np.sqrt(25_000)
