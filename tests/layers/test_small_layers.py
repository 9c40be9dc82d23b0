"""Lookups, embeddings, norms, dropout, prediction heads and feed-forward layers on small inputs."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import errors
from flax import linen as nn

from bertfam.errors import UserError
from bertfam.kernels.dropout import dropout
from bertfam.layers.dense import project
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
    positions = np.array([[0, 16, 3, 3], [5, 1, 2, 0], [7, 7, 7, 7]])
    expected = np.take_along_axis(hidden, positions[..., None], axis=1)
    actual = jax.jit(gather_positions)(hidden, positions)
    assert actual.dtype == hidden.dtype and np.array_equal(actual, expected)


def test_lookup_is_exact_and_its_gradient_adds_up():
    table = normal((3, 5))
    indices = np.array([[0, 2, 2, 1]])

    def total(table):
        rows = lookup_few(table, indices, jnp.float32)
        return jnp.sum(rows), rows

    gradient, rows = jax.jit(jax.grad(total, has_aux=True))(table)
    assert np.array_equal(rows, table[indices])
    assert np.array_equal(gradient, np.broadcast_to([[1.0], [1.0], [2.0]], (3, 5)))


def test_sliced_and_looked_up_positions_agree():
    table = normal((9, 4))
    embed = jax.jit(lambda positions: embed_positions(table, positions, 6, jnp.float32))
    looked_up, sliced = embed(np.broadcast_to(np.arange(6), (2, 6))), embed(None)
    assert np.array_equal(looked_up, np.broadcast_to(sliced, (2, 6, 4)))
    with pytest.raises(UserError, match="10 tokens.*max_length 9"):
        embed_positions(table, None, 10, jnp.float32)


def test_token_outside_the_table_gives_nan():
    table = np.ones((128, 4), np.float32)
    assert np.all(np.isnan(jax.jit(lambda tokens: embed_words(table, tokens, jnp.float32))(np.array([[128]]))))


def test_padded_rows():
    assert [padded_rows(rows) for rows in (1, 128, 129, 30522)] == [128, 128, 256, 30592]


@jax.jit
def apply_norms(params, inputs):
    return [RMSNorm(1e-6, dtype).apply(params, inputs) for dtype in (jnp.float32, jnp.bfloat16)]


@pytest.mark.parametrize("size", [1e-3, 1.0, 7e4])
def test_rms_norm_keeps_statistics_in_float32(size):
    """No mean is subtracted; squares of 7e4 are beyond float16, and the sum of a thousand is beyond 8 bits of precision."""
    inputs = (size * (1 + 0.1 * normal((4, 1000)))).astype(jnp.bfloat16)
    scale = np.linspace(0.5, 2, 1000, dtype=np.float32)
    actual, narrow = apply_norms({"params": {"scale": scale}}, inputs)
    wide = np.asarray(inputs, np.float64)
    expected = wide / np.sqrt(np.mean(np.square(wide), -1, keepdims=True) + 1e-6) * scale
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
    assert narrow.dtype == jnp.bfloat16


def test_layer_norm_keeps_statistics_in_float32():
    inputs = (100 + normal((4, 64))).astype(jnp.bfloat16)
    actual, _ = jax.jit(LayerNorm(1e-12, jnp.bfloat16).init_with_output)(jax.random.key(0), inputs)
    wide = np.asarray(inputs, np.float64)
    expected = (wide - wide.mean(-1, keepdims=True)) / wide.std(-1, keepdims=True)
    assert actual.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.float64(actual), expected, rtol=2**-8, atol=1e-4)


def test_parameter_of_another_shape_is_refused():
    with pytest.raises(errors.ScopeParamShapeError, match=r'"scale" in "/", .*\(1,\)'):
        RMSNorm(dtype=jnp.float32).apply({"params": {"scale": np.ones(1, np.float32)}}, np.ones((2, 8), np.float32))


def test_dropout_rate_and_scale():
    drop = functools.partial(dropout, rate=0.1)
    actual = jax.jit(drop)(jax.random.key(0), np.ones((200, 200), np.float32))
    assert set(np.unique(actual)) == {np.float32(0), np.float32(1 / 0.9)}
    assert abs(float(np.mean(actual)) - 1) < 0.01
    assert jax.eval_shape(drop, jax.random.key(0), np.ones(8, jnp.bfloat16)).dtype == jnp.bfloat16


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
    outputs, variables = jax.jit(module.init_with_output)(jax.random.key(1), inputs)
    params = nn.unbox(variables)["params"]
    kernels = {path[0].key: np.float64(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
    assert {name: kernel.shape for name, kernel in kernels.items()} == {
        "intermediate": (4, 5),
        "linear": (4, 5),
        "output": (5, 4),
    }
    gate = np.float64(inputs) @ kernels["intermediate"]
    erf = np.vectorize(math.erf)
    expected = (gate * (1 + erf(gate / np.sqrt(2))) / 2 * (np.float64(inputs) @ kernels["linear"])) @ kernels["output"]
    np.testing.assert_allclose(outputs, expected, atol=1e-6)


def test_gated_feed_forward_with_biases_and_dropout():
    module = FeedForward(400, "relu", gated=True, dropout_rate=0.25)
    inputs = np.ones((1, 2, 4), np.float32)
    shapes = nn.unbox(jax.eval_shape(module.init, jax.random.key(1), inputs))["params"]
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    params["intermediate"]["bias"][:], params["linear"]["bias"][:] = 2.0, 3.0
    params["output"]["kernel"][:], params["output"]["bias"][:] = 1 / 400, 0.5

    @jax.jit
    def run(params):
        apply = functools.partial(module.apply, {"params": params}, inputs)
        return apply(), apply(train=True, rngs={"dropout": jax.random.key(0)})

    kept, dropped = run(params)
    assert np.allclose(kept, 6.5)
    # the sum of 400 places, each 6 / 400 / 0.75 or 0, has a deviation of 0.17
    assert not np.allclose(dropped, 6.5) and np.all(np.abs(dropped - 6.5) < 1.0)


@pytest.mark.parametrize("contracted", [1, 2])
def test_gradients_of_a_product_on_cpus_are_those_of_jax(contracted):
    inputs, kernel = normal((2, 5, 3, 4)), normal(((3, 4)[2 - contracted :]) + (6, 2), 1)
    plain = functools.partial(jnp.tensordot, axes=contracted)
    outputs, back = jax.vjp(plain, inputs, kernel)
    gradient = normal(outputs.shape, 2)
    actual, own_back = jax.vjp(lambda inputs, kernel: project(inputs, kernel, None, contracted=contracted), inputs, kernel)
    assert np.array_equal(actual, outputs)
    for own, expected in zip(own_back(gradient), back(gradient), strict=True):
        np.testing.assert_allclose(own, expected, rtol=1e-5, atol=1e-5)


def test_layers_without_biases_have_no_bias_parameters():
    inputs = normal((3, 8))
    norm = LayerNorm(1e-5, use_bias=False)
    outputs, variables = jax.jit(norm.init_with_output)(jax.random.key(0), inputs)
    assert variables["params"].keys() == {"scale"}
    wide = np.float64(inputs)
    expected = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(outputs, expected, atol=1e-6)
    head = MaskedLmHead(vocab_size=100, use_bias=False, decoder_bias=False)
    shapes = nn.unbox(jax.eval_shape(head.init, jax.random.key(2), normal((1, 2, 16)), normal((128, 16))))["params"]
    assert jax.tree.map(np.shape, shapes) == {"dense": {"kernel": (16, 16)}, "norm": {"scale": (16,)}}
