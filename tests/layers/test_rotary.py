"""Rotary positions against complex numbers; attention scores depend on distances only."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertfam.layers.positions.rotary import angles_at, rotate


def heads(seed, length=7, size=12):
    return np.random.default_rng(seed).standard_normal((2, length, 3, size), np.float32)


@functools.partial(jax.jit, static_argnums=2)
def turned(values, positions, theta):
    return rotate(values, angles_at(positions, values.shape[1], values.shape[-1], theta))


@pytest.mark.parametrize("theta", [10_000.0, 160_000.0])
def test_pairs_rotate_like_complex_numbers(theta):
    values = heads(0)
    positions = np.array([[0, 1, 2, 3, 0, 1, 2], [5, 80, 700, 8191, 0, 4000, 3]], np.int32)
    pairs = np.float64(values[..., :6]) + 1j * values[..., 6:]
    rotations = np.exp(1j * positions[:, :, None, None] * theta ** (-np.arange(6) / 6))
    expected = np.concatenate([(pairs * rotations).real, (pairs * rotations).imag], axis=-1)
    # an angle of 8,191 in float32 is exact to 5e-4
    actual = turned(values, positions, theta)
    np.testing.assert_allclose(actual[0], expected[0], atol=1e-5)
    np.testing.assert_allclose(actual[1], expected[1], atol=3e-3)


def test_default_positions_count_from_zero():
    positions = np.broadcast_to(np.arange(7, dtype=np.int32), (2, 7))
    assert np.array_equal(turned(heads(0), None, 1e4), turned(heads(0), positions, 1e4))
    assert turned(heads(0).astype(jnp.bfloat16), None, 1e4).dtype == jnp.bfloat16


def test_scores_depend_on_distances_only():
    places = np.array([[0, 1, 2, 3, 4, 9, 11]] * 2, np.int32)

    @jax.jit
    def scores(positions):
        query, key = (turned(heads(which), positions, 1e4) for which in (0, 1))
        return jnp.einsum("bqhd,bkhd->bhqk", query, key, precision="highest")

    np.testing.assert_allclose(scores(places), scores(places + 31), atol=1e-4)
    assert not np.allclose(scores(places), scores(2 * places), atol=0.1)
