"""Fine-tuning: losses and metrics of its heads against NumPy in float64, microbatches, dropout and initial values."""

import argparse
import dataclasses
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import tiny
from flax import linen as nn
from gradients import assert_sums_of_microbatches, compile_loss, random_params

from bertfam.commands.target_flags import text_bindings
from bertfam.errors import UserError
from bertfam.layers.heads.classification import DenseOutputLayer, OutputLayer
from bertfam.models.gpt import GptConfig
from bertfam.models.gpt2 import Gpt2Config
from bertfam.models.roberta import RobertaConfig
from bertfam.objectives.fine_tuning.bodies import DecoderBody
from bertfam.objectives.fine_tuning.heads import (
    Classification,
    MultiLabelClassification,
    MultipleChoice,
    Regression,
    Tagging,
)
from bertfam.objectives.fine_tuning.objective import FineTuning, mean_of_tokens
from bertfam.training.logs.metrics import means

CLASSES = ("bad", "fair", "good")
CLASS_WEIGHTS = (0.5, 1.0, 4.0)
HEADS = {
    "a class": Classification(CLASSES),
    "a class with weights": Classification(CLASSES, CLASS_WEIGHTS),
    "several classes": MultiLabelClassification(CLASSES),
    "a number": Regression(),
}
MODEL = tiny.objective().model
LABELS = ("labels", "label_weights")


def random_labels(head, rows, seed=0):
    """Return labels and weights, of which some are 0: the labels there are 0, as rows have them."""
    generator = np.random.default_rng(seed)
    weights = (generator.random((rows, head.labels)) < 0.7).astype(np.float32)
    if isinstance(head, Regression):
        labels = generator.standard_normal(weights.shape).astype(np.float32)
    else:
        labels = np.float32(generator.integers(0, 2 if head.labels > 1 else head.outputs, weights.shape))
    return labels * weights, weights


def expected_sums(head, outputs, labels, weights):
    """Return (sum, weight) of the loss and of the metric, text by text and label by label in float64."""
    loss = total = metric = known = 0.0
    for row, own, has in zip(np.float64(outputs), np.float64(labels), weights, strict=True):
        if isinstance(head, Classification):
            if has[0]:
                label = int(own[0])
                weight = (head.class_weights or (1.0,) * head.outputs)[label]
                loss -= weight * (row[label] - np.log(np.exp(row).sum()))
                total, known = total + weight, known + 1
                metric += row.argmax() == label
        elif isinstance(head, Regression):
            if has[0]:
                loss, total = loss + (row[0] - own[0]) ** 2, total + 1
                metric, known = metric + abs(row[0] - own[0]), known + 1
        else:
            for output, label, one in zip(row, own, has, strict=True):
                probability = 1 / (1 + np.exp(-output))
                loss -= one * np.log(probability if label else 1 - probability)
                total += one
            if has.all():
                metric, known = metric + ((row > 0) == (own == 1)).all(), known + 1
    return (loss, total), (metric, known)


@pytest.mark.parametrize("name", HEADS)
def test_loss_and_metric_of_a_head_are_those_of_its_known_labels(name):
    head = HEADS[name]
    labels, weights = random_labels(head, 200)
    outputs = np.random.default_rng(1).normal(0, 2, (200, head.outputs)).astype(np.float32)
    loss, metrics, known = jax.jit(lambda *batch: (*head.loss(*batch), head.weights(*batch[1:])))(outputs, labels, weights)
    (total, denominator), metric = expected_sums(head, outputs, labels, weights)
    assert 0 < metric[0] and (metric[0] < metric[1] or isinstance(head, Regression))
    np.testing.assert_allclose(loss, total, rtol=1e-5)
    np.testing.assert_allclose(np.sum(known), denominator, rtol=1e-6)
    np.testing.assert_allclose([*metrics.values()], [metric], rtol=1e-5)


@pytest.mark.parametrize("name", HEADS)
def test_labels_that_are_not_known_add_nothing_whatever_the_outputs_are(name):
    head = HEADS[name]
    labels, weights = random_labels(head, 40)
    outputs = np.random.default_rng(1).normal(0, 2, (40, head.outputs)).astype(np.float32)
    unknown = np.broadcast_to(weights == 0, outputs.shape)
    broken = np.where(unknown, np.float32(np.nan), outputs)
    gradient = jax.jit(jax.value_and_grad(lambda outputs: head.loss(outputs, labels, weights), has_aux=True))
    (results, gradients), (broken_results, broken_gradients) = (jax.device_get(gradient(values)) for values in (outputs, broken))
    assert not broken_gradients[unknown].any() and broken_gradients[~unknown].all()
    jax.tree.map(np.testing.assert_array_equal, broken_results, results)
    np.testing.assert_array_equal(broken_gradients, gradients)


def batch_of(head, rows, seed=0):
    batch = {name: value for name, value in tiny.batch(rows, seed=seed).items() if name.startswith(("encoder", "sequence"))}
    labels, weights = random_labels(head, rows, seed)
    return batch | {"labels": labels, "label_weights": weights}


@pytest.mark.parametrize("name", [name for name in HEADS if name != "a class"])
def test_loss_of_a_batch_is_that_of_its_outputs_and_the_sum_of_its_microbatches(name):
    head = HEADS[name]
    objective = FineTuning(MODEL, head)
    params, batch = random_params(objective), tiny.padded(batch_of(head, 10), 2)
    assert batch.keys() == objective.features(tiny.SHAPE).keys()

    @jax.jit
    def run(rows):
        out = objective.loss(params, {}, {}, rows, key=None, train=False)
        return out, objective.denominators(rows), objective.outputs(params, rows, key=None, train=False)

    out, denominators, outputs = jax.device_get(run(batch))
    (total, denominator), metric = expected_sums(head, outputs, batch["labels"], batch["label_weights"])
    assert (float(out.terms["label"]), float(denominators["label"])) == pytest.approx((total, denominator), rel=1e-4)
    (metric_name,) = out.metrics.keys() - {"label_loss"}
    expected = {"label_loss": total / denominator, metric_name: metric[0] / metric[1]}
    assert means([out.metrics]) == pytest.approx(expected, rel=1e-4)
    assert_sums_of_microbatches(lambda rows: run(rows)[0], batch, rtol=1e-4)


def test_language_model_loss_is_the_mean_over_texts_of_that_of_their_tokens():
    """L3 = L2 + lambda L1 (Radford et al. 2018, section 3.2); a text of one token has no loss."""
    dropout = dict.fromkeys(("embedding_dropout_rate", "dropout_rate", "attention_dropout_rate"), 0.0)
    model = GptConfig(tiny.VOCABULARY, num_layers=1, hidden_size=16, num_heads=2, feed_forward_size=32, max_length=16, **dropout)
    objective, head = FineTuning(model, HEADS["a class"], lm=0.5), HEADS["a class"]
    params, batch = random_params(objective), batch_of(head, 6)
    batch["encoder_segment_ids"] *= np.arange(16) < np.array([16, 1, 16, 9, 16, 2])[:, None]
    run = compile_loss(objective, gradient=False)
    loss, out = run(params, batch)
    hidden, _ = DecoderBody().hidden(model.stacks(), params, batch, train=False, collect=(), rngs=None)
    logits = np.float64(hidden) @ np.float64(params["embeddings"]["table"][: tiny.VOCABULARY].T)
    of_texts = []
    for row, tokens, size in zip(logits, batch["encoder_input_tokens"], batch["encoder_segment_ids"].sum(axis=1), strict=True):
        losses = [np.log(np.exp(row[place]).sum()) - row[place, tokens[place + 1]] for place in range(size - 1)]
        of_texts += [np.mean(losses)] if losses else []
    label = out.metrics["label_loss"].total / out.metrics["label_loss"].weight
    assert len(of_texts) == 5 == round(float(out.metrics["lm_loss"].weight))
    assert float(out.terms["lm"]) == pytest.approx(sum(of_texts), rel=1e-5)
    assert float(loss) == pytest.approx(label + 0.5 * np.mean(of_texts), rel=1e-5)
    assert_sums_of_microbatches(lambda rows: run(params, rows)[1], batch)
    for other in (MODEL, dataclasses.replace(model, tie_embeddings=False)):
        with pytest.raises(UserError, match=r"FineTuning.lm \(--lm_weight\) is 0.5"):
            FineTuning(other, head, lm=0.5)


def test_the_published_coefficient_of_gpt_is_bound_unless_flags_say_otherwise(monkeypatch):
    def bound(model, lm_weight=None, freeze=None, is_bound=False, saved=None):
        monkeypatch.setattr("bertfam.config.objects.described_object", lambda *_: (model, {}))
        args = argparse.Namespace(stride=None, lm_weight=lm_weight, freeze=freeze, init_from="DIR")
        overrides = text_bindings(args, SimpleNamespace(binds=lambda name: is_bound), saved)
        return [override.text for override in overrides if override.text.startswith("FineTuning")]

    assert bound(GptConfig) == ["FineTuning.lm = 0.5"]
    assert bound(GptConfig, 0.2) == bound(GptConfig, freeze="encoder") == bound(GptConfig, is_bound=True) == []
    assert bound(Gpt2Config) == bound(RobertaConfig) == []
    resumed = SimpleNamespace(objective=SimpleNamespace(lm=0.2))
    assert bound(GptConfig, saved=resumed) == ["FineTuning.lm = 0.2"]


def test_outputs_do_not_depend_on_padding_or_other_rows():
    objective = FineTuning(MODEL, HEADS["a class"])
    params, batch = random_params(objective), batch_of(objective.head, 6)
    run = jax.jit(lambda rows: objective.outputs(params, rows, key=None, train=False))
    changed = batch | {"encoder_input_tokens": np.where(batch["encoder_segment_ids"], batch["encoder_input_tokens"], 9)}
    np.testing.assert_allclose(run(changed), run(batch), atol=1e-5)
    np.testing.assert_allclose(run({key: value[::-1] for key, value in batch.items()}), run(batch)[::-1], atol=1e-5)


@pytest.mark.parametrize("kind", ["words", "choices"])
def test_loss_and_gradient_in_training_do_not_depend_on_the_length_of_rows(kind):
    """Rows of 8 tokens, and the same with as much padding; of choices in each of the two parts."""
    head = Tagging(CLASSES) if kind == "words" else MultipleChoice(("0", "1"))
    objective = FineTuning(MODEL, head)
    params, parts, generator = random_params(objective), head.choices, np.random.default_rng(0)
    segments = (np.arange(8) < generator.integers(3, 9, (12, 1))).astype(np.int32)
    tokens = {
        "encoder_input_tokens": segments * generator.integers(5, tiny.VOCABULARY, segments.shape, np.int32),
        "encoder_segment_ids": segments,
        "encoder_token_type_ids": segments * (np.arange(8) > 4).astype(np.int32),
    }
    of_words = {name: generator.integers(0, 2, segments.shape).astype(np.float32) * segments for name in LABELS}
    of_rows = {"labels": generator.integers(0, 2, (12 // parts, 1)).astype(np.float32)}
    of_rows["label_weights"] = np.ones_like(of_rows["labels"])
    starts = {"sequence_start_positions": np.zeros((12 // parts, parts), np.int32)}

    def gradient(length):
        along = tokens | of_words if kind == "words" else tokens
        rows = {name: np.pad(value, ((0, 0), (0, length - 8))).reshape(12 // parts, -1) for name, value in along.items()}
        batch = starts | (rows if kind == "words" else rows | of_rows)
        key = jax.random.key(0)
        return jax.jit(jax.value_and_grad(lambda own: objective.loss(own, {}, {}, batch, key=key, train=True).terms["label"]))(
            params
        )

    for short, long in zip(*(jax.tree.leaves(gradient(length)) for length in (8, 16)), strict=True):
        np.testing.assert_allclose(short, long, rtol=1e-4, atol=1e-5)


def test_mean_of_tokens_leaves_padding_out():
    hidden = np.arange(24, dtype=np.float32).reshape(2, 4, 3)
    segments = np.array([[1, 1, 0, 0], [0, 0, 0, 0]])
    assert mean_of_tokens(hidden, segments).tolist() == [[1.5, 2.5, 3.5], [0, 0, 0]]
    assert mean_of_tokens(hidden.astype("bfloat16"), segments).dtype == "bfloat16"


@pytest.mark.parametrize(
    "layer",
    [OutputLayer(2, 0.5), DenseOutputLayer(2, dropout_rate=0.5), DenseOutputLayer(2, input_dropout_rate=0.5, dropout_rate=0)],
)
def test_output_layers_have_dropout_in_training_only(layer):
    hidden = np.random.default_rng(0).standard_normal((50, 16)).astype(np.float32)
    still = dataclasses.replace(
        layer, dropout_rate=0.0, **({} if isinstance(layer, OutputLayer) else {"input_dropout_rate": 0.0})
    )

    @jax.jit
    def run(hidden):
        params = nn.unbox(layer.init(jax.random.key(0), hidden, train=False))
        train = [layer.apply(params, hidden, train=True, rngs={"dropout": jax.random.key(seed)}) for seed in (1, 2)]
        return train, layer.apply(params, hidden, train=False), still.apply(params, hidden, train=True)

    train, expected, actual = run(hidden)
    assert not np.array_equal(*train)
    np.testing.assert_array_equal(actual, expected)
    assert expected.shape == (50, 2) and expected.dtype == np.float32


def test_initial_parameters_are_an_encoder_a_pooler_where_the_family_has_one_and_a_classifier():
    for model, has_pooler in ((MODEL, True), (RobertaConfig(tiny.VOCABULARY, num_layers=1, hidden_size=16, num_heads=2), False)):
        objective = FineTuning(model, HEADS["a class"])
        boxed, carry, aux = jax.eval_shape(lambda key, one=objective: one.init(key, tiny.SHAPE), jax.random.key(0))
        assert boxed.keys() == {"encoder", "classifier", *(["pooler"] if has_pooler else [])} and carry == aux == {}
        kernel = boxed["classifier"]["output"]["kernel"]
        assert isinstance(kernel, nn.LogicallyPartitioned) and kernel.value.shape == (16, 3)
    layer = RobertaConfig(9, hidden_size=240).classifier(40).output
    init = jax.jit(lambda key: nn.unbox(layer.init(key, np.zeros((1, 240)), train=False)))
    output = jax.device_get(init(jax.random.key(0)))
    for kernel in (layer["kernel"] for layer in output["params"].values()):
        assert 0.015 < kernel.std() < 0.021 and abs(kernel).max() < 0.05
    assert not any(layer["bias"].any() for layer in output["params"].values())


def test_samples_of_tokens_are_refused():
    with pytest.raises(UserError, match="Run.sample_every = 0"):
        FineTuning(MODEL, Regression()).predictions({}, {})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Classification(("a",)), "Classification.classes has 1 name: give at least 2"),
        (lambda: MultiLabelClassification(()), "MultiLabelClassification.classes has 0 names: give at least 1"),
        (lambda: Classification(("a", "b\rc")), "Classification.classes has the name 'b.*' with a line end; rename the class"),
        (lambda: Classification(("a", "b\x1b[31m")), "the name 'b.*' with a control character"),
        (lambda: MultiLabelClassification(("a", 1)), "the name 1 with another type than text"),
        (lambda: Classification(("a", "b", "a")), "Classification.classes has 'a' twice"),
        (lambda: Classification(CLASSES, (1.0, 2.0)), "class_weights has 2 values for 3 classes"),
        (lambda: Classification(CLASSES, (1.0, 0.0, 2.0)), "class_weights .* above 0"),
        (lambda: Classification(CLASSES, (1.0, float("nan"), 2.0)), "class_weights .* above 0"),
        (lambda: Classification(CLASSES, (1.0, 1e9, 2.0)), "class_weights .* below 1,000,000"),
    ],
)
def test_invalid_heads_are_refused(make, message):
    with pytest.raises(UserError, match=message):
        make()
