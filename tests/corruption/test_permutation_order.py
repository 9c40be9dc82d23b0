"""XLNet's factorisation orders and the attention masks that follow from them."""

from collections import Counter

import numpy as np
import pytest
from chi_square import chi_square_limit

from bertfam.corruption.keys import fold
from bertfam.corruption.permutation_order import hidden_from, order_ranks


@pytest.mark.parametrize("length", [7, 8, 33])
@pytest.mark.parametrize("block", [None, 4])
def test_mask_equals_the_rule_of_the_released_code(length, block):
    generator = np.random.default_rng(length)
    kinds = generator.integers(0, 3, (50, length))
    kinds[:, -2:] = 2  # rows end with [SEP] [CLS]
    kinds[:, :2] = 0
    targets, functional = kinds == 1, kinds == 2
    ranks = order_ranks(targets, functional, fold(1, np.arange(50)))
    hidden = hidden_from(ranks, targets, block)
    assert hidden.shape == (50, length, length) and hidden.dtype == bool
    for row in range(50):
        assert len(set(ranks[row][ranks[row] >= 0])) == (kinds[row] > 0).sum()
        assert np.array_equal(ranks[row] >= 0, kinds[row] > 0)
        for i in range(length):
            for j in range(length):
                if block and i // block != j // block:
                    expected = i // block < j // block
                elif kinds[row, j] == 0:
                    expected = False  # text without predictions is visible to all positions
                elif kinds[row, i] == 0:
                    expected = True  # and sees no predicted text
                elif i == j:
                    expected = bool(targets[row, i])
                else:
                    expected = bool(ranks[row, i] < ranks[row, j])
                assert hidden[row, i, j] == expected, (row, i, j)


def test_all_orders_are_equally_likely():
    targets = np.array([[False, True, True, True]] * 6000)
    ranks = order_ranks(targets, np.zeros_like(targets), fold(2, np.arange(6000)))
    orders = Counter(map(tuple, np.argsort(ranks[:, 1:], axis=1).tolist()))
    assert len(orders) == 6 and sum((count - 1000) ** 2 / 1000 for count in orders.values()) < chi_square_limit(5)


def test_orders_do_not_depend_on_other_rows():
    targets = np.random.default_rng(0).random((90, 20)) < 0.3
    whole = order_ranks(targets, ~targets, fold(3, np.arange(90)))
    few = np.array([89, 5])
    assert np.array_equal(order_ranks(targets[few], ~targets[few], fold(3, few)), whole[few])
