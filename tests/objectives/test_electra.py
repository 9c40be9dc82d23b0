"""ELECTRA's objective against NumPy in float64, its labels against its inputs, its samples against their softmax."""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from chi_square import chi_square_limit
from flax import linen as nn
from gradients import compile_loss, random_params
from test_packed_rows import packed

from bertfam.layers.lookup import gather_positions, put_positions
from bertfam.layers.sampling import keys_of_rows, sample
from bertfam.models.electra import ElectraConfig, replaced_token_head
from bertfam.objectives.electra import Electra
from bertfam.objectives.objective import binary_cross_entropy

GOLDEN = Path(__file__).parents[1] / "models" / "golden" / "electra_parameters.json"
SIZES = {"num_layers": 2, "hidden_size": 16, "num_heads": 2, "feed_forward_size": 32, "max_length": 32, "embedding_size": 12}
MODEL = ElectraConfig(vocab_size=tiny.VOCABULARY, **SIZES, dropout_rate=0.0, attention_dropout_rate=0.0)
OBJECTIVE = Electra(MODEL, generator_width=0.5)
# Sampling always gives the most likely token.
CERTAIN = dataclasses.replace(OBJECTIVE, temperature=1e-6)
RTD_METRICS = {"rtd_loss", "rtd_accuracy", "rtd_precision", "rtd_recall", "rtd_majority_accuracy"}
PREFERRED = 7
METRICS = {"mlm_loss", "mlm_accuracy"} | RTD_METRICS


@pytest.fixture(scope="module")
def params():
    """Return random parameters, including biases and norm scales.

    The generator prefers one token, and the discriminator calls some tokens replaced and others not.
    """
    params = random_params(OBJECTIVE, scale=0.5)
    params["mlm_head"]["bias"][PREFERRED] = 12.0
    params["rtd_head"]["prediction"]["bias"][:] = 1.4
    return params


value_and_gradient, certain = compile_loss(OBJECTIVE), compile_loss(CERTAIN, gradient=False)


def hidden_of(config, encoder, batch, tokens):
    hidden, _ = config.encoder().apply(
        {"params": encoder},
        tokens,
        segment_ids=batch["encoder_segment_ids"],
        token_type_ids=batch["encoder_token_type_ids"],
        train=False,
    )
    return hidden


@jax.jit
def logits_of(params, batch):
    """Return the generator's logits, the discriminator's inputs, and its logits, computed by the networks themselves."""
    config = MODEL.generator(0.5, 1.0)
    embeddings = params["embeddings"] | params["generator"]["embeddings"]
    hidden = hidden_of(config, params["generator"] | {"embeddings": embeddings}, batch, batch["encoder_input_tokens"])
    masked = gather_positions(hidden, batch["masked_positions"])
    logits = config.masked_lm_head().apply({"params": params["mlm_head"]}, masked, embeddings["word"]["table"])
    inputs = OBJECTIVE.replaced(logits, batch)[0]["encoder_input_tokens"]
    embeddings = params["embeddings"] | params["discriminator"]["embeddings"]
    hidden = hidden_of(MODEL, params["discriminator"] | {"embeddings": embeddings}, batch, inputs)
    return logits, inputs, replaced_token_head(MODEL).apply({"params": params["rtd_head"]}, hidden)


def originals(batch):
    """Return the text before the noise."""
    text = batch["encoder_input_tokens"].copy()
    for row, places in enumerate(batch["masked_positions"]):
        for place, target, weight in zip(
            places, batch["masked_target_tokens"][row], batch["masked_loss_weights"][row], strict=True
        ):
            text[row, place] = target if weight else text[row, place]
    return text


def test_loss_matches_the_logits(params):
    batch = tiny.batch(8)
    batch["masked_target_tokens"][::2] = PREFERRED
    logits, inputs, rtd_logits = jax.device_get(logits_of(params, batch))
    mlm = hits = 0.0
    for row, slot in zip(*np.nonzero(batch["masked_loss_weights"]), strict=True):
        scores, target = logits[row, slot, : tiny.VOCABULARY].astype(np.float64), batch["masked_target_tokens"][row, slot]
        mlm += np.log(np.sum(np.exp(scores))) - scores[target]
        hits += scores.argmax() == target
    masks = float(batch["masked_loss_weights"].sum())
    # Labels mark what differs, over all real tokens, including [CLS] and [SEP].
    labels, real = inputs != originals(batch), batch["encoder_segment_ids"] > 0
    probability = 1 / (1 + np.exp(-rtd_logits.astype(np.float64)))
    rtd = -np.sum(np.log(np.where(labels, probability, 1 - probability))[real])
    (loss, out), _ = value_and_gradient(params, batch)
    tokens, positive, predicted = float(real.sum()), float(labels.sum()), (rtd_logits > 0) & real
    assert 0 < positive < masks and 0 < predicted.sum() < tokens
    assert float(loss) == pytest.approx(mlm / masks + 50 * rtd / tokens, rel=1e-5)
    metrics = {name: tuple(map(float, value)) for name, value in out.metrics.items()}
    expected = {
        "mlm_loss": (mlm, masks),
        "mlm_accuracy": (hits, masks),
        "rtd_loss": (rtd, tokens),
        "rtd_accuracy": ((predicted == labels)[real].sum(), tokens),
        "rtd_precision": ((predicted & labels).sum(), predicted.sum()),
        "rtd_recall": ((predicted & labels).sum(), positive),
        "rtd_majority_accuracy": (tokens - positive, tokens),
    }
    assert metrics.keys() == expected.keys() == METRICS
    for name, numbers in expected.items():
        assert metrics[name] == pytest.approx(numbers, rel=1e-5), name


def test_binary_cross_entropy_of_four_places():
    """A fifth place of weight 0 adds exactly nothing."""
    logits, labels, weights = [2.0, -1.0, 0.0, 5.0], np.float32([1, 1, 0, 0, 1]), np.float32([1, 1, 1, 0.5, 0])
    expected = np.log1p(np.exp(-2.0)) + np.log1p(np.exp(1.0)) + np.log(2) + 0.5 * np.log1p(np.exp(5.0))
    value_and_gradient_of = jax.jit(jax.value_and_grad(binary_cross_entropy))
    for last in (0.0, np.inf, np.nan):
        value, gradient = value_and_gradient_of(np.float32([*logits, last]), labels, weights)
        assert float(value) == pytest.approx(expected, rel=1e-6) and float(gradient[-1]) == 0


def test_put_positions():
    """Position 0 is written as any other; unused slots are not written."""
    tokens, used = np.array([[7, 8, 9], [7, 8, 9]]), np.array([[True, True], [True, False]])
    written = jax.jit(put_positions)(tokens, np.array([[0, 2], [1, 0]]), np.array([[0, 5], [4, 3]]), used)
    assert written.tolist() == [[0, 8, 5], [7, 4, 9]]


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_samples_follow_the_softmax(temperature):
    logits = np.array([2.0, 0.0, 1.0, -1.0, 0.5, -1e9], np.float32)
    rows = np.arange(3 * 6000, dtype=np.int32).reshape(6000, 3)
    drawn = jax.jit(lambda temperature: sample(jnp.broadcast_to(logits, (6000, 2, 6)), keys_of_rows(rows), temperature))
    samples = np.asarray(drawn(temperature))
    shares = np.exp(logits / temperature)
    shares /= shares.sum()
    joint = np.bincount(samples[:, 0] * 6 + samples[:, 1], minlength=36).reshape(6, 6)
    assert not joint[5].any() and not joint[:, 5].any()  # no token
    expected = 6000 * np.outer(shares, shares)[:5, :5]
    assert ((joint[:5, :5] - expected) ** 2 / expected).sum() < chi_square_limit(24)  # slots are independent, too


def test_keys_are_functions_of_the_rows():
    generator = np.random.default_rng(0)
    rows = generator.integers(0, 5, (4000, 16)).astype(np.int32)
    rows[1:17] = rows[0] + np.eye(16, dtype=np.int32)  # one token differs
    key_data = jax.jit(lambda rows: jax.random.key_data(keys_of_rows(rows)))
    keys = np.asarray(key_data(rows))
    assert len(np.unique(keys, axis=0)) == len(np.unique(rows, axis=0))
    assert np.array_equal(key_data(rows[::-1]), keys[::-1]) and np.array_equal(key_data(rows[::-7]), keys[::-7])


@jax.jit
def replace_tokens(logits, batch):
    inputs, labels = OBJECTIVE.replaced(logits, batch)
    return inputs["encoder_input_tokens"], labels


def test_labels_mark_differences_and_vanish_as_the_generator_improves():
    """Texts are of three tokens, of which the generator often guesses the right one."""
    batch = tiny.batch(200)
    for name in ("encoder_input_tokens", "masked_target_tokens"):
        batch[name] = np.where(batch[name] > 7, 5 + batch[name] % 3, batch[name])
    used, text = batch["masked_loss_weights"] > 0, originals(batch)
    target = np.eye(8)[batch["masked_target_tokens"]]
    shares = []
    for certainty in (0.0, 2.0, 30.0):
        logits = np.where(np.arange(8) > 4, certainty * target, -1e9)
        inputs, labels = jax.device_get(replace_tokens(np.float32(logits), batch))
        assert np.array_equal(labels, inputs != text)
        chosen = np.zeros(text.shape, bool)
        chosen[np.nonzero(used)[0], batch["masked_positions"][used]] = True
        assert not labels[~chosen].any() and np.isin(inputs[chosen], (5, 6, 7)).all()
        assert np.array_equal(inputs[~chosen], batch["encoder_input_tokens"][~chosen])
        shares.append(labels.sum() / used.sum())
    expected = 1 - np.array([1 / 3, np.e**2 / (np.e**2 + 2)])
    assert np.all(np.abs(np.array(shares[:2]) - expected) < 4 * np.sqrt(0.25 / used.sum())) and shares[2] == 0


def test_no_gradient_passes_the_sampling_and_both_networks_train_embeddings(params):
    batch = tiny.batch(8)
    (_, total), (_, mlm), (_, rtd) = (
        value_and_gradient(params, batch, **weights) for weights in ({}, {"rtd": 0.0}, {"mlm": 0.0, "rtd": 1.0})
    )
    for own, other, parts in ((mlm, rtd, ("generator", "mlm_head")), (rtd, mlm, ("discriminator", "rtd_head"))):
        for part in parts:
            assert not any(np.any(leaf) for leaf in jax.tree.leaves(other[part]))
            assert any(np.any(leaf) for leaf in jax.tree.leaves(own[part]))
        assert all(np.any(leaf) for leaf in jax.tree.leaves(own["embeddings"]))
    for leaves in zip(*(jax.tree.leaves(tree) for tree in (total, mlm, rtd)), strict=True):
        np.testing.assert_allclose(leaves[0], leaves[1] + 50 * leaves[2], rtol=1e-4, atol=1e-4)


def test_rows_are_independent_and_padding_adds_nothing(params):
    """Terms and metrics of a batch are the sums of those of its halves, each filled up with padding; the gradient too.

    Samples are the same: they depend on the rows only.
    """
    batch = tiny.batch(8)
    halves = [tiny.padded({name: value[rows] for name, value in batch.items()}, 4) for rows in (slice(4), slice(4, 8))]
    ((_, whole), gradient), *results = (value_and_gradient(params, rows) for rows in (batch, *halves))
    for name, value in whole.metrics.items():
        summed = np.sum([out.metrics[name] for (_, out), _ in results], axis=0)
        assert tuple(summed) == pytest.approx(tuple(map(float, value)), rel=1e-5), name
    # The means of the halves, weighted by their shares of each term's denominator, add up to the mean of the batch.
    shares = [
        {name: OBJECTIVE.denominators(half)[name] / size for name, size in OBJECTIVE.denominators(batch).items()}
        for half in halves
    ]
    weighted = [
        value_and_gradient(params, half, **{name: share * OBJECTIVE.coefficients[name] for name, share in half_shares.items()})[1]
        for half, half_shares in zip(halves, shares, strict=True)
    ]
    for left, *right in zip(jax.tree.leaves(gradient), *map(jax.tree.leaves, weighted), strict=True):
        np.testing.assert_allclose(sum(right), left, rtol=1e-4, atol=1e-4)


def test_batch_without_targets_has_loss_0_and_no_nan(params):
    empty = {name: np.zeros_like(value) for name, value in tiny.batch(8).items()}
    (loss, out), gradient = value_and_gradient(params, empty)
    assert float(loss) == 0.0 and all(not np.any(leaf) for leaf in jax.tree.leaves(gradient))  # NaN would be true
    assert {name: (float(value.total), float(value.weight)) for name, value in out.metrics.items()} == dict.fromkeys(
        METRICS, (0, 0)
    )
    no_masks = tiny.batch(8, predictions=[0] * 8)
    (loss, out), _ = value_and_gradient(params, no_masks)
    assert float(loss) == pytest.approx(50 * float(out.metrics["rtd_loss"].total / out.metrics["rtd_loss"].weight), rel=1e-6)
    majority, recall = out.metrics["rtd_majority_accuracy"], out.metrics["rtd_recall"]
    assert majority.total == majority.weight > 0 and recall.weight == 0


def test_packed_examples_have_the_loss_of_separate_rows(params):
    batch = tiny.batch(8)
    (loss, alone), (packed_loss, together) = certain(params, batch), certain(params, packed(batch))
    assert float(packed_loss) == pytest.approx(float(loss), rel=1e-5)
    for name, metric in alone.metrics.items():
        np.testing.assert_allclose(together.metrics[name], metric, rtol=1e-5)


def test_parameter_tree_is_the_published_one():
    """There is one module of embeddings; each network has its layers and its projection from the tables' width."""
    boxes = jax.tree_util.tree_leaves_with_path(
        jax.eval_shape(lambda key: OBJECTIVE.init(key, tiny.SHAPE)[0], jax.random.key(0)),
        is_leaf=lambda leaf: isinstance(leaf, nn.LogicallyPartitioned),
    )
    tree = {"/".join(key.key for key in path): [list(box.value.shape), list(box.names)] for path, box in boxes}
    assert tree == json.loads(GOLDEN.read_text())
    of_one_width = Electra(dataclasses.replace(MODEL, embedding_size=None), generator_width=0.5)
    tree = jax.eval_shape(lambda key: of_one_width.init(key, tiny.SHAPE)[0], jax.random.key(0))
    assert tree["discriminator"].keys() == {"layers"} and tree["generator"].keys() == {"layers", "embeddings"}


def test_split_and_joined_networks(params):
    trees = OBJECTIVE.split(params)
    assert [*trees] == [*OBJECTIVE.networks] == ["discriminator", "generator"]
    assert trees["discriminator"].keys() == {"encoder", "rtd_head"} and trees["generator"].keys() == {"encoder", "mlm_head"}
    back = OBJECTIVE.joined(trees)
    assert jax.tree.structure(back) == jax.tree.structure(params)
    assert all(left is right for left, right in zip(jax.tree.leaves(back), jax.tree.leaves(params), strict=True))
    alone = OBJECTIVE.joined({"discriminator": trees["discriminator"]})
    assert alone.keys() == {"embeddings", "discriminator", "rtd_head"} and OBJECTIVE.split(alone).keys() == {"discriminator"}


def test_activations_and_predictions_are_of_the_right_networks(params):
    batch = tiny.batch(8)

    @jax.jit
    def inspect(params, batch):
        activations = OBJECTIVE.activations(params, batch)
        last = activations["discriminator"][0][-1]
        head = replaced_token_head(MODEL).apply({"params": params["rtd_head"]}, last)
        return activations, OBJECTIVE.predictions(params, batch), head

    activations, predicted, head = jax.device_get(inspect(params, batch))
    shapes = {name: states.shape for name, (states, _) in activations.items()}
    assert shapes == {"discriminator": (3, 8, 16, 16), "generator": (3, 8, 16, 8)}
    logits, _, last = jax.device_get(logits_of(params, batch))
    real = batch["encoder_segment_ids"] > 0
    np.testing.assert_allclose(head[real], last[real], atol=1e-4)
    assert np.array_equal(predicted.tokens, np.argmax(logits, axis=-1))


def test_flops_and_invalid_settings():
    discriminator, generator = OBJECTIVE.networks.values()
    head = 3 * 16 * (2 * 16 * 16 + 2 * 16)
    assert OBJECTIVE.flops(tiny.SHAPE) == discriminator.flops(16, 0) + generator.flops(16, 4) + head
    for settings, message in (
        ({"temperature": 0.0}, "temperature 0.0 must be above 0"),
        ({"generator_depth": -1.0}, "generator_depth -1.0 must be above 0"),
        ({"mlm": 0.0, "rtd": 0.0}, "mlm and rtd are both 0: nothing would be learnt; set one above 0"),
    ):
        with pytest.raises(ValueError, match=message):
            Electra(MODEL, **settings)
