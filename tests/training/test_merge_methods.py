"""Methods of merging, by hand on small arrays."""

import numpy as np
import pytest

from bertfam.training.merge import methods


def array(*values):
    return np.array(values, np.float32)


def test_weighted_average():
    tensors = [array(1, 2, 0), array(3, -2, 0), array(5, 6, 6)]
    np.testing.assert_array_equal(methods.average(tensors, methods.weighted_shares((1, 1, 1))), array(3, 2, 2))
    np.testing.assert_array_equal(methods.average(tensors, methods.weighted_shares((2, 1, 1))), array(2.5, 2, 1.5))


def test_equal_tensors_keep_their_bits():
    values = np.random.default_rng(0).standard_normal(100, np.float32)
    for shares in (methods.weighted_shares((1, 1, 1)), methods.exponential_shares(0.9, 3)):
        merged = methods.average([values] * 3, shares)
        assert merged.dtype == np.float32 and np.array_equal(merged, values)


def test_exponential_average_is_the_recursion():
    assert methods.exponential_shares(0.8, 3) == pytest.approx((0.64, 0.16, 0.2))
    tensors = list(np.random.default_rng(0).standard_normal((5, 7)))
    expected = tensors[0]
    for tensor in tensors[1:]:
        expected = 0.8 * expected + 0.2 * tensor
    np.testing.assert_allclose(methods.average(tensors, methods.exponential_shares(0.8, 5)), expected, rtol=1e-10)
    singles = [tensor.astype(np.float32) for tensor in tensors]
    np.testing.assert_array_equal(methods.average(singles, methods.exponential_shares(0.0, 5)), singles[-1])


def test_a_share_of_the_magnitudes_is_kept():
    magnitudes = array(5, 1, 4, 2, 3)
    assert [methods.least_kept(magnitudes.copy(), density) for density in (0.01, 0.2, 0.4, 1.0)] == [5, 5, 4, 1]


def test_ties_trims_elects_and_averages():
    base = array(10, 10, 10, 10, 10)
    #                                trimmed | signs agree | elected + | cancel | one model
    changes = [array(0.1, 2, 3, 1, 0), array(-0.2, 4, -1, -1, 5)]
    merged = methods.ties(base, [base + change for change in changes], thresholds=(1.0, 1.0), scale=1.0)
    np.testing.assert_allclose(merged, base + array(0, 3, 3, 0, 5), rtol=1e-6)
    half = methods.ties(base, [base + change for change in changes], thresholds=(1.0, 1.0), scale=0.5)
    np.testing.assert_allclose(half, base + array(0, 1.5, 1.5, 0, 2.5), rtol=1e-6)
