"""Dual encoder: the loss against NumPy, the gradient in pieces, one tower and two."""

import dataclasses
from functools import partial

import jax
import numpy as np
import pytest
import tiny
from gradients import compile_loss, random_params

from bertfam.errors import UserError
from bertfam.features import RowShape
from bertfam.layers.execution import Execution
from bertfam.layers.pooling import normalized
from bertfam.objectives.retrieval.dual_encoder import DualEncoder
from bertfam.training.stages.phases import Phase
from bertfam.training.state import TrainState
from bertfam.training.step import make_gradient

QUERY, PASSAGE, PASSAGES, ROWS = 6, 10, 2, 4
SHAPE = RowShape(length=QUERY + PASSAGES * PASSAGE, predictions=0)
OBJECTIVE = DualEncoder(
    dataclasses.replace(tiny.objective().model, num_layers=1),
    Execution(layers="unroll"),
    query_length=QUERY,
    passages=PASSAGES,
    projection=5,
    temperature=0.7,
    shared=False,
)


@pytest.fixture(scope="module")
def batch():
    """Return rows of a query and two passages, of which the last row is padding."""
    generator = np.random.default_rng(0)
    texts = [tiny.batch(ROWS, RowShape(size, 1), seed=size + number) for number, size in enumerate((QUERY, PASSAGE, PASSAGE))]
    names = ("encoder_input_tokens", "encoder_segment_ids", "encoder_token_type_ids")
    rows = {name: np.concatenate([text[name] for text in texts], axis=1) for name in names}
    rows["sequence_start_positions"] = generator.integers(0, 3, (ROWS, 1 + PASSAGES)).astype(np.int32)
    rows = {name: np.where(np.arange(ROWS)[:, None] < ROWS - 1, value, 0) for name, value in rows.items()}
    assert rows.keys() == OBJECTIVE.features(SHAPE).keys()
    assert {name: value.shape[1:] for name, value in rows.items()} == {
        name: spec.shape for name, spec in OBJECTIVE.features(SHAPE).items()
    }
    return rows


@pytest.fixture(scope="module")
def params():
    return random_params(OBJECTIVE, shape=SHAPE)


def vectors(objective, params, batch, first, size, tower, start):
    """Embed one text of each row by hand."""
    part = {name: value[:, first : first + size] for name, value in batch.items() if name != "sequence_start_positions"}
    encoder = objective.model.encoder(objective.execution)
    hidden, _ = jax.jit(partial(encoder.apply, train=False))(
        {"params": params[tower]},
        part["encoder_input_tokens"],
        segment_ids=part["encoder_segment_ids"],
        token_type_ids=part["encoder_token_type_ids"],
    )
    pooled = np.asarray(hidden, np.float64)[np.arange(ROWS), batch["sequence_start_positions"][:, start]]
    own = params[f"{tower}_projection"]
    projected = pooled @ own["dense"]["kernel"] + own["dense"]["bias"]
    centred = projected - projected.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-12) * own["norm"]["scale"] + own["norm"]["bias"]


def with_equal_texts(batch):
    """Give row 1 the right passage of row 0, and row 2 the query of row 1."""
    copied = {name: np.array(value) for name, value in batch.items()}
    for name, value in copied.items():
        query, passage = (1, 2) if name == "sequence_start_positions" else (QUERY, QUERY + PASSAGE)
        value[1, query:passage] = value[0, query:passage]
        value[2, :query] = value[1, :query]
    return copied


@pytest.mark.parametrize("others", [{}, {0: [1], 1: [0, 2], 2: [1]}], ids=["all negatives", "equal texts"])
def test_the_loss_by_hand(params, batch, others):
    """The right passages of `others` are no negatives of a query, because they are its own or answer the same query."""
    batch = with_equal_texts(batch) if others else batch
    queries = vectors(OBJECTIVE, params, batch, 0, QUERY, "query", 0)
    passages = np.stack(
        [vectors(OBJECTIVE, params, batch, QUERY + n * PASSAGE, PASSAGE, "passage", 1 + n) for n in range(PASSAGES)], axis=1
    )
    losses, right = [], []
    for row in range(ROWS - 1):
        # All passages of all real rows; the first one of its own row is right.
        places = [(other, n) for other in range(ROWS - 1) for n in range(PASSAGES) if n or other not in others.get(row, [])]
        scores = {place: queries[row] @ passages[place] / 0.7 for place in places}
        losses.append(np.log(sum(np.exp(score) for score in scores.values())) - scores[row, 0])
        right.append(max(scores, key=scores.get) == (row, 0))
    loss, out = compile_loss(OBJECTIVE, gradient=False)(params, batch)
    assert loss == pytest.approx(np.mean(losses), rel=1e-5)
    assert out.terms["retrieval"] == pytest.approx(np.sum(losses), rel=1e-5)
    assert tuple(out.metrics["retrieval_accuracy"]) == (sum(right), ROWS - 1)


def test_pieces_have_the_gradient_of_the_batch(params, batch):
    zero = np.zeros((), np.int32)
    state = TrainState(zero, params, {}, {}, {}, {}, zero)
    whole, pieces = (jax.jit(make_gradient(Phase.of(OBJECTIVE), microbatches=count))(state, batch, tiny.SEED) for count in (1, 2))
    leaves = list(zip(*map(jax.tree.leaves, (whole, pieces)), strict=True))
    largest = max(float(np.abs(left).max()) for left, _ in leaves)
    assert largest > 0.01
    for left, right in leaves:
        np.testing.assert_allclose(left, right, atol=2e-6 * largest, rtol=2e-5)


def test_vectors_of_length_one(params, batch):
    """The gradient is finite, although the vectors of padding have length 0 where they are means."""
    scaled = dataclasses.replace(OBJECTIVE, normalize=True)
    plain, unit = (
        np.concatenate(jax.jit(lambda own, one=one: one.vectors(own, batch, key=None, train=False)[:2])(params))
        for one in (OBJECTIVE, scaled)
    )
    np.testing.assert_allclose(unit, plain / np.linalg.norm(plain, axis=1, keepdims=True), rtol=1e-5)
    assert np.isfinite(jax.grad(lambda value: normalized(value).sum())(np.zeros((2, 3), np.float32))).all()


def test_towers(params):
    networks = OBJECTIVE.split(params)
    assert {name: set(network) for name, network in networks.items()} == dict.fromkeys(
        ("query", "passage"), {"encoder", "projection"}
    )
    assert OBJECTIVE.joined(networks).keys() == params.keys()
    shared = dataclasses.replace(OBJECTIVE, shared=True, projection=None)
    assert random_params(shared, shape=SHAPE).keys() == {"encoder"}
    assert shared.sequence_shape(SHAPE).length == PASSAGE


def test_mistakes():
    for changes, match in (
        ({"temperature": 0.0}, "temperature is 0.0"),
        ({"passages": 0}, "passages is 0"),
        ({"pooling": "max"}, "pooling is 'max'"),
    ):
        with pytest.raises(UserError, match=match):
            dataclasses.replace(OBJECTIVE, **changes)
    with pytest.raises(UserError, match=r"leaves 21 positions .* do not divide into passages \(2\)"):
        OBJECTIVE.features(RowShape(QUERY + 21, 0))
    with pytest.raises(UserError, match="passages of 40 tokens are longer than BertConfig.max_length 32: lower Stage.length, 86"):
        OBJECTIVE.features(RowShape(QUERY + 80, 0))
    OBJECTIVE.check_rows(1, "a batch")
    with pytest.raises(UserError, match="a batch of one query and one passage has no wrong passages"):
        dataclasses.replace(OBJECTIVE, passages=1).check_rows(1, "a batch")
