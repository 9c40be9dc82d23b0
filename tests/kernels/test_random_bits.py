"""Random bits by a hash of each value's place: their statistics, and that they are equal on every mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import linen as nn
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bertfam.kernels.dropout import dropout
from bertfam.kernels.random_bits import hash_bits, hashed
from bertfam.layers.execution import Execution

SHAPE = (64, 128, 32)
COUNT = 64 * 128 * 32
KEY = jax.random.key(5)


def bits(key, shape=SHAPE):
    return np.asarray(jax.random.bits(hashed(key), shape, jnp.uint32)).ravel()


def unpacked(words):
    return np.unpackbits(words.view(np.uint8)).reshape(len(words), 32).astype(np.float64) - 0.5


def test_each_bit_is_set_half_of_the_time_and_independently():
    values = unpacked(bits(KEY))
    bound = 6 * 0.5 / COUNT**0.5  # six standard deviations
    assert np.abs(values.mean(0)).max() < bound
    correlations = values.T @ values / COUNT - 0.25 * np.eye(32)
    assert np.abs(correlations).max() < bound / 2


@pytest.mark.parametrize("distance", [1, 2, 32, 128 * 32])
def test_places_do_not_correlate(distance):
    kept = bits(KEY) / 2**32 - 0.5
    assert abs(np.mean(kept[distance:] * kept[:-distance])) < 6 / 12 / (COUNT - distance) ** 0.5


def test_keys_do_not_correlate():
    keys = [jax.random.fold_in(KEY, step) for step in range(3)]
    words = [jax.random.wrap_key_data(jnp.array(pair, jnp.uint32)) for pair in ((1, 2), (1, 3), (0, 2), (2, 1))]
    kept = [bits(key) / 2**32 - 0.5 for key in [*keys, *words]]
    for index, left in enumerate(kept):
        for right in kept[:index]:
            assert abs(np.mean(left * right)) < 6 / 12 / COUNT**0.5


def test_dropout_drops_the_given_share():
    dropped = np.asarray(dropout(hashed(KEY), jnp.ones(SHAPE), 0.1)) == 0
    assert abs(dropped.mean() - 0.1) < 6 * (0.09 / COUNT) ** 0.5
    narrow = np.asarray(jax.random.bits(hashed(KEY), SHAPE, jnp.uint8)).ravel()
    assert np.array_equal(narrow, bits(KEY) >> 24)


def test_a_shape_of_more_places_than_words_is_traced():
    assert jax.eval_shape(lambda words: hash_bits(words, 32, (2**17, 2**16)), jnp.zeros(2, jnp.uint32)).shape == (2**17, 2**16)


def test_bits_are_equal_on_every_mesh():
    expected = bits(KEY).reshape(SHAPE)
    for axes in (("x",), (None, "x"), (None, None, "x")):
        sharding = NamedSharding(Mesh(np.array(jax.devices()), "x"), PartitionSpec(*axes))
        sharded = jax.jit(lambda key: jax.random.bits(hashed(key), SHAPE, jnp.uint32), out_shardings=sharding)(KEY)
        assert np.array_equal(sharded, expected)


def test_masks_are_equal_scanned_and_unrolled():
    config, tokens = tiny.objective(dropout=0.5).model, np.ones((2, 4), np.int32)
    inputs = {"tokens": tokens, "segment_ids": tokens, "token_type_ids": tokens}
    shapes = jax.eval_shape(lambda: config.encoder().init(KEY, **inputs, train=False))
    generator = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: np.float32(generator.standard_normal(leaf.shape)), nn.meta.unbox(shapes))

    @jax.jit
    def hidden(params):
        executions = [Execution(layers=layers, dropout_bits="hash") for layers in ("scan", "unroll")]
        return [
            config.encoder(execution).apply(params, **inputs, train=True, rngs=execution.dropout_rngs(KEY))[0]
            for execution in (*executions, Execution(dropout_bits="threefry"))
        ]

    scanned, unrolled, other = jax.device_get(hidden(params))
    np.testing.assert_allclose(scanned, unrolled, rtol=1e-5, atol=1e-5)
    assert not np.allclose(scanned, other, atol=0.1)
