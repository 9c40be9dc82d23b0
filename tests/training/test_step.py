"""The training step is a pure function of (state, batch), exact under microbatches (contracts 2 and 3)."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny
from flax import linen as nn

from bertfam.layers.execution import Execution
from bertfam.objectives.frozen import Frozen
from bertfam.objectives.objective import LossOut, Sum
from bertfam.training.logs.metrics import means
from bertfam.training.optimizers import AdamW
from bertfam.training.schedules import LinearDecay
from bertfam.training.stages.phases import Phase
from bertfam.training.state import TrainState
from bertfam.training.step import make_eval_step, make_train_step, root_key, seed_words


def objective(dropout=0.0, **settings):
    """Return MLM + NSP of a BERT with a single layer: scanned layers have tests in tests/layers/test_stack.py."""
    of_two = tiny.objective(dropout)
    return dataclasses.replace(
        of_two, model=dataclasses.replace(of_two.model, num_layers=1), execution=Execution(layers="unroll", **settings)
    )


@functools.cache
def boxed_params():
    return jax.eval_shape(lambda key: objective().init(key, tiny.SHAPE)[0], jax.random.key(0))


@functools.cache
def adamw():
    return AdamW(LinearDecay(peak=1e-3, warmup_steps=0), epsilon=1e-6).build(100, boxed_params())


# Eight rows with very different numbers of predictions; the rows of two of four microbatches have none at all.
COUNTS = [4, 0, 1, 0, 4, 0, 4, 0]


def make_step(dropout=0.0, microbatches=1):
    return jax.jit(make_train_step(Phase.of(objective(dropout)), adamw(), microbatches=microbatches))


def numbers(metrics):
    return {name: (float(value.total), float(value.weight)) for name, value in metrics.items()}


@pytest.fixture(scope="module")
def state():
    """Return a state before the first update, with random parameters."""
    generator = np.random.default_rng(1)
    params = jax.tree.map(
        lambda leaf: jnp.asarray(np.float32(0.1 * generator.standard_normal(leaf.shape))), nn.meta.unbox(boxed_params())
    )
    return fresh_state(adamw(), params)


def fresh_state(optimizer, params, average=None):
    zeros = jax.tree.map(lambda leaf: jnp.asarray(np.zeros(leaf.shape, leaf.dtype)), jax.eval_shape(optimizer.init, params))
    return TrainState(jnp.int32(0), params, zeros, {}, {}, average or {}, jnp.int32(0))


@functools.cache
def evaluation(dropout):
    return jax.jit(make_eval_step(Phase.of(objective(dropout))))


@pytest.fixture(scope="module")
def whole_step():
    return make_step()


def test_microbatches_give_the_same_update(state, whole_step):
    batch = tiny.batch(8, predictions=COUNTS)
    expected, expected_metrics = whole_step(state, batch, tiny.SEED)
    updated, metrics = make_step(microbatches=4)(state, batch, tiny.SEED)
    largest_change = 0.0
    for old, left, right in zip(*map(jax.tree.leaves, (state.params, expected.params, updated.params)), strict=True):
        np.testing.assert_allclose(right, left, rtol=0, atol=1e-6)
        largest_change = max(largest_change, float(np.abs(np.asarray(left) - np.asarray(old)).max()))
    assert largest_change > 5e-4 and int(updated.step) == 1
    expected_numbers, updated_numbers = numbers(expected_metrics), numbers(metrics)
    assert expected_numbers.keys() == updated_numbers.keys()
    for name, value in expected_numbers.items():
        assert updated_numbers[name] == pytest.approx(value, rel=1e-5), name
    assert updated_numbers["mlm_loss"][1] == sum(COUNTS) and updated_numbers["nsp_loss"][1] == 8
    assert updated_numbers["loss"][0] == pytest.approx(
        updated_numbers["mlm_loss"][0] / sum(COUNTS) + updated_numbers["nsp_loss"][0] / 8, rel=1e-5
    )


def test_loss_is_the_mean_over_all_targets():
    """The mean over all targets is (10 * 2 + 100 * 1) / 110; the mean of the microbatches' means would be 1.5."""

    class Constant:
        coefficients, frozen = {"x": 1.0}, Frozen()

        def in_pieces(self, count):
            return None

        def denominators(self, batch):
            return {"x": jnp.sum(batch["weights"])}

        def loss(self, params, carry, aux, batch, *, key, train):
            total = jnp.sum(batch["losses"] * batch["weights"]) * params["w"]
            return LossOut({"x": total}, carry, {"x_loss": Sum(total, jnp.sum(batch["weights"]))})

    optimizer = optax.sgd(1.0)
    # Microbatches take the rows in turn: the first of two has the even rows.
    batch = {"losses": jnp.array([2.0, 1.0, 2.0, 1.0]), "weights": jnp.array([4.0, 30.0, 6.0, 70.0])}
    params = {"w": jnp.ones(())}
    aux = {"teacher": jnp.arange(3.0)}
    for microbatches in (1, 2, 4):
        state = TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params), {}, aux, {}, jnp.zeros((), jnp.int32))
        updated, metrics = jax.jit(make_train_step(Phase.of(Constant()), optimizer, microbatches=microbatches))(
            state, batch, tiny.SEED
        )
        assert float(1 - updated.params["w"]) == pytest.approx(120 / 110, abs=1e-6)
        assert float(metrics["loss"].total) == pytest.approx(120 / 110) and float(metrics["loss"].weight) == 1
        assert np.array_equal(updated.aux["teacher"], aux["teacher"])


def test_step_without_targets_gives_no_nan(state, whole_step):
    updated, metrics = whole_step(state, {name: np.zeros_like(value) for name, value in tiny.batch(8).items()}, tiny.SEED)
    assert numbers(metrics)["loss"] == (0.0, 0.0) and numbers(metrics)["gradient_norm"] == (0.0, 1.0)
    assert numbers(metrics)["nothing_to_predict"] == (1.0, 1.0)
    assert int(updated.step) == 1
    decay = 1 - 1e-3 * 0.99 * 0.01  # the rate of the first of 100 updates, and the weight decay
    for path, new in jax.tree_util.tree_leaves_with_path(updated.params):
        old = state.params
        for key in path:
            old = old[key.key]
        np.testing.assert_allclose(
            new, np.asarray(old) * (1 if path[-1].key in ("bias", "scale") else decay), rtol=1e-6, atol=1e-9
        )


def test_sums_and_counters_are_never_16_bit(state):
    """In bfloat16 the sum of 300 ones is 256, and in a running float32 sum 2 ** 24 + 1 rows are 2 ** 24."""
    config = AdamW(LinearDecay(warmup_steps=0), b2=0.98, mu_dtype="bfloat16", nu_dtype="bfloat16")
    bfloat16_objective = objective(dtype="bfloat16")
    optimizer = config.build(100, boxed_params())
    fresh = fresh_state(optimizer, state.params, average=state.params)
    batch = tiny.batch(80, predictions=[4] * 79 + [1])  # 317
    step = jax.jit(make_train_step(Phase.of(bfloat16_objective), optimizer, microbatches=2, average_decay=0.9))
    updated, metrics = step(fresh._replace(step=jnp.int32(2**31 - 2), skipped=jnp.int32(2**30)), batch, tiny.SEED)
    assert (int(updated.step), int(updated.skipped)) == (2**31 - 1, 2**30)
    assert {leaf.dtype for leaf in jax.tree.leaves((updated.step, updated.skipped))} == {jnp.dtype("int32")}
    assert {leaf.dtype for leaf in jax.tree.leaves((updated.params, updated.average, metrics))} == {jnp.dtype("float32")}
    assert {leaf.dtype for leaf in jax.tree.leaves(updated.opt_state)} == {jnp.dtype("int32"), jnp.dtype("bfloat16")}
    assert numbers(metrics)["mlm_loss"][1] == 317 and numbers(metrics)["nsp_loss"][1] == 80
    exact = numbers(evaluation(0.0)(state.params, batch))
    for name in ("mlm_loss", "nsp_loss"):
        assert numbers(metrics)[name] == pytest.approx(exact[name], rel=2e-2)
    # Over many steps the weights exceed an int32, and a float32 sum would stop growing.
    steps = [{"x": Sum(np.float32(2.0**24), np.float32(2.0**24))}] * 300 + [{"x": Sum(np.float32(3.0), np.float32(1.0))}]
    assert means(steps)["x"] == (300 * 2**24 + 3) / (300 * 2**24 + 1) > 1


def test_dropout_is_a_function_of_step_and_seed(state):
    step, batch = make_step(dropout=0.5), tiny.batch(8)
    first, again = step(state, batch, tiny.SEED), step(state, batch, tiny.SEED)
    for left, right in zip(jax.tree.leaves(first), jax.tree.leaves(again), strict=True):
        assert np.array_equal(left, right)
    later = step(state._replace(step=state.step + 1), batch, tiny.SEED)
    other = step(state, batch, seed_words(1))
    losses = {numbers(metrics)["loss"][0] for _, metrics in (first, later, other)}
    assert len(losses) == 3 and abs(max(losses) - min(losses)) > 1e-3
    # Evaluation has no dropout.
    assert numbers(evaluation(0.5)(state.params, batch)) == numbers(evaluation(0.0)(state.params, batch))


def test_every_bit_of_a_seed_counts():
    seeds = [0, 7, 2**31, 2**32 - 1, 2**32, 2**32 + 7, 2**33 + 7, 2**63 - 1]
    words = [tuple(jax.random.key_data(root_key(seed)).tolist()) for seed in seeds]
    assert len(set(words)) == len(seeds)
    assert tuple(map(tuple, map(seed_words, seeds))) == tuple(words) and np.array_equal(seed_words(0), tiny.SEED)
    assert words[:4] == [tuple(jax.random.key_data(jax.random.key(seed)).tolist()) for seed in seeds[:4]]
