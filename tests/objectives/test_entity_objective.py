"""Denoising entity auto-encoder: the loss against NumPy in float64, and the folders that it reads."""

import dataclasses

import jax
import numpy as np
import pytest
import tiny
from entity_folders import write_folder
from gradients import compile_loss, random_params
from scipy.special import erf

from bertfam.errors import UserError
from bertfam.features import entity_features
from bertfam.layers.execution import Execution
from bertfam.models.entity_ernie import AlignedEntities, EntityErnieConfig
from bertfam.objectives.bert import MlmNsp
from bertfam.objectives.representations.entities import MlmNspDea

SIZES = {"num_layers": 2, "hidden_size": 16, "num_heads": 2, "feed_forward_size": 32, "max_length": 32, "text_layers": 0}
MODEL = EntityErnieConfig(tiny.VOCABULARY, **SIZES, entity_size=6, entity_heads=2, dropout_rate=0.0, attention_dropout_rate=0.0)
ENTITIES, ROWS = 9, 6


@pytest.fixture(scope="module")
def objective(tmp_path_factory):
    pieces = [(5 + number,) for number in range(ENTITIES)]
    path = write_folder(tmp_path_factory.mktemp("entities"), pieces, tiny.VOCABULARY)
    return MlmNspDea(MODEL, Execution(layers="unroll"), nsp=0.5, dea=2.0, entities=str(path))


@pytest.fixture(scope="module")
def loss_and_gradient(objective):
    return compile_loss(objective)


@pytest.fixture(scope="module")
def params(objective):
    return random_params(objective)


@pytest.fixture(scope="module")
def batch():
    """Return rows with 2, 1, 0, 2, 1 and 2 entities, of which some are seen as others or not at all."""
    generator = np.random.default_rng(2)
    batch = tiny.batch(ROWS, seed=1)
    slots = entity_features(tiny.SHAPE)["entity_targets"].shape[0]
    used = np.arange(slots) < np.array([2, 1, 0, 2, 1, 2])[:, None]
    positions = np.where(used, np.stack([np.sort(generator.permutation(np.arange(1, 8))[:slots]) for _ in range(ROWS)]), 0)
    targets = np.where(used, generator.choice([1, 3, 4, 8], used.shape), 0)
    seen = np.zeros(batch["encoder_input_tokens"].shape, np.int32)
    row, slot = np.nonzero(used)
    seen[row, positions[row, slot]] = np.where(np.arange(len(row)) % 3 == 1, 0, targets[row, slot])
    seen[row[0], positions[row[0], slot[0]]] = 2  # an entity that is no candidate
    entities = {"encoder_entity_ids": seen, "entity_positions": positions, "entity_targets": targets}
    return (
        batch
        | {name: value.astype(np.int32) for name, value in entities.items()}
        | {"entity_loss_weights": used.astype(np.float32)}
    )


@pytest.fixture(scope="module")
def table(objective):
    return np.float32(objective.read_aux(Vocabulary("digest"))["entities"])


@dataclasses.dataclass
class Vocabulary:
    """Vocabulary of which only the digest is read."""

    fingerprint: str


def projected(head, hidden):
    """Compute LN(gelu(W h + b)) in float64."""
    y = hidden @ head["dense"]["kernel"] + head["dense"]["bias"]
    y = y * 0.5 * (1 + erf(y / np.sqrt(2)))
    centred = y - y.mean()
    return centred / np.sqrt((centred**2).mean() + 1e-12) * head["norm"]["scale"] + head["norm"]["bias"]


def test_loss_matches_numpy(objective, loss_and_gradient, params, batch, table):
    """The candidates are the entities to predict in the batch, each once; padding rows and unused slots add nothing."""
    padded = tiny.padded(batch, 2)
    assert padded.keys() == objective.features(tiny.SHAPE).keys()
    (loss, out), gradient = loss_and_gradient(params, padded, {"entities": table})
    vectors = AlignedEntities(table[batch["encoder_entity_ids"]], batch["encoder_entity_ids"] > 0)
    encode = jax.jit(lambda params, **inputs: MODEL.encoder().apply({"params": params}, **inputs, train=False)[0])
    inputs = {name: batch[f"encoder_{name}"] for name in ("segment_ids", "token_type_ids")}
    hidden = np.asarray(encode(params["encoder"], tokens=batch["encoder_input_tokens"], entities=vectors, **inputs), np.float64)
    head = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params["entity_head"])
    row, slot = np.nonzero(batch["entity_loss_weights"])
    targets = batch["entity_targets"][row, slot]
    candidates = sorted(set(targets.tolist()))
    assert 1 < len(candidates) < len(targets) < objective.features(tiny.SHAPE)["entity_targets"].shape[0] * ROWS
    losses, hits = [], 0
    for place, position, target in zip(row, batch["entity_positions"][row, slot], targets, strict=True):
        logits = np.asarray(table[candidates], np.float64) @ projected(head, hidden[place, position])
        losses.append(np.log(np.exp(logits).sum()) - logits[candidates.index(target)])
        hits += candidates[np.argmax(logits)] == target
    assert out.terms["dea"] == pytest.approx(sum(losses), rel=1e-5)
    assert [float(value) for value in out.metrics["dea_accuracy"]] == [hits, len(targets)]
    assert [float(value) for value in out.metrics["dea_majority_accuracy"]] == [np.bincount(targets).max(), len(targets)]
    means = {name: out.terms[name] / float(objective.denominators(padded)[name]) for name in out.terms}
    assert loss == pytest.approx(means["mlm"] + 0.5 * means["nsp"] + 2.0 * means["dea"], rel=1e-5)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    assert np.abs(gradient["entity_head"]["dense"]["kernel"]).max() > 1e-3


def test_batch_without_entities(objective, loss_and_gradient, params, batch, table):
    """The loss and its gradient are those of the other terms; evaluation without entities reads the text alone."""
    batch = tiny.padded(batch, 2)
    empty = batch | {name: np.zeros_like(batch[name]) for name in entity_features(tiny.SHAPE)}
    (loss, out), gradient = loss_and_gradient(params, empty, {"entities": table})
    rest = MlmNsp(MODEL, objective.execution, nsp=0.5)
    own = {name: value for name, value in params.items() if name != "entity_head"}
    (expected, _), gradient_of_rest = compile_loss(rest)(own, batch)
    assert loss == pytest.approx(expected, rel=1e-6) and out.metrics["dea_loss"].weight == 0
    assert not any(leaf.any() for leaf in jax.tree.leaves(gradient.pop("entity_head")))
    for left, right in zip(*map(jax.tree.leaves, (gradient, gradient_of_rest)), strict=True):
        np.testing.assert_allclose(left, right, atol=1e-5)
    tokens = [jax.jit(one.predictions)(values, batch).tokens for one, values in ((objective, params), (rest, own))]
    np.testing.assert_array_equal(*tokens)


def test_published_sizes_stand_for_a_folder_in_plans():
    objective = MlmNspDea(EntityErnieConfig(vocab_size=30_522))
    aux = jax.eval_shape(lambda: objective.init(jax.random.key(0), tiny.SHAPE))[2]
    assert aux["entities"].shape == (5_041_175, 100)


def test_clashes_are_refused(objective):
    with pytest.raises(UserError, match="pieces of another vocabulary"):
        objective.read_aux(Vocabulary("another"))
    with pytest.raises(UserError, match="no folder of entities is named: .*bertfam entities"):
        dataclasses.replace(objective, entities=None).read_aux(Vocabulary("digest"))
    with pytest.raises(UserError, match="vectors of 6 numbers and EntityErnieConfig.entity_size is 8"):
        dataclasses.replace(objective, model=dataclasses.replace(MODEL, entity_size=8)).read_aux(Vocabulary("digest"))
    with pytest.raises(UserError, match="EntityErnieConfig, and BertConfig is none"):
        MlmNspDea(tiny.objective().model)
