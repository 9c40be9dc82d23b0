"""Scan, unroll and rematerialisation are one model: same tree, initial values, dropout, results, gradients."""

import dataclasses
import functools
import sys
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertfam.kernels import rows
from bertfam.layers.execution import Execution
from bertfam.layers.stack import Stack, divided
from bertfam.models.modernbert import ModernBertConfig

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
import small_bert  # noqa: E402

KEY = jax.random.key(7)
# So narrow that sums have few terms, which other programs round nearly alike.
SIZES = {"vocab_size": 20, "num_layers": 2, "hidden_size": 16, "num_heads": 2, "feed_forward_size": 24}
CONFIG = dataclasses.replace(small_bert.CONFIG, **SIZES)


def loss_and_gradient(layers, remat, seed=7):
    """Return ((loss, hidden states), gradient) with hidden and attention dropout."""
    execution = Execution(layers=layers, remat=remat, attention="reference")
    return small_bert.loss_and_gradient(small_bert.random_params(CONFIG), CONFIG, execution, jax.random.key(seed))


def assert_equal_results(actual, expected):
    ((_, hidden), gradient), ((_, expected_hidden), expected_gradient) = actual, expected
    np.testing.assert_allclose(hidden, expected_hidden, atol=1e-6, rtol=1e-6)
    for one, other in zip(jax.tree.leaves(gradient), jax.tree.leaves(expected_gradient), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6 * max(1.0, float(np.max(np.abs(other)))))


@pytest.mark.parametrize(("layers", "remat"), [("unroll", "dots"), ("scan", "full")])
def test_unrolling_and_rematerialisation_change_nothing(layers, remat):
    """Dropout has the same masks."""
    assert_equal_results(loss_and_gradient(layers, remat), loss_and_gradient("scan", "none"))


def test_initial_values_are_the_same_and_differ_by_layer():
    scanned, unrolled = (small_bert.init(CONFIG, Execution(layers=layers)) for layers in ("scan", "unroll"))
    assert jax.tree.structure(scanned) == jax.tree.structure(unrolled)
    jax.tree.map(np.testing.assert_array_equal, nn.unbox(scanned), nn.unbox(unrolled))
    kernel = nn.unbox(scanned)["layers"]["attention"]["query"]["kernel"]
    assert not np.array_equal(kernel[0], kernel[1])


def test_dropout_differs_by_key():
    one, again, other = (loss_and_gradient("scan", "none", seed)[0][1] for seed in (1, 1, 2))
    assert np.array_equal(one, again) and not np.allclose(one, other)


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


CARRY, ADDED = np.arange(1.0, 5.0, dtype=np.float32), np.float32(0.5)


@functools.cache
def run_kinds(execution, length):
    """Return (params, carry, outputs) of a stack in which the kinds 10, 20, 20 repeat."""
    stack = Stack(Kind, length, (), execution, ({"number": 10.0}, {"number": 20.0}, {"number": 20.0}))

    @jax.jit
    def run(carry, added):
        params = stack.init(KEY, carry, {"added": added}, train=False)
        return params, *stack.apply(params, carry, {"added": added}, train=True, rngs={"dropout": KEY})

    return jax.device_get(run(CARRY, ADDED))


@pytest.mark.parametrize(
    ("execution", "length"),
    [*((Execution(), length) for length in (1, 6, 8)), (Execution(remat="full"), 8), (Execution(layers="unroll"), 8)],
)
def test_kinds_of_layers_alternate(execution, length):
    """Looped periods and the remaining layers are the layers one after another."""
    params, actual, outputs = run_kinds(execution, length)
    weights = nn.unbox(params)["params"]["weight"]
    assert weights.shape == (length, 4) and len(np.unique(weights)) == 4 * length
    expected = CARRY
    for layer in range(length):
        expected = expected * weights[layer] + (20.0 if layer % 3 else 10.0) + ADDED
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
    assert outputs["number"].tolist() == [20.0 if layer % 3 else 10.0 for layer in range(length)]
    assert len(set(outputs["draw"].tolist())) == length
    other = run_kinds(Execution(), length)
    jax.tree.map(np.testing.assert_array_equal, (params, outputs), (other[0], other[2]))


def test_divided_parameters_give_the_same_results():
    params = small_bert.random_params(CONFIG)
    expected, actual = (small_bert.apply(tree, small_bert.batch(CONFIG), CONFIG)[0] for tree in (params, divided(params)))
    np.testing.assert_allclose(actual, expected, atol=1e-6)
    stacked, shared = jnp.arange(32.0).reshape(2, 16), {"layers": {"weight": np.ones((1, 3))}}
    layers = divided({"encoder": {"layers": {"weight": stacked}}})["encoder"]["layers"]
    assert [layer["weight"].tolist() for layer in layers.values()] == stacked.tolist() and [*layers] == ["0", "1"]
    assert layers["1"]["weight"].unsafe_buffer_pointer() == stacked.unsafe_buffer_pointer() + stacked.nbytes // 2
    assert divided(shared) == shared


def test_joint_and_separate_projections_give_the_same_results(monkeypatch):
    """CPUs multiply by each kernel on its own, other devices by all at once: of attention and of a gated feed-forward network."""
    config = ModernBertConfig(**SIZES, max_length=24)
    params, batch = small_bert.random_params(config), small_bert.batch(config)
    apart = small_bert.apply(params, batch, config)[0]
    monkeypatch.setattr(rows, "join_products", lambda dtype: True)
    joint = small_bert.apply(params, batch, config, Execution(layers="unroll"))[0]  # another program than that above
    np.testing.assert_allclose(joint, apart, atol=1e-5)


def test_tree_of_another_depth_is_refused():
    params = jax.tree.map(lambda leaf: leaf, small_bert.random_params())
    params["layers"] = jax.tree.map(lambda leaf: leaf[:2], params["layers"])
    with pytest.raises(ValueError, match="holds 2 layers, not 3"):
        small_bert.apply(params, small_bert.batch())
