"""Hard-concrete gates of heads: their statistics against the formulas, their loss, and what is merged."""

import dataclasses
import math

import jax
import numpy as np
import pytest
from gradients import assert_sums_of_microbatches, compile_loss, random_params
from test_frozen import HEAD, MODEL, batch_of, flat

from bertfam.errors import UserError
from bertfam.objectives.fine_tuning.gates import GATES, HeadGates
from bertfam.objectives.fine_tuning.lora import Lora
from bertfam.objectives.fine_tuning.objective import FineTuning

SETTINGS = HeadGates(penalty=0.3, initial=0.5, speed=4.0)
OBJECTIVE, WHOLE = FineTuning(MODEL, HEAD, gates=SETTINGS), FineTuning(MODEL, HEAD)
SITE = ("encoder", "layers", "attention")


def sigmoid(value):
    return 1 / (1 + math.exp(-value))


def tree_of(stored):
    return {GATES: {"encoder": {"layers": {"attention": {"gate": np.float32(stored)}}}}}


def test_samples_have_the_distribution_of_the_paper():
    """Shares of closed and of fully open gates, and the mean, by integrating over u (Louizos et al. 2018, equations 10 to 12)."""
    for log_alpha in (-3.0, 0.0, 2.5):
        stored = np.full((400, 500), (log_alpha - SETTINGS.initial) / SETTINGS.speed)
        sample = np.asarray(SETTINGS.values(tree_of(stored), jax.random.key(1))[SITE])
        low, high, temperature = SETTINGS.low, SETTINGS.high, SETTINGS.temperature
        is_open = sigmoid(log_alpha - temperature * math.log(-low / high))
        is_whole = sigmoid(log_alpha - temperature * math.log((1 - low) / (high - 1)))
        uniform = (np.arange(100_000) + 0.5) / 100_000
        stretched = 1 / (1 + np.exp(-(np.log(uniform / (1 - uniform)) + log_alpha) / temperature)) * (high - low) + low
        expected = (is_open, is_whole, np.clip(stretched, 0, 1).mean())
        assert ((sample > 0).mean(), (sample == 1).mean(), sample.mean()) == pytest.approx(expected, abs=0.004)
        assert float(SETTINGS.open_heads(tree_of(stored))) == pytest.approx(stored.size * is_open, rel=1e-4)
        without_noise = min(1.0, max(0.0, sigmoid(log_alpha) * (high - low) + low))
        np.testing.assert_allclose(SETTINGS.values(tree_of(stored))[SITE], without_noise, atol=1e-6)


def test_loss_has_the_penalty_once_whatever_the_microbatches():
    params, batch = random_params(OBJECTIVE), batch_of()
    run = compile_loss(OBJECTIVE)
    (loss, out), gradient = run(params, batch)
    log_alpha = SETTINGS.initial + SETTINGS.speed * params[GATES]["encoder"]["layers"]["attention"]["gate"]
    is_open = 1 / (1 + np.exp(-(log_alpha - SETTINGS.temperature * math.log(-SETTINGS.low / SETTINGS.high))))
    total, weight = out.metrics["label_loss"]
    assert loss == pytest.approx(total / weight + 0.3 * is_open.sum(), rel=1e-5)
    assert_sums_of_microbatches(lambda batch: run(params, batch)[0][1], batch)
    # Without the labels' term the gradient is that of log alpha.
    (_, _), alone = run(params, batch, label=0.0)
    own = alone[GATES]["encoder"]["layers"]["attention"]["gate"]
    np.testing.assert_allclose(own, 0.3 * is_open * (1 - is_open), rtol=1e-4)
    assert np.abs(gradient[GATES]["encoder"]["layers"]["attention"]["gate"] - own).max() > 1e-4


def test_gates_are_those_of_the_heads_and_merge_into_their_kernels():
    params = random_params(OBJECTIVE)
    gate = params[GATES]["encoder"]["layers"]["attention"]["gate"]
    gate[0, 0] = -2.0  # closed
    merged = OBJECTIVE.split(params)["encoder"]
    assert GATES not in merged
    values = np.asarray(SETTINGS.values(params)[SITE])
    assert values[0, 0] == 0 and 0 < values[1, 1] < 1
    whole, kernel = flat(params["encoder"]), "layers/attention/output/kernel"
    for path, value in flat(merged["encoder"]).items():
        expected = whole[path] * values[..., None, None] if path == kernel else whole[path]
        np.testing.assert_allclose(value, expected, rtol=1e-6)
    outputs = [
        np.asarray(jax.jit(lambda rows, own=own, tree=tree: own.outputs(tree, rows, key=None, train=False))(batch_of()))
        for own, tree in ((OBJECTIVE, params), (WHOLE, merged))
    ]
    np.testing.assert_allclose(*outputs, rtol=1e-4, atol=1e-4)


def test_mistakes_are_refused():
    with pytest.raises(UserError, match=r"HeadGates\.penalty is 0"):
        HeadGates(penalty=0.0)
    with pytest.raises(UserError, match=r"HeadGates\.low is 0"):
        HeadGates(low=0.0)
    with pytest.raises(UserError, match=r"FineTuning\.gates .*FineTuning\.lora"):
        dataclasses.replace(WHOLE, gates=HeadGates(), lora=Lora())
    with pytest.raises(UserError, match="this model has none"):
        SETTINGS.init({})
