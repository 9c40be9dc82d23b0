from itertools import permutations

import numpy as np
import pytest
from chi_square import chi_square_limit

from bertfam.corruption.keys import fold
from bertfam.data.order import Contiguous, Shuffled, permute


@pytest.mark.parametrize("size", [*range(1, 40), 63, 64, 65, 255, 256, 257, 1000, 4097])
def test_permute_is_a_bijection(size):
    for key in (0, 12345):
        permuted = permute(np.arange(size), size, fold(key, np.zeros(size)))
        assert np.array_equal(np.sort(permuted), np.arange(size))


def test_permute_serves_large_sizes_and_single_values():
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


@pytest.mark.parametrize("size", [10, 17, 100])
def test_every_value_goes_everywhere_equally_often(size):
    keys = 3000
    for value in (0, size - 1):
        counts = np.bincount(permute(np.full(keys, value), size, fold(4, np.arange(keys))), minlength=size)
        assert ((counts - keys / size) ** 2 / (keys / size)).sum() < chi_square_limit(size - 1)


def test_neighbours_do_not_stay_together():
    permuted = permute(np.arange(5000), 5000, fold(6, np.zeros(5000)))
    assert np.sum(np.abs(np.diff(permuted)) == 1) < 12  # about 2 are expected
    assert abs(np.corrcoef(np.arange(5000), permuted)[0, 1]) < 4 / np.sqrt(5000)


def steps(order, count, batch_size, first=0):
    indices = [order.index(step, np.arange(batch_size)) for step in range(first, first + count)]
    return np.concatenate([epoch for epoch, _ in indices]), np.concatenate([example for _, example in indices])


@pytest.mark.parametrize(("examples", "batch_size"), [(10, 4), (7, 16), (64, 64), (1, 3)])
def test_shuffled_gives_every_example_once_an_epoch_in_new_orders(examples, batch_size):
    epochs, found = steps(Shuffled(examples, batch_size, 5), -(-5 * examples // batch_size), batch_size)
    orders = [found[epochs == epoch].tolist() for epoch in range(5)]
    assert np.array_equal(epochs, np.arange(len(epochs)) // examples)
    assert all(sorted(order) == list(range(examples)) for order in orders)
    if examples > 5:
        assert len({tuple(order) for order in orders}) == 5


def test_shuffled_is_a_function_of_key_step_and_row():
    order = Shuffled(1000, 32, 5)
    whole = order.index(999_999, np.arange(32))
    part = order.index(999_999, np.array([31, 4]))
    assert np.array_equal(whole[1][[31, 4]], part[1]) and np.array_equal(whole[0][[31, 4]], part[0])
    assert not np.array_equal(whole[1], Shuffled(1000, 32, 6).index(999_999, np.arange(32))[1])


def test_the_batch_size_does_not_change_the_stream():
    a, b = steps(Shuffled(50, 8, 5), 25, 8), steps(Shuffled(50, 20, 5), 10, 20)
    assert np.array_equal(a, b)


@pytest.mark.parametrize(("examples", "batch_size", "count"), [(10, 4, 3), (8, 4, 2), (3, 8, 1)])
def test_contiguous_ends_with_padding(examples, batch_size, count):
    order = Contiguous(examples, batch_size)
    assert order.steps == count
    epochs, found = steps(order, count + 1, batch_size)
    assert found.tolist() == [*range(examples), *[-1] * ((count + 1) * batch_size - examples)]
    assert not epochs.any()
