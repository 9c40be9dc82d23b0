"""Lookups, embeddings, norms, dropout, prediction heads and feed-forward layers on small inputs."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import errors
from flax import linen as nn

from bertfam.errors import UserError
from bertfam.kernels.dropout import dropout
from bertfam.layers.embeddings import embed_positions, embed_words, padded_rows
from bertfam.layers.execution import Execution
from bertfam.layers.feed_forward import FeedForward
from bertfam.layers.heads.pretraining import MaskedLmHead
from bertfam.layers.lookup import gather_positions, lookup_few
from bertfam.layers.norm import LayerNorm, RMSNorm


def normal(shape, seed=0):
    """Return normal values that NumPy draws, which compiles nothing."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gather_is_exact(dtype):
    hidden = (1000 * normal((3, 17, 8))).astype(jnp.dtype(dtype))
    positions = jnp.array([[0, 16, 3, 3], [5, 1, 2, 0], [7, 7, 7, 7]])
    expected = jnp.take_along_axis(hidden, positions[..., None], axis=1)
    actual = gather_positions(hidden, positions)
    assert actual.dtype == hidden.dtype and jnp.array_equal(actual, expected)


def test_lookup_is_exact_and_its_gradient_adds_up():
    table = normal((3, 5))
    indices = jnp.array([[0, 2, 2, 1]])
    assert jnp.array_equal(lookup_few(table, indices, jnp.float32), table[indices])
    gradient = jax.grad(lambda table: jnp.sum(lookup_few(table, indices, jnp.float32)))(table)
    assert jnp.array_equal(gradient, jnp.broadcast_to(jnp.array([[1.0], [1.0], [2.0]]), (3, 5)))


def test_sliced_and_looked_up_positions_agree():
    table = normal((9, 4))
    positions = jnp.broadcast_to(jnp.arange(6), (2, 6))
    assert jnp.array_equal(
        embed_positions(table, positions, 6, jnp.float32),
        jnp.broadcast_to(embed_positions(table, None, 6, jnp.float32), (2, 6, 4)),
    )
    with pytest.raises(UserError, match="10 tokens.*max_length 9"):
        embed_positions(table, None, 10, jnp.float32)


def test_token_outside_the_table_gives_nan():
    table = jnp.ones((128, 4))
    assert jnp.all(jnp.isnan(embed_words(table, jnp.array([[128]]), jnp.float32)))


def test_padded_rows():
    assert [padded_rows(rows) for rows in (1, 128, 129, 30522)] == [128, 128, 256, 30592]


@pytest.mark.parametrize("size", [1e-3, 1.0, 7e4])
def test_rms_norm_keeps_statistics_in_float32(size):
    """No mean is subtracted; squares of 7e4 are beyond float16, and the sum of a thousand is beyond 8 bits of precision."""
    inputs = (size * (1 + 0.1 * normal((4, 1000)))).astype(jnp.bfloat16)
    scale = np.linspace(0.5, 2, 1000, dtype=np.float32)
    actual = RMSNorm(1e-6, jnp.float32).apply({"params": {"scale": scale}}, inputs)
    wide = np.asarray(inputs, np.float64)
    expected = wide / np.sqrt(np.mean(np.square(wide), -1, keepdims=True) + 1e-6) * scale
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
    assert RMSNorm(1e-6, jnp.bfloat16).apply({"params": {"scale": scale}}, inputs).dtype == jnp.bfloat16


def test_layer_norm_keeps_statistics_in_float32():
    inputs = (100 + normal((4, 64))).astype(jnp.bfloat16)
    module = LayerNorm(1e-12, jnp.bfloat16)
    actual = module.apply(module.init(jax.random.key(0), inputs), inputs)
    wide = np.asarray(inputs, np.float64)
    expected = (wide - wide.mean(-1, keepdims=True)) / wide.std(-1, keepdims=True)
    assert actual.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.float64(actual), expected, rtol=2**-8, atol=1e-4)


def test_parameter_of_another_shape_is_refused():
    with pytest.raises(errors.ScopeParamShapeError, match=r'"scale" in "/", .*\(1,\)'):
        RMSNorm(dtype=jnp.float32).apply({"params": {"scale": np.ones(1, np.float32)}}, np.ones((2, 8), np.float32))


def test_dropout_rate_and_scale():
    actual = dropout(jax.random.key(0), jnp.ones((200, 200)), 0.1)
    assert set(np.unique(actual)) == {np.float32(0), np.float32(1 / 0.9)}
    assert abs(float(jnp.mean(actual)) - 1) < 0.01
    assert dropout(jax.random.key(0), jnp.ones((8,), jnp.bfloat16), 0.1).dtype == jnp.bfloat16


@pytest.mark.parametrize("tied", [True, False])
def test_padded_vocabulary_takes_no_probability_and_no_gradient(tied):
    head = MaskedLmHead(vocab_size=100, tied=tied, execution=Execution(dtype="bfloat16"))
    hidden, table = normal((2, 3, 16)), normal((128, 16), seed=1)
    shapes = nn.unbox(jax.eval_shape(lambda: head.init(jax.random.key(2), hidden, table)))
    params = jax.tree.map(lambda leaf: normal(leaf.shape, seed=3), shapes)

    @jax.jit
    def run(table):
        logits = head.apply(params, hidden, table)
        return jnp.sum(jax.nn.logsumexp(logits, -1)), (logits, jax.nn.softmax(logits))

    gradient, (logits, probabilities) = jax.device_get(jax.grad(run, has_aux=True)(table))
    assert logits.shape == (2, 3, 128) and logits.dtype == jnp.float32
    assert np.all(probabilities[..., 100:] == 0)
    assert np.all(gradient[100:] == 0) and np.any(gradient[:100] != 0) == tied


@pytest.mark.parametrize("options", [{"dtype": "float16"}, {"layers": "loop"}, {"remat": "some"}, {"attention": "flash"}])
def test_execution_refuses_unknown_values(options):
    ((name, value),) = options.items()
    with pytest.raises(UserError, match=f"Execution.{name} = '{value}'"):
        Execution(**options)


def test_gated_feed_forward_without_biases():
    module = FeedForward(5, gated=True, use_bias=False)
    inputs = normal((2, 3, 4))
    params = nn.unbox(module.init(jax.random.key(1), inputs))["params"]
    kernels = {path[0].key: np.float64(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
    assert {name: kernel.shape for name, kernel in kernels.items()} == {
        "intermediate": (4, 5),
        "linear": (4, 5),
        "output": (5, 4),
    }
    gate = np.float64(inputs) @ kernels["intermediate"]
    erf = np.vectorize(math.erf)
    expected = (gate * (1 + erf(gate / np.sqrt(2))) / 2 * (np.float64(inputs) @ kernels["linear"])) @ kernels["output"]
    np.testing.assert_allclose(module.apply({"params": params}, inputs), expected, atol=1e-6)


def test_gated_feed_forward_with_biases_and_dropout():
    module = FeedForward(400, "relu", gated=True, dropout_rate=0.25)
    inputs = jnp.ones((1, 2, 4))
    params = nn.unbox(module.init(jax.random.key(1), inputs))["params"]
    params = jax.tree.map(lambda leaf: jnp.zeros_like(leaf), params)
    params["intermediate"]["bias"], params["linear"]["bias"] = jnp.full(400, 2.0), jnp.full(400, 3.0)
    params["output"] = {"kernel": jnp.full((400, 4), 1 / 400), "bias": jnp.full(4, 0.5)}
    assert np.allclose(module.apply({"params": params}, inputs), 6.5)
    dropped = module.apply({"params": params}, inputs, train=True, rngs={"dropout": jax.random.key(0)})
    # the sum of 400 places, each 6 / 400 / 0.75 or 0, has a deviation of 0.17
    assert not np.allclose(dropped, 6.5) and np.all(np.abs(dropped - 6.5) < 1.0)


def test_layers_without_biases_have_no_bias_parameters():
    inputs = normal((3, 8))
    norm = LayerNorm(1e-5, use_bias=False)
    params = nn.unbox(norm.init(jax.random.key(0), inputs))["params"]
    assert params.keys() == {"scale"}
    wide = np.float64(inputs)
    expected = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(norm.apply({"params": params}, inputs), expected, atol=1e-6)
    head = MaskedLmHead(vocab_size=100, use_bias=False, decoder_bias=False)
    params = nn.unbox(head.init(jax.random.key(2), jnp.ones((1, 2, 16)), jnp.ones((128, 16))))["params"]
    assert jax.tree.map(np.shape, params) == {"dense": {"kernel": (16, 16)}, "norm": {"scale": (16,)}}
