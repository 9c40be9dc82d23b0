"""SpanBERT's objective: the head and the loss against NumPy in float64."""

import dataclasses

import jax
import numpy as np
import pytest
import tiny
from flax import linen as nn
from gradients import assert_sums_of_microbatches, random_params
from scipy.special import erf
from test_mlm_nsp import numpy_cross_entropy
from test_packed_rows import PACKED, packed

from bertfam.objectives.mlm import Mlm
from bertfam.objectives.spanbert import MlmSbo
from bertfam.training.step import total_loss

OBJECTIVE = MlmSbo(tiny.objective().model, sbo=2.0, places=3, place_size=6)


def batch_of(rows=6, seed=0, counts=None):
    """Return rows with a random span for each slot, some without boundaries, some at places after the third."""
    generator = np.random.default_rng(seed)
    batch = tiny.batch(rows, seed=seed, predictions=counts)
    batch = {name: batch[name] for name in Mlm(OBJECTIVE.model).features(tiny.SHAPE)}
    used = batch["masked_loss_weights"] > 0
    bounded = used & (generator.random(used.shape) < 0.8)
    drawn = {name: generator.integers(0, limit, used.shape) for name, limit in (("left", 7), ("right", 7), ("offsets", 5))}
    names = {"left": "left_positions", "right": "right_positions", "offsets": "offsets"}
    batch |= {f"span_{names[name]}": np.where(bounded, value, 0).astype(np.int32) for name, value in drawn.items()}
    return batch | {"span_loss_weights": np.float32(bounded)}


@pytest.fixture(scope="module")
def params():
    return random_params(OBJECTIVE)


def loss_of(params, batch):
    """Return the loss, and (LossOut, hidden states, logits at the masked positions)."""
    out = OBJECTIVE.loss(params, {}, {}, batch, key=None, train=False)
    hidden = OBJECTIVE.encoded(params, batch, key=None, train=False)
    total = total_loss(out.terms, OBJECTIVE.denominators(batch), OBJECTIVE.coefficients)
    return total, (out, hidden, OBJECTIVE.masked_logits(params, hidden, batch))


compiled_loss = jax.jit(loss_of)


def layer_norm(x, module):
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5) * module["scale"] + module["bias"]


def numpy_head(head, table, left, right, offset):
    """Compute y = LN(gelu(W2 LN(gelu(W1 [left; right; place])))), then apply the word table and the head's own bias."""
    y = np.concatenate([left, right, head["places"][offset]])
    for name in ("first", "second"):
        y = y @ head[name]["kernel"] + head[name]["bias"]
        y = layer_norm(y * 0.5 * (1 + erf(y / np.sqrt(2))), head[f"{name}_norm"])
    return (table @ y + head["bias"])[: tiny.VOCABULARY]


def test_loss_matches_numpy(params):
    """Rows of padding, which the last two are, add nothing."""
    batch = tiny.padded(batch_of(), 2)
    assert batch.keys() == OBJECTIVE.features(tiny.SHAPE).keys()
    loss, (out, hidden, logits) = compiled_loss(params, batch)
    wide = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    hidden, table = np.asarray(hidden, np.float64), wide["encoder"]["embeddings"]["word"]["table"]
    weights = batch["span_loss_weights"] * (batch["span_offsets"] < 3)
    assert 0 < weights.sum() < batch["span_loss_weights"].sum() < batch["masked_loss_weights"].sum()
    shape = (*weights.shape, tiny.VOCABULARY)
    by_boundaries = np.zeros(shape)
    for row, slot in zip(*np.nonzero(weights), strict=True):
        left, right, offset = (batch[f"span_{name}"][row, slot] for name in ("left_positions", "right_positions", "offsets"))
        by_boundaries[row, slot] = numpy_head(wide["sbo_head"], table, hidden[row, left], hidden[row, right], offset)
    mlm = numpy_cross_entropy(
        np.asarray(logits)[..., : tiny.VOCABULARY], batch["masked_target_tokens"], batch["masked_loss_weights"]
    )
    sbo = numpy_cross_entropy(by_boundaries, batch["masked_target_tokens"], weights)
    assert float(loss) == pytest.approx(mlm[0] / mlm[2] + 2 * sbo[0] / sbo[2], rel=1e-5)
    metrics = {name: tuple(map(float, value)) for name, value in out.metrics.items()}
    expected = {"mlm_loss": (mlm[0], mlm[2]), "mlm_accuracy": mlm[1:], "sbo_loss": (sbo[0], sbo[2]), "sbo_accuracy": sbo[1:]}
    assert metrics.keys() == expected.keys()
    for name, numbers in expected.items():
        assert metrics[name] == pytest.approx(numbers, rel=1e-5), name


def test_batch_of_padding_has_loss_0(params):
    nothing = {name: np.zeros_like(value) for name, value in batch_of(8).items()}
    assert float(compiled_loss(params, nothing)[0]) == 0.0


def test_packed_examples_have_the_loss_of_separate_rows(params):
    """Rows 2 i and 2 i + 1 are packed into row i, and their spans move with them."""
    batch, plain = batch_of(8), packed(tiny.batch(8))
    together = {name: plain[name] for name in Mlm(OBJECTIVE.model).features(PACKED)}
    starts = batch["encoder_segment_ids"].sum(axis=1) * (np.arange(8) % 2 == 0)  # tokens before the second example of a row
    starts = np.roll(starts, 1)[:, None] * (batch["span_loss_weights"] > 0)
    for name in ("span_left_positions", "span_right_positions", "span_offsets", "span_loss_weights"):
        moved = batch[name] + starts.astype(np.int32) if name.endswith("positions") else batch[name]
        together[name] = moved.reshape(4, -1)
    assert together.keys() == OBJECTIVE.features(PACKED).keys()
    loss, (alone, *_) = compiled_loss(params, batch)
    packed_loss, (packed_out, *_) = compiled_loss(params, together)
    assert float(packed_loss) == pytest.approx(float(loss), rel=1e-5)
    for name, value in alone.metrics.items():
        np.testing.assert_allclose(packed_out.metrics[name], value, rtol=1e-5, err_msg=name)


def test_sums_of_microbatches_are_those_of_the_batch(params):
    batch = batch_of(8, counts=[4, 0, 1, 0, 4, 0, 3, 0])
    assert_sums_of_microbatches(lambda rows: jax.device_get(compiled_loss(params, rows)[1][0]), batch)


def test_sizes_of_the_published_head():
    """It has two projections of a BERT-base, 20 places of 200, and a bias for each token."""
    model = dataclasses.replace(OBJECTIVE.model, hidden_size=768, num_heads=12, vocab_size=28_996)
    shapes = nn.meta.unbox(jax.eval_shape(lambda key: MlmSbo(model).init(key, tiny.SHAPE)[0], jax.random.key(0)))["sbo_head"]
    count = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    assert count == 20 * 200 + (2 * 768 + 200) * 768 + 768 + 768**2 + 768 + 4 * 768 + 29_056
    assert MlmSbo(model).flops(tiny.SHAPE) - Mlm(model).flops(tiny.SHAPE) == 3 * 4 * (
        2 * 1736 * 768 + 2 * 768**2 + 2 * 768 * 28_996
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sbo": -1.0}, "sbo -1.0 is no coefficient"),
        ({"places": 0}, "places 0 must be at least 1"),
        ({"place_size": 0}, "place_size 0"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(ValueError, match=message):
        MlmSbo(OBJECTIVE.model, **settings)
