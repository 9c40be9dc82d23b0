"""Forms that apply in bfloat16 alone, or whose gradients are not JAX's own: each against the plain formula."""

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
    return jnp.asarray(values[np.abs(values.astype(np.float32)) <= limit])


def test_gelu_in_bfloat16_is_the_exact_value_rounded():
    values = every_bfloat16(8)
    wide = np.float64(values)
    outputs, pull_back = jax.vjp(ACTIVATIONS["gelu"], values)
    (slopes,) = pull_back(jnp.ones_like(values))
    density = np.exp(-np.square(wide) / 2) / np.sqrt(2 * np.pi)
    for actual, exact in ((outputs, wide * ndtr(wide)), (slopes, ndtr(wide) + wide * density)):
        # half a unit in the last place of bfloat16 is up to 2^-8 of a value; the two terms of a slope may cancel
        np.testing.assert_allclose(np.float64(actual), exact, rtol=2**-8 * 1.001, atol=1e-7)


def test_gelu_in_float32_is_that_of_jax():
    values = jax.random.normal(jax.random.key(0), (1000,))
    assert jnp.array_equal(ACTIVATIONS["gelu"](values), jax.nn.gelu(values, approximate=False))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_gradients_of_token_logits(dtype):
    keys = jax.random.split(jax.random.key(0), 3)
    hidden, table, gradient = (
        jax.random.normal(key, shape) for key, shape in zip(keys, [(2, 3, 8), (16, 8), (2, 3, 16)], strict=True)
    )
    _, pull_back = jax.vjp(lambda hidden, table: token_logits(hidden, table, None, 16), hidden.astype(dtype), table)
    of_hidden, of_table = pull_back(gradient)
    assert of_hidden.dtype == dtype and of_table.dtype == jnp.float32
    tolerance = 2e-2 if dtype == "bfloat16" else 1e-5
    np.testing.assert_allclose(np.float32(of_hidden), np.einsum("bpv,ve->bpe", gradient, table), atol=tolerance * 10)
    np.testing.assert_allclose(of_table, np.einsum("bpv,bpe->ve", gradient, hidden), atol=tolerance * 5)


def test_gradient_of_projections_is_their_gradients_side_by_side():
    joint = jax.random.normal(jax.random.key(0), (2, 3, 4, 5))
    parts, pull_back = jax.vjp(unstack, joint)
    assert all(jnp.array_equal(part, joint[:, :, index]) for index, part in enumerate(parts))
    assert jnp.array_equal(pull_back(parts)[0], joint)
