"""Scores on held-out rows are exact weighted means, whatever the batches."""

import jax.numpy as jnp
import numpy as np
import pytest

from bertfam.data.text_data import TextData
from bertfam.objectives.objective import Sum
from bertfam.training.logs.metrics import means
from bertfam.training.trainer import evaluate


def test_means_over_batches_of_unequal_weight():
    weights = [3.0, 0.0, 5.0, 1.0]
    values = [2.0, 7.0, 1.0, 4.0]
    requested = []

    def batches(step):
        requested.append(step)
        return {"value": jnp.float32(values[step]), "weight": jnp.float32(weights[step])}

    def step(batch):
        return {"loss": Sum(batch["value"] * batch["weight"], batch["weight"]), "none": Sum(jnp.float32(0), jnp.float32(0))}

    assert means(evaluate(step, batches, 4)) == {"loss": pytest.approx((6 + 0 + 5 + 4) / 9)}
    assert requested == [0, 1, 2, 3]
    assert means(evaluate(step, batches, 0)) == {}


def test_scores_do_not_depend_on_the_batch_size(cache, tokens):
    """Batches of 5, of 64 and of more rows than there are give the mean over all rows, computed in NumPy."""
    data = TextData()

    def step(batch):
        used = batch["masked_loss_weights"]
        value = np.sum(batch["masked_target_tokens"] * used)
        return {"mean": Sum(jnp.float32(value), jnp.float32(used.sum())), "rows": Sum(jnp.float32(1), jnp.float32(1))}

    found = []
    for batch_size in (5, 64, 100_000):
        held_out = data.held_out(cache, tokens, 48, batch_size)
        metrics = evaluate(
            step, lambda index, held_out=held_out: held_out.source.rows(index, 0, held_out.batch_size), held_out.steps
        )
        found.append(means(metrics)["mean"])
        assert held_out.rows == len(held_out.source.sequence)
    assert held_out.steps == 1 and len(held_out.source.sequence) > 64
    rows = held_out.source.rows(0, 0, len(held_out.source.sequence))
    used = rows["masked_loss_weights"].astype(bool)
    assert found == pytest.approx([rows["masked_target_tokens"][used].mean()] * 3, rel=1e-6)
