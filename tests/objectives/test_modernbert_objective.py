"""ModernBERT's objective: packed rows, inspection of layers, and gin files."""

import dataclasses

import jax
import numpy as np
import pytest
import tiny
from flax import linen as nn
from gradients import compile_loss, random_params
from test_packed_rows import packed

from bertfam.config import load
from bertfam.data.rows.packing import Packed
from bertfam.data.rows.running_text import WholeDocuments
from bertfam.kernels import cross_entropy, rows
from bertfam.layers.execution import Execution
from bertfam.models.modernbert import ModernBertConfig
from bertfam.objectives.mlm import Mlm
from bertfam.training.logs.inspection import make_inspection
from bertfam.training.optimizers import Lion, StableAdamW
from bertfam.training.optimizers.tensors import describe
from bertfam.training.run_plan import describe_attention
from bertfam.training.schedules import ConstantRate, WarmupStableDecay
from bertfam.training.stages import Stage
from bertfam.training.stages.phases import Phase
from bertfam.training.state import new_state

SIZES = {"num_layers": 5, "hidden_size": 16, "num_heads": 2, "feed_forward_size": 12, "max_length": 32, "window": 6}
OBJECTIVE = Mlm(ModernBertConfig(tiny.VOCABULARY, **SIZES), Execution())
# One global and one local layer.
SHALLOW = Mlm(dataclasses.replace(OBJECTIVE.model, num_layers=2), Execution())
OPTIMIZER = Lion(ConstantRate(1e-3, warmup_steps=0))


@pytest.fixture(scope="module")
def boxed():
    return jax.eval_shape(lambda key: SHALLOW.init(key, tiny.SHAPE)[0], jax.random.key(0))


@pytest.fixture(scope="module")
def state(boxed):
    """Return a new state whose parameters are random at scale 0.3."""
    fresh = jax.eval_shape(
        lambda key: nn.unbox(new_state(SHALLOW, OPTIMIZER.build(10, boxed), key, tiny.SHAPE)), jax.random.key(0)
    )
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), fresh)._replace(params=random_params(SHALLOW, seed=5))


def test_packed_rows_have_the_loss_of_their_examples():
    params, loss_of = random_params(SHALLOW, seed=5), compile_loss(SHALLOW, gradient=False)
    batch = tiny.batch(8, predictions=[4, 0, 1, 0, 4, 0, 4, 0])
    masks = batch["masked_loss_weights"].sum()
    (alone, _), (together, _) = (loss_of(params, rows, mlm=masks) for rows in (batch, packed(batch)))
    np.testing.assert_allclose(together, alone, rtol=1e-5)


def test_the_kernel_gives_the_loss_and_gradients_of_the_logits(monkeypatch):
    params, batch = random_params(SHALLOW, seed=5), tiny.batch(8, predictions=[4, 0, 1, 0, 4, 0, 4, 0])
    expected = compile_loss(SHALLOW)(params, batch)
    monkeypatch.setattr(cross_entropy, "supports", lambda shape, dtype: True)
    names, call = [], rows.call
    monkeypatch.setattr(
        rows, "call", lambda kernel, name, *args, **options: names.append(name) or call(kernel, name, *args, **options)
    )
    actual = compile_loss(SHALLOW)(params, batch)
    assert names == ["cross_entropy"]
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6), actual, expected)


def test_inspection_counts_the_first_layer_with_the_others(state, boxed):
    tensors = describe(boxed)
    inspect = make_inspection(Phase.of(SHALLOW), OPTIMIZER.build(10, boxed), tensors, microbatches=1)
    inspection = jax.device_get(jax.jit(inspect)(state, tiny.batch(2), tiny.SEED))
    encoder = state.params["encoder"]
    layers = [jax.tree.map(lambda leaf: leaf[0], encoder["first_layers"])]
    layers += [jax.tree.map(lambda leaf: leaf[0], encoder["layers"])]
    expected = [np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(layer))) for layer in layers]
    np.testing.assert_allclose(inspection["parameter_norm/encoder/layers"], expected, rtol=1e-5)
    assert inspection["gradient_norm/encoder/layers"].shape == (2,) and inspection["activation_rms/encoder"].shape == (3,)
    assert "parameter_norm/encoder/norm" in inspection and not any("first_layers" in name for name in inspection)


def test_plan_describes_both_kinds_of_attention():
    """Long rows have a backend of their own for windows; in short ones both kinds have the same."""
    description = describe_attention(OBJECTIVE, tiny.SHAPE._replace(length=128))
    assert description.startswith("over all tokens, xla: the fastest")
    assert "; over 3 tokens on each side, blocks: the fastest" in description
    assert describe_attention(OBJECTIVE, tiny.SHAPE).startswith("xla: the fastest")


def test_published_run():
    run = load(["runs/modernbert_base.gin"], []).build("Run")
    model = ModernBertConfig(attention_output_dropout_rate=0.1)
    assert run.objective.model == dataclasses.replace(model, global_theta=10_000.0) and type(run.objective) is Mlm
    assert run.data.rows == Packed(WholeDocuments()) and run.shape(0).predictions == 308
    assert run.optimizer == StableAdamW(WarmupStableDecay(8e-4, 3100, decay_steps=0), b2=0.98, weight_decay=0.0125)
    # Published is the share of a weight that an update takes at the peak rate.
    assert run.optimizer.weight_decay * run.optimizer.schedule.peak == pytest.approx(1e-5)
    sizes = [stage.batch_size for stage in run.stages]
    assert sizes == [*range(768, 4608 + 1, 384), 4608]
    tokens = sum(stage.steps * stage.batch_size * stage.length for stage in run.stages)
    assert abs(tokens / 1.7e12 - 1) < 0.02
    # The batch has grown by the end of the warm-up.
    rows = np.repeat(sizes, [stage.steps for stage in run.stages])[: run.optimizer.schedule.warmup_steps].sum()
    assert abs(rows * 1024 / 3e9 - 1) < 0.02

    long = load(["runs/modernbert_base_long.gin"], []).build("Run")
    assert long.stages == (Stage(63_600, 8192, 576),)
    assert long.objective == dataclasses.replace(run.objective, model=model)  # theta alone differs
    schedule = long.optimizer.schedule
    decayed = schedule.decay_steps * 576 * 8192
    assert schedule.peak == 3e-4 and abs(decayed / 50e9 - 1) < 0.02
    assert abs((63_600 * 576 * 8192 - decayed) / 250e9 - 1) < 0.02


def test_published_sizes():
    large = load(["models/modernbert_large.gin", "objectives/modernbert.gin", "runs/defaults.gin"], []).build("Run")
    sizes = {"num_layers": 28, "hidden_size": 1024, "num_heads": 16, "feed_forward_size": 2624}
    assert large.objective.model == ModernBertConfig(**sizes)
