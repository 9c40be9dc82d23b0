"""Scan, unroll and rematerialisation are one model: same tree, initial values, dropout, results, gradients."""

import sys
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xla

from bertfam.layers.execution import Execution
from bertfam.layers.stack import Stack

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
import small_bert  # noqa: E402

VARIANTS = [
    Execution(layers=layers, remat=remat, attention="reference")
    for layers in ("scan", "unroll")
    for remat in ("none", "full", "dots")
]

KEY = jax.random.key(7)  # hidden and attention dropout are on


def loss_and_gradient(execution, key):
    module = small_bert.bert.Encoder(small_bert.CONFIG, execution)
    inputs = small_bert.batch()
    weights = jax.random.normal(jax.random.key(5), (4, 20, 48)) * inputs["segment_ids"][..., None]

    def loss(params):
        hidden, _ = module.apply({"params": params}, **inputs, train=True, rngs={"dropout": key})
        return jnp.sum(hidden * weights) / 100, hidden

    return jax.jit(jax.value_and_grad(loss, has_aux=True), compiler_options=xla.OPTIMISED)(small_bert.random_params())


@pytest.fixture(scope="module")
def expected():
    return loss_and_gradient(VARIANTS[0], KEY)


@pytest.mark.parametrize("execution", VARIANTS[1:], ids=lambda execution: f"{execution.layers} {execution.remat}")
def test_variants_agree(expected, execution):
    (_, hidden), gradient = expected
    (_, actual), actual_gradient = loss_and_gradient(execution, KEY)
    np.testing.assert_allclose(actual, hidden, atol=1e-6, rtol=1e-6)
    for one, other in zip(jax.tree.leaves(actual_gradient), jax.tree.leaves(gradient), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6 * max(1.0, float(jnp.max(jnp.abs(other)))))


def test_initial_values_are_the_same_and_differ_by_layer():
    scanned, unrolled = (small_bert.init(execution=Execution(layers=layers)) for layers in ("scan", "unroll"))
    assert jax.tree.structure(scanned) == jax.tree.structure(unrolled)
    jax.tree.map(np.testing.assert_array_equal, nn.unbox(scanned), nn.unbox(unrolled))
    kernel = nn.unbox(scanned)["layers"]["attention"]["query"]["kernel"]
    assert not np.array_equal(kernel[0], kernel[1])


def test_dropout_differs_by_layer_and_by_key():
    params, inputs = small_bert.random_params(), small_bert.batch()
    one, again, other = (
        small_bert.apply(params, inputs, key=jax.random.key(seed), collect=frozenset({"hidden_states"}))[1] for seed in (1, 1, 2)
    )
    assert np.array_equal(one["hidden_states"], again["hidden_states"])
    assert not np.allclose(one["hidden_states"], other["hidden_states"])


class Kind(nn.Module):
    """Layer that computes carry * weight + number + added, and returns the number of its kind and its random draw."""

    number: float

    @nn.compact
    def __call__(self, carry, *, added, train):
        weight = self.param(
            "weight", nn.with_logical_partitioning(nn.initializers.normal(), ("embed",)), carry.shape, jnp.float32
        )
        draw = jax.random.uniform(self.make_rng("dropout")) if train else 0.0
        return carry * weight + self.number + added, {"number": jnp.asarray(self.number), "draw": jnp.asarray(draw)}


@pytest.mark.parametrize("length", [1, 2, 3, 4, 6, 8])
@pytest.mark.parametrize("execution", [Execution(), Execution(remat="full"), Execution(layers="unroll")])
def test_kinds_of_layers_alternate(length, execution):
    """Kinds 10, 20, 20 repeat: looped periods and the remaining layers are the layers one after another."""
    kinds = ({"number": 10.0}, {"number": 20.0}, {"number": 20.0})
    carry, added = jnp.arange(1.0, 5.0), jnp.float32(0.5)

    def run(execution):
        stack = Stack(Kind, length, (), execution, kinds)
        params = stack.init(KEY, carry, {"added": added}, train=False)
        return params, *stack.apply(params, carry, {"added": added}, train=True, rngs={"dropout": KEY})

    params, actual, outputs = run(execution)
    weights = nn.unbox(params)["params"]["weight"]
    assert weights.shape == (length, 4) and len(np.unique(weights)) == 4 * length
    expected = carry
    for layer in range(length):
        expected = expected * weights[layer] + (20.0 if layer % 3 else 10.0) + added
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
    assert outputs["number"].tolist() == [20.0 if layer % 3 else 10.0 for layer in range(length)]
    assert len(set(outputs["draw"].tolist())) == length
    other = run(Execution())
    jax.tree.map(np.testing.assert_array_equal, (params, outputs), (other[0], other[2]))


def test_tree_of_another_depth_is_refused():
    params = jax.tree.map(lambda leaf: leaf, small_bert.random_params())
    params["layers"] = jax.tree.map(lambda leaf: leaf[:2], params["layers"])
    with pytest.raises(ValueError, match="holds 2 layers, not 3"):
        small_bert.apply(params, small_bert.batch())
