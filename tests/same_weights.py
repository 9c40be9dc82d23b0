"""Comparison of loaded models."""

import jax
import numpy as np


def assert_same_weights(left, right):
    """Check that two loaded models have the same config and equal parameters, rows of no token aside."""
    assert left.config == right.config
    rows, padded = left.config.vocab_size, left.config.padded_vocab_size

    def check(actual, expected):
        count = rows if len(actual) == padded else None
        np.testing.assert_array_equal(actual[:count], expected[:count])

    jax.tree.map(check, left.params, right.params)
