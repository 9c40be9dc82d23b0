"""Optimizers against NumPy in float64, layer by layer; weight decay, clipping and settings."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny
import toy_parameters as toy
from flax import linen as nn
from flax import traverse_util

from bertfam.training.optimizers import Adafactor, AdamW, BertAdam, Lamb, Lion, Muon, Sparsity, StableAdamW
from bertfam.training.optimizers.muon import newton_schulz
from bertfam.training.optimizers.tensors import describe
from bertfam.training.schedules import InverseSquareRoot, LinearDecay

RATES = [0.05, 0.1, 0.075, 0.05, 0.025, 0.0]
SCHEDULE = LinearDecay(peak=0.1, warmup_steps=2)
ADAM = {"b1": 0.8, "b2": 0.95, "epsilon": 1e-3, "weight_decay": 0.05}


def rms(x):
    return np.sqrt(np.mean(x**2))


class NumpyAdam:
    """Direction of Adam's update of one layer's tensor."""

    def __init__(self, config, corrected, trust=False):
        self.config, self.corrected, self.trust = config, corrected, trust
        self.t, self.m, self.v = 0, 0.0, 0.0

    def __call__(self, g, theta, matrix, in_stack):
        c = self.config
        self.t += 1
        self.m = c.b1 * self.m + (1 - c.b1) * g
        self.v = c.b2 * self.v + (1 - c.b2) * g**2
        m, v = (self.m / (1 - c.b1**self.t), self.v / (1 - c.b2**self.t)) if self.corrected else (self.m, self.v)
        u = m / (np.sqrt(v) + c.epsilon) + (c.weight_decay * theta if matrix else 0.0)
        ratio = np.linalg.norm(theta) / np.linalg.norm(u) if self.trust and matrix else 1.0
        return ratio * u


class NumpyStableAdam:
    def __init__(self, config):
        self.config, self.t, self.m, self.v = config, 0, 0.0, 0.0

    def __call__(self, g, theta, matrix, in_stack):
        c = self.config
        self.t += 1
        # The debiased moments are averages themselves, with decays that grow from 0 to b1 and b2.
        b1, b2 = (b * (1 - b ** (self.t - 1)) / (1 - b**self.t) for b in (c.b1, c.b2))
        self.m = b1 * self.m + (1 - b1) * g
        self.v = b2 * self.v + (1 - b2) * g**2
        clip = max(1.0, math.sqrt(np.mean(g**2 / np.maximum(self.v, c.epsilon**2))))
        return (self.m / (np.sqrt(self.v) + c.epsilon) + (c.weight_decay * theta if matrix else 0.0)) / clip


class NumpyLion:
    def __init__(self, config):
        self.config, self.m = config, 0.0

    def __call__(self, g, theta, matrix, in_stack):
        c = self.config
        u = np.sign(c.b1 * self.m + (1 - c.b1) * g)
        self.m = c.b2 * self.m + (1 - c.b2) * g
        return u + (c.weight_decay * theta if matrix else 0.0)


class NumpyAdafactor:
    def __init__(self, config):
        self.config, self.t, self.v, self.row, self.column, self.m = config, 0, 0.0, 0.0, 0.0, 0.0

    def __call__(self, g, theta, matrix, in_stack):
        c = self.config
        self.t += 1
        beta = 1 - self.t**-c.decay_power
        square = g**2 + c.epsilon
        if c.factored and matrix and min(g.shape) >= c.min_size_to_factor:
            self.row = beta * self.row + (1 - beta) * square.mean(axis=1)
            self.column = beta * self.column + (1 - beta) * square.mean(axis=0)
            v = np.outer(self.row, self.column) / self.row.mean()
        else:
            v = self.v = beta * self.v + (1 - beta) * square
        u = g / np.sqrt(v)
        if c.clipping_threshold:
            u = u / max(1.0, rms(u) / c.clipping_threshold)
        if c.scale_by_parameter:
            u = u * max(c.epsilon_scale, rms(theta))
        if c.b1 is not None:
            u = self.m = c.b1 * self.m + (1 - c.b1) * u
        return u + (c.weight_decay * theta if matrix else 0.0)


class NumpyMuon:
    def __init__(self, config):
        self.config, self.m = config, 0.0
        adam = AdamW(b1=config.adam_b1, b2=config.adam_b2, epsilon=config.adam_epsilon, weight_decay=config.weight_decay)
        self.adam = NumpyAdam(adam, corrected=True)

    def __call__(self, g, theta, matrix, in_stack):
        c = self.config
        if not (matrix and in_stack):
            return c.adam_rate * self.adam(g, theta, matrix, in_stack)
        self.m = c.momentum * self.m + (1 - c.momentum) * g
        x = (1 - c.momentum) * g + c.momentum * self.m if c.nesterov else self.m
        x = x / np.linalg.norm(x)
        for _ in range(c.iterations):
            a = x @ x.T
            x = 3.4445 * x - 4.7750 * a @ x + 2.0315 * a @ a @ x
        rows, columns = g.shape
        scale = 0.2 * max(rows, columns) ** 0.5 if c.scale == "match_adamw" else max(1, columns / rows) ** 0.5
        return scale * x + c.weight_decay * theta


CASES = {
    "AdamW": (AdamW(SCHEDULE, **ADAM), lambda c: NumpyAdam(c, True)),
    "AdamW unclipped": (AdamW(SCHEDULE, **ADAM, clip_norm=None), lambda c: NumpyAdam(c, True)),
    "BertAdam": (BertAdam(SCHEDULE, **ADAM), lambda c: NumpyAdam(c, False)),
    "Lamb": (Lamb(SCHEDULE, **ADAM), lambda c: NumpyAdam(c, False, trust=True)),
    "Lamb corrected": (Lamb(SCHEDULE, **ADAM, bias_correction=True), lambda c: NumpyAdam(c, True, trust=True)),
    "Lion": (Lion(SCHEDULE, weight_decay=0.05), NumpyLion),
    "Adafactor whole": (Adafactor(SCHEDULE), NumpyAdafactor),
    "Adafactor factored": (Adafactor(SCHEDULE, min_size_to_factor=4, weight_decay=0.05), NumpyAdafactor),
    "Adafactor plain": (
        Adafactor(SCHEDULE, factored=False, clipping_threshold=None, scale_by_parameter=False, b1=0.9),
        NumpyAdafactor,
    ),
    "Muon": (Muon(SCHEDULE, weight_decay=0.05), NumpyMuon),
    "StableAdamW": (StableAdamW(SCHEDULE, **ADAM), NumpyStableAdam),
    "Muon original": (Muon(SCHEDULE, scale="original", nesterov=False, adam_rate=0.1, iterations=3), NumpyMuon),
}


def numpy_updates(config, make, values, gradients):
    """Yield the parameters after each update, computed layer by layer."""
    thetas = {name: list(toy.layers(name, value)) for name, value in values.items()}
    directions = {name: [make(config) for _ in slices] for name, slices in thetas.items()}
    for rate, gradient in zip(RATES, gradients, strict=True):
        norm = math.sqrt(sum(np.sum(np.float64(value) ** 2) for value in gradient.values()))
        scale = 1.0 if config.clip_norm is None else min(1.0, config.clip_norm / norm)
        for name, slices in thetas.items():
            for layer, g in enumerate(toy.layers(name, gradient[name])):
                direction = directions[name][layer](scale * g, slices[layer], name in toy.DECAYED, "/layers/" in name)
                slices[layer] = slices[layer] - rate * direction
        yield {name: np.reshape(np.stack(slices), values[name].shape) for name, slices in thetas.items()}


def compile_step(optimizer, boxed):
    """Return the optimizer's first state, and a compiled (params, state, gradient, step) -> (params, state)."""

    @jax.jit
    def step_of(params, state, gradient, step):
        updates, state = optimizer.update(gradient, state, params, step=step)
        return optax.apply_updates(params, updates), state

    return jax.jit(lambda: nn.meta.unbox(optimizer.init(boxed)))(), step_of


@pytest.mark.parametrize("case", CASES)
def test_updates_match_numpy(case):
    config, make = CASES[case]
    values = toy.random_values(0)
    # Gradients of norm 1 to 100.
    gradients = [toy.random_values(step + 1, 10.0**power) for step, power in enumerate((-1, 0, 1, -1, 0, 1))]
    params = toy.tree(values)
    state, update = compile_step(config.build(6, toy.boxed(values)), toy.boxed(values))
    for step, expected in enumerate(numpy_updates(config, make, values, gradients)):
        params, state = update(params, state, toy.tree(gradients[step]), step)
        for name, value in toy.flat(params).items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-5, err_msg=f"{name} at {step}")


def test_separate_layers_get_the_same_updates():
    """A stack of three layers is updated as three stacks of one layer, by every optimizer."""
    values, gradients = toy.random_values(0), [toy.random_values(seed) for seed in (1, 2)]

    def split_layers(flat):
        outside = {name: value for name, value in flat.items() if "/layers/" not in name}
        return outside | {
            name.replace("encoder/", f"{layer}/"): value[layer : layer + 1]
            for name, value in flat.items()
            for layer in range(3)
            if "/layers/" in name
        }

    def box_split_layers(flat):
        axes = {name: value[0] for name, value in toy.TENSORS.items()}
        names = {name: axes.get(name) or axes["encoder/" + name.partition("/")[2]] for name in flat}
        return toy.tree({name: nn.LogicallyPartitioned(value, names[name]) for name, value in flat.items()})

    def trained(config, params, gradients, boxed):
        state, update = compile_step(config.build(6, boxed), boxed)
        for step, gradient in enumerate(gradients):
            params, state = update(params, state, gradient, step)
        return toy.flat(params)

    for case in ("AdamW", "Lamb", "Adafactor factored", "Muon", "StableAdamW"):
        config = CASES[case][0]
        stacked = trained(config, toy.tree(values), [toy.tree(g) for g in gradients], toy.boxed(values))
        separate = trained(
            config,
            toy.tree(split_layers(values)),
            [toy.tree(split_layers(g)) for g in gradients],
            box_split_layers(split_layers(values)),
        )
        for name, value in split_layers(stacked).items():
            np.testing.assert_allclose(separate[name], value, rtol=1e-6, atol=1e-6, err_msg=f"{case} {name}")


def test_newton_schulz_brings_singular_values_close_to_one():
    generator, run = np.random.default_rng(0), jax.jit(newton_schulz, static_argnums=1)
    for shape in ((8, 20), (20, 8), (16, 16)):
        matrices = generator.standard_normal((2, *shape), np.float32)
        u, s, v = np.linalg.svd(matrices, full_matrices=False)
        assert (s[..., -1] / np.linalg.norm(matrices, axis=(-2, -1)) > 1e-3).all()
        orthogonal = np.asarray(run(matrices, 5))
        sizes = u.swapaxes(-1, -2) @ orthogonal @ v.swapaxes(-1, -2)  # diagonal, since the singular vectors do not change
        diagonal = np.diagonal(sizes, axis1=-2, axis2=-1)
        np.testing.assert_allclose(sizes, diagonal[..., None] * np.eye(min(shape)), atol=1e-4)
        assert (diagonal[s > 1e-2 * np.linalg.norm(matrices, axis=(-2, -1))[:, None]] > 0.6).all() and (diagonal < 1.3).all()
    assert np.array_equal(run(np.zeros((1, 2, 3), np.float32), 5), np.zeros((1, 2, 3)))  # a gradient of zeros


def test_lamb_does_not_scale_tensors_or_updates_of_norm_zero():
    values = {name: np.zeros_like(value) for name, value in toy.random_values(0).items()}
    config = Lamb(SCHEDULE, **ADAM)
    optimizer, bert = config.build(6, toy.boxed(values)), BertAdam(SCHEDULE, **ADAM).build(6, toy.boxed(values))

    @jax.jit
    def first_updates(gradient, params):
        return [one.update(gradient, one.init(params), params, step=0)[0] for one in (optimizer, bert)]

    for gradient in (toy.random_values(1), values):
        update, expected = map(toy.flat, first_updates(toy.tree(gradient), toy.tree(values)))
        for name in values:
            np.testing.assert_allclose(update[name], expected[name], rtol=1e-6)


def test_relative_step_of_adafactor_is_its_schedule():
    schedule = Adafactor().schedule.build(10**6)
    for step in (0, 99, 9_999, 10_000, 39_999, 999_999):
        assert float(schedule(step)) == pytest.approx(min(1e-2, 1 / math.sqrt(step + 1)), rel=1e-6)
    assert Adafactor().schedule == InverseSquareRoot() and Adafactor().clip_norm is None


@pytest.mark.parametrize(
    "config",
    [AdamW(mu_dtype="bfloat16"), Lamb(b2=0.98, nu_dtype="bfloat16"), Lion(mu_dtype="bfloat16"), Muon(mu_dtype="bfloat16")],
)
def test_16_bit_moments_train_like_float32_moments(config):
    values = toy.random_values(0)
    wide = dataclasses.replace(config, **{name: "float32" for name in ("mu_dtype", "nu_dtype") if hasattr(config, name)})
    results = []
    for variant in (config, wide):
        variant = dataclasses.replace(variant, schedule=SCHEDULE)
        optimizer = variant.build(6, toy.boxed(values))
        params, (state, update) = toy.tree(values), compile_step(optimizer, toy.boxed(values))
        dtypes = {leaf.dtype for leaf in jax.tree.leaves(state)}
        for step in range(3):
            params, state = update(params, state, toy.tree(toy.random_values(step)), step)
        assert {leaf.dtype for leaf in jax.tree.leaves(state)} == dtypes  # dtypes do not change from step to step
        assert (jnp.dtype("bfloat16") in dtypes) == (
            variant.mu_dtype == "bfloat16" or getattr(variant, "nu_dtype", "") == "bfloat16"
        )
        results.append(toy.flat(params))
    for name, value in results[0].items():
        assert value.dtype == np.float32
        assert np.mean(np.abs(value - results[1][name]) > 5e-3) < 0.1, name  # a sign may differ


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (AdamW, {"b1": 1.0}, "b1"),
        (AdamW, {"b2": -0.1}, "b2"),
        (AdamW, {"epsilon": -1e-6}, "epsilon"),
        (Lamb, {"weight_decay": -0.1}, "weight_decay"),
        (Lion, {"clip_norm": 0.0}, "clip_norm"),
        (Adafactor, {"clip_norm": -1.0}, "clip_norm"),
        (Adafactor, {"b1": 1.0}, "b1"),
        (Adafactor, {"clipping_threshold": 0.0}, "clipping_threshold"),
        (Muon, {"iterations": 0}, "iterations"),
        (Muon, {"momentum": 1.0}, "momentum"),
        (BertAdam, {"layer_decay": 0.0}, "layer_decay"),
        (BertAdam, {"layer_decay": 1.1}, "layer_decay"),
        (AdamW, {"nu_dtype": "bfloat16"}, "nu_dtype bfloat16 cannot follow a moment with b2 0.999"),
    ],
)
def test_invalid_settings_are_refused(make, settings, message):
    with pytest.raises(ValueError, match=message):
        make(**settings)


def test_clipping_uses_the_global_gradient_norm():
    gradient = {"kernel": jnp.array([3.0]), "bias": jnp.array([4.0])}  # norm 5
    clipped, free = (AdamW(SCHEDULE, **ADAM, clip_norm=norm).build(10, gradient) for norm in (1.0, None))

    @jax.jit
    def both_updates(gradient, params):
        fifth = jax.tree.map(lambda g: g / 5, gradient)
        return [one.update(tree, one.init(params), params, step=0)[0] for one, tree in ((clipped, gradient), (free, fifth))]

    updates, small = both_updates(gradient, gradient)
    for name in gradient:
        np.testing.assert_allclose(updates[name], small[name], rtol=1e-6)


def test_biases_and_norm_scales_are_not_decayed_even_if_stacked():
    params = jax.eval_shape(lambda key: tiny.objective().init(key, tiny.SHAPE)[0], jax.random.key(0))
    tensors = traverse_util.flatten_dict(describe(params), sep="/")
    decayed = {name for name, tensor in tensors.items() if tensor.decayed}
    assert {name.rpartition("/")[2] for name in decayed} == {"kernel", "table"}
    assert {name.rpartition("/")[2] for name in tensors.keys() - decayed} == {"bias", "scale"}
    stacked = {name for name in tensors if name.startswith("encoder/layers/")}
    assert stacked == {name for name, tensor in tensors.items() if tensor.stacked}
    assert all(tensors[name].shape[0] == 2 for name in stacked)
    assert any(len(tensors[name].shape) == 2 and name not in decayed for name in stacked)  # a norm scale [layers, embed]
    # Every matrix and every table of BERT: 3 tables; 4 + 2 kernels a layer, stacked; pooler, NSP, the head's transform.
    assert len(decayed) == 3 + 6 + 3
    assert tensors["encoder/layers/attention/query/kernel"].matrix == (16, 16)
    assert tensors["encoder/layers/feed_forward/output/kernel"].matrix == (32, 16)
    assert tensors["encoder/layers/attention/query/bias"].matrix is None

    ones = jax.tree.map(lambda leaf: np.ones(leaf.shape, np.float32), nn.meta.unbox(params))
    optimizer = AdamW(SCHEDULE, **ADAM).build(10, params)
    zeros = jax.tree.map(jnp.zeros_like, ones)
    updates = jax.jit(lambda params: optimizer.update(zeros, optimizer.init(params), params, step=0)[0])(ones)
    for name, update in traverse_util.flatten_dict(updates, sep="/").items():
        np.testing.assert_allclose(update, -0.05 * 0.05 if name in decayed else 0.0, rtol=1e-6, err_msg=name)


def test_gradual_sparsity():
    """Shares of zeros follow the cubic schedule in each layer's kernels, zeros stay, and other tensors are as without it."""
    sparsity, total = Sparsity(final=0.75, begin=0.2, end=0.8, every=2), 10
    values = toy.random_values(0)
    kernels = [name for name in values if "layers" in name and name.endswith("kernel")]
    values["encoder/layers/attention/query/kernel"][:, 0, 0] = 0
    trees = {None: toy.tree(values), sparsity: toy.tree(values)}
    for own in trees:
        optimizer = AdamW(SCHEDULE, sparsity=own).build(total, toy.boxed(values))
        state = optimizer.init(trees[own])
        update = jax.jit(optimizer.update)
        for step in range(1, total + 1):
            updates, state = update(toy.tree(toy.random_values(step)), state, trees[own], step=step)
            before = toy.flat(trees[own])
            trees[own] = optax.apply_updates(trees[own], updates)
            if own is None:
                continue
            share = 0.75 * (1 - (1 - min(max((step - 2) / 6, 0), 1)) ** 3)
            for name in kernels:
                now = toy.flat(trees[own])[name].reshape(3, -1)
                assert not now[before[name].reshape(3, -1) == 0].any()
                if step in (4, 6, 8):
                    zeros = (now == 0).sum(axis=1)
                    assert (zeros >= round(share * now.shape[1])).all() and zeros.min() == round(share * now.shape[1])
    dense, sparse = (toy.flat(tree) for tree in trees.values())
    for name in values.keys() - set(kernels):
        np.testing.assert_array_equal(dense[name], sparse[name])
    assert all((dense[name] != 0).all() for name in kernels)
    for wrong in ({"final": 1.0}, {"initial": 0.5}, {"begin": 0.5}, {"every": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Sparsity(**wrong)
