"""Relative-position buckets against transformers' function, and bias terms against their definition."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertfam.layers.positions.relative_bias import RelativeBias, assign_buckets

DISTANCES = np.arange(-1000, 1001)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (8, 20), (64, 1000)])
def test_buckets_match_transformers(bidirectional, buckets, max_distance):
    torch = pytest.importorskip("torch")
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    expected = t5.T5Attention._relative_position_bucket(torch.tensor(DISTANCES), bidirectional, buckets, max_distance)
    actual = assign_buckets(DISTANCES, bidirectional=bidirectional, buckets=buckets, max_distance=max_distance)
    np.testing.assert_array_equal(actual, expected.numpy())
    # Distance 0 is not after the query, so that its bucket on that side stays empty.
    empty = {buckets // 2} if bidirectional else set()
    assert actual.dtype == np.int32 and set(actual.tolist()) == set(range(buckets)) - empty


def test_buckets_of_the_paper():
    """Every distance up to 7 has its own, those from 128 on share one, and keys after the query have the upper half."""
    actual = assign_buckets(DISTANCES, bidirectional=True)
    at = dict(zip(DISTANCES.tolist(), actual.tolist(), strict=True))
    assert [at[-distance] for distance in range(8)] == list(range(8))
    assert all(at[distance] == at[-distance] + 16 for distance in range(1, 1001))
    assert {at[-distance] for distance in range(128, 1001)} == {15} and at[-90] == 14
    causal = dict(zip(DISTANCES.tolist(), assign_buckets(DISTANCES, bidirectional=False).tolist(), strict=True))
    assert [causal[-distance] for distance in range(16)] == list(range(16))
    assert {causal[distance] for distance in range(1001)} == {0} and causal[-1000] == 31


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("queries", "keys", "offset"), [(150, 150, None), (1, 1, None), (1, 140, 137), (3, 9, 4), (7, 2, None)])
def test_bias_terms_match_their_definition(bidirectional, queries, keys, offset):
    module = RelativeBias(4, bidirectional)
    table = np.random.default_rng(0).standard_normal((32, 4)).astype(np.float32)
    run = jax.jit(lambda table, offset: module.apply({"params": {"table": table}}, queries, keys, offset))
    actual = run(table, None if offset is None else jnp.int32(offset))
    distances = np.arange(keys)[None, :] - np.arange(queries)[:, None] - (offset or 0)
    expected = table[assign_buckets(distances, bidirectional=bidirectional)].transpose(2, 0, 1)[None]
    np.testing.assert_array_equal(actual, expected)


def test_gradient_of_the_table():
    """The gradient of a bucket is the sum over its pairs of tokens."""
    module = RelativeBias(2, True)
    weights = np.random.default_rng(0).standard_normal((1, 2, 30, 20)).astype(np.float32)
    gradient = jax.jit(jax.grad(lambda table: jnp.sum(weights * module.apply({"params": {"table": table}}, 30, 20))))
    bucket = assign_buckets(np.arange(20)[None, :] - np.arange(30)[:, None], bidirectional=True)
    expected = np.stack([weights[0][:, bucket == number].sum(-1) for number in range(32)])
    np.testing.assert_allclose(gradient(np.zeros((32, 2), np.float32)), expected, atol=1e-5)


def test_axes_of_the_table():
    boxed = jax.eval_shape(lambda key: RelativeBias(2, True).init(key, 3, 3), jax.random.key(0))["params"]["table"]
    assert boxed.names == ("relative_bucket", "heads") and nn.meta.unbox(boxed).shape == (32, 2)
