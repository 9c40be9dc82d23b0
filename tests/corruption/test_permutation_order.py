"""XLNet's factorisation orders, and the attention masks that follow from their ranks."""

from collections import Counter

import numpy as np
import pytest
from chi_square import chi_square_limit

from bertfam.corruption.keys import fold
from bertfam.corruption.permutation_order import order_ranks


@pytest.mark.parametrize("length", [7, 8, 33])
@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_ranks_give_the_masks_of_the_published_code(length, blocks):
    """In the query stream a token sees lower ranks, in the content stream those of its own rank too."""
    generator = np.random.default_rng(length)
    kinds = generator.integers(0, 3, (50, length))
    kinds[:, -2:] = 2  # rows end with [SEP] [CLS]
    kinds[:, :2] = 0
    targets, functional = kinds == 1, kinds == 2
    ranks = order_ranks(targets, functional, fold(1, np.arange(50)), blocks)
    assert ranks.dtype == np.int32 and ranks.min() == 0
    block = np.arange(length) // -(-length // blocks)
    for row in range(50):
        in_order = ranks[row][kinds[row] > 0]
        assert len(set(in_order)) == len(in_order)
        for i in range(length):
            for j in range(length):
                if block[i] != block[j]:
                    content = query = block[i] > block[j]
                elif kinds[row, j] == 0:
                    content = query = True  # text without predictions is visible to all positions
                elif kinds[row, i] == 0:
                    content = query = False  # and sees no predicted text
                else:
                    query = ranks[row, i] > ranks[row, j]
                    content = query or i == j
                assert (ranks[row, j] <= ranks[row, i]) == content, (row, i, j)
                if kinds[row, i] == 1:  # the query stream has tokens to predict only
                    assert (ranks[row, j] < ranks[row, i]) == query, (row, i, j)


def test_all_orders_are_equally_likely():
    targets = np.array([[False, True, True, True]] * 6000)
    ranks = order_ranks(targets, np.zeros_like(targets), fold(2, np.arange(6000)))
    orders = Counter(map(tuple, np.argsort(ranks[:, 1:], axis=1).tolist()))
    assert len(orders) == 6 and sum((count - 1000) ** 2 / 1000 for count in orders.values()) < chi_square_limit(5)


def test_orders_do_not_depend_on_other_rows():
    targets = np.random.default_rng(0).random((90, 20)) < 0.3
    whole = order_ranks(targets, ~targets, fold(3, np.arange(90)), 2)
    few = np.array([89, 5])
    assert np.array_equal(order_ranks(targets[few], ~targets[few], fold(3, few), 2), whole[few])
