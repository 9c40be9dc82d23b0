"""Orders of examples: permutations, shuffling by epoch, held-out order and streams."""

from itertools import permutations

import numpy as np
import pytest
from chi_square import chi_square_limit

from bertfam.corruption.keys import fold
from bertfam.data.rows.order import Contiguous, Shuffled, Streams, permute


@pytest.mark.parametrize("size", [*range(1, 40), 63, 64, 65, 255, 256, 257, 1000, 4097])
def test_permute_is_a_bijection(size):
    for key in (0, 12345):
        permuted = permute(np.arange(size), size, fold(key, np.zeros(size)))
        assert np.array_equal(np.sort(permuted), np.arange(size))


def test_permute_accepts_large_sizes_and_single_values():
    size = 10**12 + 39
    values = np.array([0, 1, size // 2, size - 1])
    permuted = permute(values, size, fold(3, np.zeros(4)))
    assert len(set(permuted.tolist())) == 4 and permuted.min() >= 0 and permuted.max() < size
    assert permute(values[2:3], size, fold(3, 0))[0] == permuted[2]


@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_permutation_is_equally_likely(size):
    keys = 4000 * size
    orders = permute(np.tile(np.arange(size), keys), size, np.repeat(fold(8, np.arange(keys)), size)).reshape(keys, size)
    kinds = list(permutations(range(size)))
    counts = np.array([np.all(orders == kind, axis=1).sum() for kind in kinds])
    expected = keys / len(kinds)
    assert ((counts - expected) ** 2 / expected).sum() < chi_square_limit(len(kinds) - 1)


@pytest.mark.parametrize("size", [6, 8, 16, 32, 64, 80])
def test_every_pair_of_places_is_equally_likely(size):
    keys = 60 * size * size
    firsts, seconds = (permute(np.full(keys, value), size, fold(9, np.arange(keys))) for value in (0, 1))
    counts = np.bincount(firsts * size + seconds, minlength=size * size).reshape(size, size)
    assert not counts.diagonal().any()
    off_diagonal = counts[~np.eye(size, dtype=bool)]
    expected = keys / (size * (size - 1))
    assert ((off_diagonal - expected) ** 2 / expected).sum() < chi_square_limit(size * (size - 1) - 1)


@pytest.mark.parametrize("size", [10, 17, 100])
def test_every_value_is_equally_likely_at_every_place(size):
    keys = 3000
    for value in (0, size - 1):
        counts = np.bincount(permute(np.full(keys, value), size, fold(4, np.arange(keys))), minlength=size)
        assert ((counts - keys / size) ** 2 / (keys / size)).sum() < chi_square_limit(size - 1)


def test_neighbours_are_separated():
    permuted = permute(np.arange(5000), 5000, fold(6, np.zeros(5000)))
    assert np.sum(np.abs(np.diff(permuted)) == 1) < 12  # about 2 are expected
    assert abs(np.corrcoef(np.arange(5000), permuted)[0, 1]) < 4 / np.sqrt(5000)


@pytest.mark.parametrize("examples", [10, 7, 64, 1])
def test_shuffled_yields_every_example_once_an_epoch_in_a_new_order(examples):
    epochs, numbers = Shuffled(examples, 5).index(np.arange(5 * examples))
    orders = numbers.reshape(5, examples).tolist()
    assert np.array_equal(epochs, np.repeat(np.arange(5), examples))
    assert all(sorted(order) == list(range(examples)) for order in orders)
    if examples > 5:
        assert len({tuple(order) for order in orders}) == 5


def test_shuffled_depends_on_key_and_place_only():
    order = Shuffled(1000, 5)
    places = 999_999 * 32 + np.arange(32)
    whole = order.index(places)
    part = order.index(places[[31, 4]])
    assert np.array_equal(whole[1][[31, 4]], part[1]) and np.array_equal(whole[0][[31, 4]], part[0])
    assert not np.array_equal(whole[1], Shuffled(1000, 6).index(places)[1])


@pytest.mark.parametrize("examples", [10, 1])
def test_contiguous_ends_with_padding(examples):
    epochs, numbers = Contiguous(examples).index(np.arange(examples + 6))
    assert numbers.tolist() == [*range(examples), *[-1] * 6]
    assert not epochs.any()


@pytest.mark.parametrize(("examples", "batch_size"), [(10, 4), (12, 4), (3, 8), (1, 1), (101, 7)])
def test_streams_continue_where_the_previous_batch_ended(examples, batch_size):
    steps = -(-examples // batch_size)
    epochs, numbers = (
        part.reshape(-1, batch_size) for part in Streams(examples, batch_size).index(np.arange(2 * steps * batch_size))
    )
    assert np.array_equal(epochs, np.repeat([[0], [1]], steps, axis=0).repeat(batch_size, axis=1))
    assert np.array_equal(numbers[:steps], numbers[steps:])
    first_epoch = numbers[:steps]
    assert sorted(first_epoch[first_epoch >= 0].tolist()) == list(range(examples))
    for stream in first_epoch.T:
        examples_of_stream = stream[stream >= 0]
        assert (
            np.array_equal(stream[: len(examples_of_stream)], examples_of_stream) and len(examples_of_stream) >= steps - 1
        )  # padding only at the end, at most one
        assert (np.diff(examples_of_stream) == 1).all()
