"""Attention patterns: masks, pairs and descriptions."""

import jax
import numpy as np
import pytest

from bertfam.kernels.attention.patterns import CAUSAL, FULL, BlockSparse, ExtraTokens, Window

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


def test_block_sparse_mask_and_pairs_are_those_counted_one_by_one():
    """The last block of the row is shorter than the others; a block that is listed again counts again."""
    length, block, blocks = 45, 4, 12
    listed = np.random.default_rng(0).integers(0, blocks, (2, blocks - 2, 2))
    pattern = BlockSparse(block, random=2).within(length)
    places = np.arange(length)

    @jax.jit
    def compute(blocks):
        options = (places[:, None], places[None], {"random_blocks": blocks})
        return pattern.repeats(*options), pattern.mask(*options)

    expected = np.zeros((2, length, length), int)
    for head, query, key in np.ndindex(*expected.shape):
        row, column = query // block, key // block
        expected[head, query, key] = abs(row - column) <= 1 or column in (0, blocks - 1) or row in (0, blocks - 1)
        if 0 < row < blocks - 1:
            expected[head, query, key] += list(listed[head, row - 1]).count(column)
    repeats, mask = compute(listed)
    np.testing.assert_array_equal(repeats, expected)
    np.testing.assert_array_equal(mask, expected > 0)
    # Blocks that are not attended to anyway, and differ: the published lists.
    others = np.array([[b for b in range(1, blocks - 1) if abs(b - row) > 1][:2] for row in range(1, blocks - 1)])
    _, mask = compute(others[None])
    assert pattern.pairs(length) == np.sum(mask)


def test_short_rows_have_no_sparse_pattern():
    pattern = BlockSparse(block=64, random=3)
    assert pattern.within(704) == FULL and pattern.within(705) == BlockSparse(64, 3, blocks=12)
    assert pattern.pairs(704) == 704**2 and pattern.pairs(705) < 705**2


@pytest.mark.parametrize("length", [2, 3, 14, 15, 16, 21])
def test_extra_tokens_and_blocks_are_those_counted_one_by_one(length):
    pattern, places = ExtraTokens(count=3, block=4), np.arange(length)
    blocks = [None if place < 3 else (place - 3) // 4 for place in places]
    expected = [[q is None or k is None or abs(q - k) <= 1 for k in blocks] for q in blocks]
    np.testing.assert_array_equal(pattern.mask(places[:, None], places[None]), expected)
    assert pattern.pairs(length) == np.sum(expected)
    assert (pattern.within(length) == FULL) == np.all(expected)
