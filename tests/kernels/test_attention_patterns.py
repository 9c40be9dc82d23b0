"""Attention patterns: masks, pairs and descriptions."""

import numpy as np
import pytest

from bertfam.kernels.attention.patterns import CAUSAL, FULL, Window

PATTERNS = {
    FULL: lambda query, key: True,
    CAUSAL: lambda query, key: key <= query,
    Window(3, 3): lambda query, key: abs(query - key) <= 3,
    Window(0, 2): lambda query, key: query <= key <= query + 2,
    Window(None, 1): lambda query, key: key <= query + 1,
    Window(7, 40): lambda query, key: query - 7 <= key,
    Window(6, 6, dilation=3): lambda query, key: abs(query - key) in (0, 3, 6),
    Window(5, 0, dilation=2): lambda query, key: query - key in (0, 2, 4),
}


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.describe())
@pytest.mark.parametrize("length", [1, 5, 20])
def test_mask_and_pairs_are_those_counted_one_by_one(pattern, length):
    places = np.arange(length)
    mask = np.broadcast_to(pattern.mask(places[:, None], places[None]), (length, length))
    expected = [[PATTERNS[pattern](query, key) for key in range(length)] for query in range(length)]
    np.testing.assert_array_equal(mask, expected)
    assert pattern.pairs(length) == np.sum(expected)
    simplest = pattern.within(length)
    np.testing.assert_array_equal(np.broadcast_to(simplest.mask(places[:, None], places[None]), (length, length)), expected)


def test_a_window_over_the_whole_row_is_no_window():
    assert Window(9, 12).within(10) == FULL and Window(9, 0).within(10) == CAUSAL and Window(8, 8).within(10) == Window(8, 8)


def test_descriptions():
    descriptions = {pattern.describe() for pattern in PATTERNS}
    assert len(descriptions) == len(PATTERNS)
    assert {"all tokens", "previous tokens", "3 tokens on each side", "one in 3 of 6 tokens on each side"} <= descriptions
