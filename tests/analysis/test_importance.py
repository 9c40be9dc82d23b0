"""Importance of heads and neurons: finite differences of each row's loss, in every kind of network and layout of layers."""

import dataclasses

import jax
import numpy as np
import pytest
import tiny
from flax import linen as nn

from bertfam.analysis.importance import GateGradients, Importance, least_important, most_important
from bertfam.features import RowShape
from bertfam.layers.execution import Execution
from bertfam.models.albert import AlbertConfig
from bertfam.models.bart import BartConfig
from bertfam.models.pruning import HEADS, NEURONS, masked
from bertfam.objectives.bert import MlmNsp
from bertfam.objectives.sequence_to_sequence import SequenceToSequence

SIZES = {"vocab_size": tiny.VOCABULARY, "num_layers": 2, "hidden_size": 16, "num_heads": 2, "feed_forward_size": 8}
SHARED = AlbertConfig(**SIZES, max_length=32, embedding_size=16)
ENCODER_DECODER = BartConfig(**SIZES, max_length=32, num_encoder_layers=1)
CASES = {
    "scanned": (tiny.objective(), tiny.SHAPE),
    "unrolled": (dataclasses.replace(tiny.objective(), execution=Execution(layers="unroll")), tiny.SHAPE),
    "shared layers": (MlmNsp(SHARED), tiny.SHAPE),
    "encoder-decoder": (SequenceToSequence(ENCODER_DECODER), RowShape(length=16, predictions=4, targets=8)),
}


def opened(objective, shape):
    """Return the boxed parameters of an objective, and random ones."""
    boxed = jax.eval_shape(lambda key: objective.init(key, shape)[0], jax.random.key(0))
    generator = np.random.default_rng(0)
    return boxed, jax.tree.map(lambda leaf: 0.3 * generator.standard_normal(leaf.shape, np.float32), nn.meta.unbox(boxed))


@pytest.mark.parametrize(("case", "axis"), [(name, HEADS) for name in CASES] + [("scanned", NEURONS)])
def test_finite_differences(case, axis):
    objective, shape = CASES[case]
    boxed, params = opened(objective, shape)
    batch = {name: value for name, value in tiny.batch(4, shape).items() if name in objective.features(shape)}
    gradients = GateGradients(objective, boxed, axis)
    filled = tiny.padded(batch, 1)
    found = gradients.importance(params, [filled], 4)
    gates = {site: np.asarray(gate) for site, gate in gradients.gates().items()}
    generator, step = np.random.default_rng(1), 1e-2
    for site, values in found.values.items():
        for place in {tuple(generator.integers(0, values.shape).tolist()) for _ in range(3)}:
            expected = 0.0
            for row in range(4):
                losses = []
                for sign in (1, -1):
                    moved = {**gates, site: gates[site].copy()}
                    moved[site][place] += sign * step
                    losses.append(float(gradients.loss(moved, params, {name: value[row] for name, value in batch.items()})))
                expected += abs(losses[0] - losses[1]) / (2 * step) / 4
            assert values[place] == pytest.approx(expected, rel=2e-2, abs=2e-4), (site, place)


def test_gates_of_zero_are_masks():
    objective, shape = CASES["encoder-decoder"]
    boxed, params = opened(objective, shape)
    gradients = GateGradients(objective, boxed, HEADS)
    row = {name: value[0] for name, value in tiny.batch(1, shape).items() if name in objective.features(shape)}
    gates = gradients.gates()
    assert {site[-3:] for site in gates} == {
        ("encoder", "layers", "attention"),
        ("decoder", "layers", "attention"),
        ("decoder", "layers", "cross_attention"),
    }
    removed = {site: np.arange(gate.size).reshape(gate.shape) % 2 == 0 for site, gate in gates.items()}
    closed = {site: np.where(removed[site], 0, gate).astype(np.float32) for site, gate in gates.items()}
    whole, zeros = (float(gradients.loss(own, params, row)) for own in (gates, closed))
    assert abs(whole - zeros) > 5e-4
    assert float(gradients.loss(gates, masked(boxed, params, removed, HEADS), row)) == pytest.approx(zeros, rel=1e-6)


def test_ranks():
    own = {("a",): np.array([[3.0, 4.0], [0.0, 0.0]]), ("b",): np.array([[1.0, 0.0]])}
    normalised = Importance(own, 1).normalised
    np.testing.assert_allclose(normalised["a",], [[0.6, 0.8], [0, 0]])
    assert least_important(normalised, 4)["a",].tolist() == [[True, False], [True, True]]
    assert least_important(normalised, 4)["b",].tolist() == [[False, True]]
    assert most_important(normalised, 1)["a",].tolist() == [[1], [0]]
