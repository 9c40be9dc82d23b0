"""Forms that apply in bfloat16 alone, or whose gradients are not JAX's own: each against the plain formula."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import ndtr

from bertfam.layers.activations import ACTIVATIONS
from bertfam.layers.dense import unstack
from bertfam.layers.heads.pretraining import token_logits


def every_bfloat16(limit):
    """Return all bfloat16 numbers up to a limit."""
    values = np.arange(1 << 16, dtype=np.uint16).view(jnp.bfloat16)
    return values[np.abs(values.astype(np.float32)) <= limit]


def normal(*shapes):
    """Return normal values that NumPy draws, which compiles nothing."""
    generator = np.random.default_rng(0)
    return [generator.standard_normal(shape, np.float32) for shape in shapes]


@functools.partial(jax.jit, static_argnums=0)
def outputs_and_gradients(function, inputs, gradients):
    """Return the outputs of a function of several arrays, and the gradients of these."""
    outputs, pull_back = jax.vjp(function, *inputs)
    return outputs, pull_back(gradients)


def test_gelu_in_bfloat16_is_the_exact_value_rounded():
    values = every_bfloat16(8)
    wide = np.float64(values)
    outputs, (slopes,) = outputs_and_gradients(ACTIVATIONS["gelu"], [values], np.ones_like(values))
    density = np.exp(-np.square(wide) / 2) / np.sqrt(2 * np.pi)
    for actual, exact in ((outputs, wide * ndtr(wide)), (slopes, ndtr(wide) + wide * density)):
        # half a unit in the last place of bfloat16 is up to 2^-8 of a value; the two terms of a slope may cancel
        np.testing.assert_allclose(np.float64(actual), exact, rtol=2**-8 * 1.001, atol=1e-7)


def test_gelu_in_float32_is_that_of_jax():
    actual, expected = jax.jit(lambda values: (ACTIVATIONS["gelu"](values), jax.nn.gelu(values, approximate=False)))(
        *normal(1000)
    )
    assert np.array_equal(actual, expected)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_gradients_of_token_logits(dtype):
    hidden, table, gradient = normal((2, 3, 8), (16, 8), (2, 3, 16))
    inputs = [hidden.astype(jnp.dtype(dtype)), table]
    _, (of_hidden, of_table) = outputs_and_gradients(
        lambda hidden, table: token_logits(hidden, table, None, 16), inputs, gradient
    )
    assert of_hidden.dtype == dtype and of_table.dtype == jnp.float32
    tolerance = 2e-2 if dtype == "bfloat16" else 1e-5
    np.testing.assert_allclose(np.float32(of_hidden), np.einsum("bpv,ve->bpe", gradient, table), atol=tolerance * 10)
    np.testing.assert_allclose(of_table, np.einsum("bpv,bpe->ve", gradient, hidden), atol=tolerance * 5)


def test_gradient_of_projections_is_their_gradients_side_by_side():
    (joint,) = normal((2, 3, 4, 5))
    gradients = tuple(2 * joint[:, :, index] for index in range(4))
    parts, (gradient,) = outputs_and_gradients(unstack, [joint], gradients)
    assert all(np.array_equal(part, joint[:, :, index]) for index, part in enumerate(parts))
    assert np.array_equal(gradient, 2 * joint)
