"""AdamW against NumPy in float64, what is decayed, and clipping."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny
from flax import linen as nn
from flax import traverse_util

from bertfam.training.optimizers import AdamW, weight_decay_mask
from bertfam.training.schedules import LinearDecay

ADAMW = AdamW(LinearDecay(peak=0.1, warmup_steps=2), b1=0.8, b2=0.95, epsilon=1e-3, weight_decay=0.05, clip_norm=None)


def by_hand(config, params, gradients, rates):
    """The parameters after each update."""
    values = {name: np.asarray(value, np.float64) for name, value in params.items()}
    m = {name: 0.0 for name in values}
    v = {name: 0.0 for name in values}
    for count, (rate, gradient) in enumerate(zip(rates, gradients, strict=True), 1):
        norm = np.sqrt(sum(np.sum(np.float64(value) ** 2) for value in gradient.values()))
        scale = 1.0 if config.clip_norm is None else min(1.0, config.clip_norm / norm)
        for name, value in gradient.items():
            g = np.float64(value) * scale
            m[name] = config.b1 * m[name] + (1 - config.b1) * g
            v[name] = config.b2 * v[name] + (1 - config.b2) * g**2
            step = m[name] / (1 - config.b1**count) / (np.sqrt(v[name] / (1 - config.b2**count)) + config.epsilon)
            decay = config.weight_decay if name == "kernel" else 0.0
            values[name] = values[name] - rate * (step + decay * values[name])
        yield dict(values)


@pytest.mark.parametrize("clip_norm", [None, 1.0, 1e6])
def test_adamw_by_hand(clip_norm):
    config = dataclasses.replace(ADAMW, clip_norm=clip_norm)
    generator = np.random.default_rng(0)
    shapes = {"kernel": (3, 4), "bias": (4,), "scale": (2, 4)}
    params = {name: generator.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    # Their norm is 0.4 to 40.
    gradients = [
        {name: (10.0**power * generator.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}
        for power in (-1, 0, 1, -1, 0, 1)
    ]
    rates = [0.05, 0.1, 0.075, 0.05, 0.025, 0.0]
    optimizer = config.build(6)
    found, state = jax.tree.map(jnp.asarray, params), optimizer.init(params)
    for gradient, expected in zip(gradients, by_hand(config, params, gradients, rates), strict=True):
        updates, state = optimizer.update(gradient, state, found)
        found = optax.apply_updates(found, updates)
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    "settings", [{"b1": 1.0}, {"b2": -0.1}, {"epsilon": -1e-6}, {"weight_decay": -0.1}, {"clip_norm": 0.0}, {"clip_norm": -1.0}]
)
def test_senseless_settings_are_refused(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        AdamW(**settings)


def test_clipping_is_by_the_norm_of_the_whole_gradient():
    clipped = dataclasses.replace(ADAMW, clip_norm=1.0).build(10)
    gradient = {"kernel": jnp.array([3.0]), "bias": jnp.array([4.0])}  # norm 5
    updates, _ = clipped.update(gradient, clipped.init(gradient), gradient)
    small, _ = ADAMW.build(10).update(jax.tree.map(lambda g: g / 5, gradient), ADAMW.build(10).init(gradient), gradient)
    for name in gradient:
        np.testing.assert_allclose(updates[name], small[name], rtol=1e-6)


def test_biases_and_norm_scales_are_not_decayed_also_where_layers_are_stacked():
    params = nn.meta.unbox(jax.eval_shape(lambda key: tiny.objective().init(key, tiny.SHAPE)[0], jax.random.key(0)))
    mask = traverse_util.flatten_dict(weight_decay_mask(params), sep="/")
    shapes = {name: leaf.shape for name, leaf in traverse_util.flatten_dict(params, sep="/").items()}
    decayed = {name for name, value in mask.items() if value}
    assert {name.rpartition("/")[2] for name in decayed} == {"kernel", "table"}
    assert {name.rpartition("/")[2] for name in mask.keys() - decayed} == {"bias", "scale"}
    stacked = {name for name in mask if name.startswith("encoder/layers/")}
    assert all(shapes[name][0] == 2 for name in stacked)
    assert any(len(shapes[name]) == 2 and name not in decayed for name in stacked)  # a norm scale [layers, embed]
    # Every matrix and every table of BERT: 3 tables; 4 + 2 kernels a layer, stacked; pooler, NSP, the head's transform.
    assert len(decayed) == 3 + 6 + 3

    ones = jax.tree.map(lambda leaf: np.ones(leaf.shape, np.float32), params)
    optimizer = ADAMW.build(10)
    updates = tiny.jit(lambda params: optimizer.update(jax.tree.map(jnp.zeros_like, params), optimizer.init(params), params)[0])(
        ones
    )
    for name, update in traverse_util.flatten_dict(updates, sep="/").items():
        np.testing.assert_allclose(update, -0.05 * 0.05 if name in decayed else 0.0, rtol=1e-6, err_msg=name)
