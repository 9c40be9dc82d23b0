"""Permutations within rows: shuffled windows and groups, permuted segments and rotations."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from chi_square import chi_square_limit

from bertfam.corruption import streams
from bertfam.corruption.keys import bits, fold
from bertfam.corruption.permutations import group_shuffle, rotation, segment_shuffle, select_windows

N, LENGTH = 300, 40
KEYS = fold(1, np.arange(N))


@pytest.fixture(scope="module")
def allowed():
    allowed = np.random.default_rng(0).random((N, LENGTH)) < 0.8
    allowed[0] = False
    return allowed


@pytest.fixture(scope="module")
def groups():
    return np.random.default_rng(1).integers(-1, 6, (N, LENGTH))


def is_permutation(source):
    return np.array_equal(np.sort(source, axis=1), np.broadcast_to(np.arange(source.shape[1]), source.shape))


def test_windows_equal_a_naive_implementation(allowed):
    num_windows = np.random.default_rng(2).integers(0, 6, N)
    windows = select_windows(allowed, 3, num_windows, KEYS)
    starts = LENGTH - 2
    for row in range(N):
        words = bits(KEYS[row : row + 1], streams.WINDOWS, starts)[0].tolist()
        order = sorted(range(starts), key=lambda start: (words[start] >> (starts - 1).bit_length(), start))
        free, expected, count = allowed[row].copy(), np.full(LENGTH, -1), 0
        for start in order:
            if count < num_windows[row] and free[start : start + 3].all():
                expected[start : start + 3], free[start : start + 3] = count, False
                count += 1
        assert windows[row].tolist() == expected.tolist()


def test_windows_of_short_rows():
    assert select_windows(np.ones((2, 2), bool), 3, np.array([1, 1]), KEYS[:2]).tolist() == [[-1, -1]] * 2
    assert select_windows(np.ones((1, 3), bool), 3, np.array([5]), KEYS[:1]).tolist() == [[0, 0, 0]]


def test_group_shuffle_keeps_tokens_in_their_group(groups):
    source = group_shuffle(groups, KEYS)
    assert is_permutation(source)
    assert np.array_equal(np.take_along_axis(groups, source, axis=1), groups)
    ungrouped = groups < 0
    assert np.array_equal(source[ungrouped], np.broadcast_to(np.arange(LENGTH), groups.shape)[ungrouped])
    inverse = np.argsort(source, axis=1)
    tokens = np.random.default_rng(3).integers(0, 1000, groups.shape)
    restored = np.take_along_axis(np.take_along_axis(tokens, source, axis=1), inverse, axis=1)
    assert np.array_equal(restored, tokens)


def test_all_permutations_of_a_trigram_are_equally_likely():
    groups = np.array([[-1, 0, 0, 0, -1, 1, 1, 1]] * 6000)
    source = group_shuffle(groups, fold(2, np.arange(6000)))
    first, second = Counter(map(tuple, source[:, 1:4].tolist())), Counter(map(tuple, source[:, 5:].tolist()))
    assert set(first) == set(itertools.permutations((1, 2, 3))) and set(second) == set(itertools.permutations((5, 6, 7)))
    for counts in (first, second):
        assert sum((count - 1000) ** 2 / 1000 for count in counts.values()) < chi_square_limit(5)
    together = Counter(map(tuple, source.tolist()))
    assert len(together) == 36


def packed_segments(seed=0):
    """Return sentence starts and example numbers of packed rows: [CLS] sentences [SEP], up to three examples, then padding."""
    generator = np.random.default_rng(seed)
    begins, groups = np.zeros((N, LENGTH), bool), np.full((N, LENGTH), -1)
    for row in range(N):
        place = 0
        for example in range(generator.integers(0, 4)):
            sizes = [int(size) for size in generator.integers(1, 5, generator.integers(1, 5))]
            if place + sum(sizes) + 2 > LENGTH:
                break
            place += 1
            for size in sizes:
                begins[row, place], groups[row, place : place + size] = True, example
                place += size
            place += 1
    return begins, groups


def split_before(tokens, begins):
    """Split one row's tokens before each True."""
    return [tuple(part.tolist()) for part in np.split(tokens, np.flatnonzero(begins)) if len(part)]


def test_sentences_are_permuted_whole_within_their_example():
    begins, groups = packed_segments()
    source = segment_shuffle(begins, groups, KEYS)
    assert is_permutation(source)
    ungrouped = groups < 0
    assert np.array_equal(source[ungrouped], np.broadcast_to(np.arange(LENGTH), groups.shape)[ungrouped])
    moved = 0
    for row in range(N):
        for example in range(groups[row].max() + 1):
            inside = groups[row] == example
            before = split_before(np.arange(LENGTH)[inside], begins[row][inside])
            after, part_by_first_token = source[row][inside], {part[0]: part for part in before}
            order, place = [], 0
            while place < len(after):
                part = part_by_first_token[after[place]]
                assert tuple(after[place : place + len(part)].tolist()) == part
                order.append(part)
                place += len(part)
            assert sorted(order) == sorted(before)
            moved += order != before
    assert moved > 100


def test_all_orders_of_sentences_are_equally_likely():
    begins = np.array([[0, 1, 0, 1, 1, 0, 0, 0]] * 6000, bool)
    groups = np.array([[-1, 0, 0, 0, 0, 0, 0, -1]] * 6000)
    counts = Counter(map(tuple, segment_shuffle(begins, groups, fold(3, np.arange(6000))).tolist()))
    expected = {(0, *sum(order, ()), 7) for order in itertools.permutations(((1, 2), (3,), (4, 5, 6)))}
    assert set(counts) == expected
    assert sum((count - 1000) ** 2 / 1000 for count in counts.values()) < chi_square_limit(5)


def test_row_of_one_sentence_is_unchanged():
    groups = np.array([[-1, 0, 0, 0, -1]])
    assert segment_shuffle(np.zeros((1, 5), bool), groups, KEYS[:1]).tolist() == [[0, 1, 2, 3, 4]]


def test_rotation_starts_at_any_token():
    inside = np.array([[False, True, True, True, True, False, False]] * 4000)
    source = rotation(inside, fold(4, np.arange(4000)))
    assert np.all(source[:, [0, 5, 6]] == [0, 5, 6])
    counts = Counter(map(tuple, source[:, 1:5].tolist()))
    assert set(counts) == {(1, 2, 3, 4), (2, 3, 4, 1), (3, 4, 1, 2), (4, 1, 2, 3)}
    assert sum((count - 1000) ** 2 / 1000 for count in counts.values()) < chi_square_limit(3)
    half_rotated = rotation(inside, fold(4, np.arange(4000)), rate=0.5)
    moved = (half_rotated[:, 1] != 1).mean()
    assert abs(moved - 3 / 8) < 4 * math.sqrt(15 / 64 / 4000)
    assert rotation(np.zeros((2, 3), bool), KEYS[:2]).tolist() == [[0, 1, 2]] * 2


def test_permuted_rows_do_not_depend_on_other_rows(allowed, groups):
    few = np.array([299, 4, 31])
    begins, examples = packed_segments()
    for draw in (
        lambda rows: select_windows(allowed[rows], 3, np.full(len(rows), 4), KEYS[rows]),
        lambda rows: group_shuffle(groups[rows], KEYS[rows]),
        lambda rows: segment_shuffle(begins[rows], examples[rows], KEYS[rows]),
        lambda rows: rotation(allowed[rows], KEYS[rows]),
    ):
        assert np.array_equal(draw(few), draw(np.arange(N))[few])
