"""BERT's objective against NumPy in float64; padding and places of weight 0 add nothing to it."""

import dataclasses

import jax
import numpy as np
import pytest
import tiny
from gradients import compile_loss, random_params

from bertfam.errors import UserError
from bertfam.features import RowShape
from bertfam.layers.lookup import gather_positions
from bertfam.models.bert import Encoder
from bertfam.models.encoder import pooler, sentence_head, word_table
from bertfam.objectives.objective import masked_cross_entropy
from bertfam.training.step import total_loss

OBJECTIVE = tiny.objective()


@pytest.fixture(scope="module")
def params():
    """Return random parameters, including biases and norm scales."""
    return random_params(OBJECTIVE)


value_and_gradient = compile_loss(OBJECTIVE)


@jax.jit
def logits_of(params, batch):
    config = OBJECTIVE.model
    hidden, _ = Encoder(config).apply(
        {"params": params["encoder"]},
        batch["encoder_input_tokens"],
        segment_ids=batch["encoder_segment_ids"],
        token_type_ids=batch["encoder_token_type_ids"],
        train=False,
    )
    masked = gather_positions(hidden, batch["masked_positions"])
    pooled = pooler(config).apply({"params": params["pooler"]}, hidden[:, :1])
    return (
        config.masked_lm_head().apply({"params": params["mlm_head"]}, masked, word_table(params))[..., : tiny.VOCABULARY],
        sentence_head(config).apply({"params": params["nsp_head"]}, pooled),
    )


def numpy_cross_entropy(logits, targets, weights):
    """Return the sums of cross-entropies, hits and weights, added place by place in float64."""
    loss = hits = 0.0
    for row, target, weight in zip(logits.reshape(-1, logits.shape[-1]), targets.ravel(), weights.ravel(), strict=True):
        row = np.asarray(row, np.float64)
        loss += weight * (np.log(np.sum(np.exp(row - row.max()))) + row.max() - row[target])
        hits += weight * (np.argmax(row) == target)
    return loss, hits, weights.sum(dtype=np.float64)


def test_cross_entropy_of_three_places():
    logits = np.float32([[2.0, 0.0, -1.0], [0.5, 0.5, 0.5], [-3.0, 1.0, 4.0]])
    loss, accuracy = jax.jit(masked_cross_entropy)(logits, np.array([0, 2, 1]), np.float32([1.0, 1.0, 0.5]))
    parts = [np.log(np.e**2 + 1 + np.e**-1) - 2, np.log(3), np.log(np.e**-3 + np.e + np.e**4) - 1]
    assert float(loss) == pytest.approx(parts[0] + parts[1] + 0.5 * parts[2], rel=1e-6)
    assert (float(accuracy.total), float(accuracy.weight)) == (1.0, 2.5)


sum_and_gradient = jax.jit(jax.value_and_grad(lambda *args: masked_cross_entropy(*args)[0]))


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_place_of_weight_0_adds_exactly_nothing(bad):
    generator = np.random.default_rng(0)
    logits = generator.standard_normal((2, 3, 7)).astype(np.float32)
    targets, weights = generator.integers(0, 7, (2, 3)), np.array([[1, 0, 1], [0, 0, 1]], np.float32)
    corrupted = np.where(weights[..., None] > 0, logits, bad)
    corrupted[1, 0, 1:] = 0  # one bad class among good ones

    (loss, expected), (actual, gradient) = (
        jax.device_get(sum_and_gradient(rows, targets, weights)) for rows in (logits, corrupted)
    )
    assert float(actual) == float(loss)
    assert np.array_equal(gradient, expected) and not gradient[weights == 0].any() and gradient[weights > 0].any()


def test_loss_matches_the_logits(params):
    batch = tiny.batch(5)
    mlm_logits, nsp_logits = jax.device_get(logits_of(params, batch))
    mlm, mlm_hits, mlm_weight = numpy_cross_entropy(mlm_logits, batch["masked_target_tokens"], batch["masked_loss_weights"])
    nsp, nsp_hits, nsp_weight = numpy_cross_entropy(nsp_logits, batch["next_sentence_labels"], batch["next_sentence_weights"])
    (loss, out), _ = value_and_gradient(params, batch)
    assert float(loss) == pytest.approx(mlm / mlm_weight + nsp / nsp_weight, rel=1e-6)
    assert 1 < float(loss) < 100 and mlm_weight < batch["masked_loss_weights"].size
    metrics = {name: tuple(map(float, value)) for name, value in out.metrics.items()}
    expected = {
        "mlm_loss": (mlm, mlm_weight),
        "mlm_accuracy": (mlm_hits, mlm_weight),
        "nsp_loss": (nsp, nsp_weight),
        "nsp_accuracy": (nsp_hits, nsp_weight),
    }
    assert metrics.keys() == expected.keys()
    for name, numbers in expected.items():
        assert metrics[name] == pytest.approx(numbers, rel=1e-5), name


def test_coefficients():
    terms, sizes = ({"mlm": np.float32(mlm), "nsp": np.float32(nsp)} for mlm, nsp in ((6, 8), (3, 2)))
    weighted = tiny.objective(mlm=0.5, nsp=3.0)
    assert float(jax.jit(lambda: total_loss(terms, sizes, weighted.coefficients))()) == 0.5 * 2 + 3 * 4


def test_rows_of_padding_add_nothing(params):
    """A fully padded row attends to nothing: its hidden states are meaningless, but finite."""
    batch = tiny.batch(5)
    (loss, out), gradient = value_and_gradient(params, batch)
    (padded_loss, padded_out), padded_gradient = value_and_gradient(params, tiny.padded(batch, 3))
    assert float(padded_loss) == pytest.approx(float(loss), rel=1e-6)
    for name, value in out.metrics.items():
        assert tuple(map(float, padded_out.metrics[name])) == pytest.approx(tuple(map(float, value)), rel=1e-6)
    for left, right in zip(jax.tree.leaves(gradient), jax.tree.leaves(padded_gradient), strict=True):
        np.testing.assert_allclose(right, left, rtol=1e-5, atol=1e-6)


def test_batch_without_targets_has_loss_0_and_no_nan(params):
    empty = {name: np.zeros_like(value) for name, value in tiny.batch(5).items()}
    specials = tiny.batch(5, predictions=[0] * 5) | {"next_sentence_weights": np.zeros((5, 1), np.float32)}
    for batch in (empty, specials):
        (loss, out), gradient = value_and_gradient(params, batch)
        assert float(loss) == 0.0
        assert {name: (float(value.total), float(value.weight)) for name, value in out.metrics.items()} == dict.fromkeys(
            ("mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy"), (0.0, 0.0)
        )
        assert all(not np.any(leaf) for leaf in jax.tree.leaves(gradient))  # NaN would be true
    no_masks = tiny.batch(5, predictions=[0] * 5)
    (loss, out), _ = value_and_gradient(params, no_masks)
    assert float(loss) == pytest.approx(float(out.metrics["nsp_loss"].total) / 5, rel=1e-6) and float(loss) > 0


def test_unsuitable_sizes_are_refused():
    with pytest.raises(UserError) as caught:
        OBJECTIVE.features(RowShape(33, 5))
    assert str(caught.value) == (
        "Stage.length 33 is more than BertConfig.max_length 32; shorten the rows, or enlarge the model's table of positions"
    )
    with pytest.raises(UserError) as caught:
        OBJECTIVE.sized(51)
    assert str(caught.value) == (
        "BertConfig.vocab_size is 50 and the vocabulary has 51 tokens; leave vocab_size out, or give the vocabulary that it was "
        "meant for"
    )
    free = dataclasses.replace(OBJECTIVE, model=dataclasses.replace(OBJECTIVE.model, vocab_size=None))
    assert free.sized(51).model.vocab_size == 51
