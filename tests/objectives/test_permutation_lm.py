"""XLNet's objective: its loss, what predictions may see, its memory, microbatches, and dropout on R."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import linen as nn
from gradients import compile_loss, random_params

from bertfam.corruption.keys import fold
from bertfam.corruption.permutation_noise import PermutationNoise
from bertfam.corruption.permutation_order import order_ranks
from bertfam.data.rows.recurrent_pairs import RecurrentPairs
from bertfam.data.text_data import TextData
from bertfam.errors import UserError
from bertfam.features import RowShape
from bertfam.layers.execution import Execution
from bertfam.models.encoder import word_table
from bertfam.models.xlnet import XLNetConfig
from bertfam.objectives.mlm import Mlm
from bertfam.objectives.objective import ROWS
from bertfam.objectives.permutation_lm import PermutationLm
from bertfam.training.run import Run
from bertfam.training.stages import Stage
from bertfam.training.stages.phases import Phase
from bertfam.training.state import TrainState
from bertfam.training.step import make_gradient

SHAPE, ROWS_OF_BATCH, MEMORY = RowShape(16, 4, rows=4), 4, 6
MODEL = XLNetConfig(
    tiny.VOCABULARY,
    num_layers=2,
    hidden_size=16,
    num_heads=2,
    feed_forward_size=32,
    max_length=32,
    dropout_rate=0.0,
    attention_dropout_rate=0.0,
)
OBJECTIVE = PermutationLm(MODEL, memory_length=MEMORY)
PLAIN = dataclasses.replace(OBJECTIVE, memory_length=0)


@pytest.fixture(scope="module")
def params():
    return random_params(OBJECTIVE, shape=SHAPE)


def batch(rows=ROWS_OF_BATCH, seed=0):
    """Return random rows, two of them reversed, with 4, 2, 1 and 3 predictions in their order."""
    values = tiny.batch(rows, SHAPE, seed, [4, 2, 1, 3][:rows])
    targets = np.zeros((rows, SHAPE.length), bool)
    row, slot = np.nonzero(values["masked_loss_weights"])
    targets[row, values["masked_positions"][row, slot]] = True
    values["encoder_ranks"] = order_ranks(targets, np.zeros_like(targets), fold(seed, np.arange(rows)), 2)
    values["encoder_reversed"] = (np.arange(rows) >= rows // 2).astype(np.int32)[:, None]
    return {name: value for name, value in values.items() if name in OBJECTIVE.features(SHAPE)}


def memory(seed=5):
    generator = np.random.default_rng(seed)
    hidden = generator.standard_normal((ROWS_OF_BATCH, MODEL.num_layers, MEMORY, MODEL.hidden_size), np.float32)
    return {ROWS: {"hidden": hidden, "segment_ids": np.ones((ROWS_OF_BATCH, MEMORY), np.int32)}}


compiled = jax.jit(lambda params, carry, batch: OBJECTIVE.loss(params, carry, {}, batch, key=None, train=False))


def loss(params, carry, rows):
    return jax.device_get(compiled(params, carry, rows))


@jax.jit
def queries(params, rows):
    """Return the output of the query stream."""
    return MODEL.encoder().apply(
        {"params": params["encoder"]},
        rows["encoder_input_tokens"],
        segment_ids=rows["encoder_segment_ids"],
        token_type_ids=rows["encoder_token_type_ids"],
        ranks=rows["encoder_ranks"],
        predicted=rows["masked_positions"],
        is_reversed=rows["encoder_reversed"][:, 0] > 0,
        train=False,
    )[0]


def test_loss_matches_numpy(params):
    """The head is a product with the word table and a bias: no transformation before it, and no other loss."""
    rows = batch()
    hidden = np.float64(queries(params, rows))
    logits = hidden @ np.float64(word_table(params)[: tiny.VOCABULARY]).T + params["mlm_head"]["bias"][: tiny.VOCABULARY]
    log_probabilities = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    targets, weights = rows["masked_target_tokens"], rows["masked_loss_weights"]
    expected = -(np.take_along_axis(log_probabilities, targets[..., None], axis=-1)[..., 0] * weights).sum()
    out = loss(params, {}, rows)
    assert float(out.terms["plm"]) == pytest.approx(expected, rel=1e-5) and out.carry == {}
    assert float(OBJECTIVE.denominators(rows)["plm"]) == weights.sum() == float(out.metrics["plm_accuracy"].weight)
    hits = ((logits.argmax(axis=-1) == targets) * weights).sum()
    assert float(out.metrics["plm_accuracy"].total) == hits


def test_predictions_see_lower_ranks_only(params):
    """Each token is changed in turn; a prediction changes if and only if the order lets it see the token."""
    rows = {name: value[:1] for name, value in batch(seed=3).items()}
    real = int(rows["encoder_segment_ids"].sum())
    changed = {name: np.repeat(value, real, axis=0) for name, value in rows.items()}
    place = np.arange(real)
    changed["encoder_input_tokens"][place, place] = changed["encoder_input_tokens"][place, place] % 40 + 6
    # In one batch, since sums of a batch of another size may be rounded differently.
    both = {name: np.concatenate([np.repeat(rows[name], real, axis=0), value]) for name, value in changed.items()}
    before, after = np.split(np.asarray(queries(params, both)), 2)
    ranks, positions = rows["encoder_ranks"][0], rows["masked_positions"][0]
    differs = np.any(before != after, axis=-1)
    used = rows["masked_loss_weights"][0] > 0
    assert np.array_equal(differs[:, used], ranks[:real, None] < ranks[positions[used]])


def test_a_prediction_that_sees_nothing_does_not_see_itself(params):
    """Where all tokens are predicted, the first one in the order has no keys."""
    rows = {name: value[:1] for name, value in batch().items()}
    rows["encoder_segment_ids"] = (np.arange(SHAPE.length) < 3).astype(np.int32)[None]
    rows["masked_positions"] = np.array([[0, 1, 2, 0]], np.int32)
    rows["encoder_ranks"] = np.array([[2, 1, 3] + [0] * 13], np.int32)
    other = rows | {"encoder_input_tokens": rows["encoder_input_tokens"] % 40 + 6}
    one, two = np.asarray(queries(params, rows)), np.asarray(queries(params, other))
    assert np.array_equal(one[0, 1], two[0, 1]) and not np.array_equal(one[0, 0], two[0, 0])


def test_memory_is_the_newest_tokens_of_the_first_halves(params):
    """Of the first 8 tokens of each row 6 are remembered; memory that holds nothing, or padding, is not seen."""
    first, second = batch(seed=1), batch(seed=2)
    first["encoder_segment_ids"][0, 5:] = 0
    first["masked_loss_weights"][0] *= first["masked_positions"][0] < 5
    empty = jax.tree.map(np.zeros_like, memory())
    assert float(loss(params, empty, first).terms["plm"]) == pytest.approx(float(loss(params, {}, first).terms["plm"]), rel=1e-5)
    out = loss(params, empty, first)
    kept = jax.tree.map(np.array, out.carry[ROWS])
    assert kept["segment_ids"].tolist() == [[1, 1, 1, 0, 0, 0]] + [[1] * MEMORY] * 3
    # The memory of the first layer is the word embeddings.
    words = word_table(params)[first["encoder_input_tokens"][:, 2:8]]
    np.testing.assert_allclose(kept["hidden"][1:, 0], words[1:], atol=1e-6)
    # What is not seen may hold anything.
    after = loss(params, {ROWS: kept}, second)
    kept["hidden"][0, :, 3:] = 7.0
    assert float(loss(params, {ROWS: kept}, second).terms["plm"]) == float(after.terms["plm"])
    kept["hidden"][0, :, 0] += 1.0
    assert float(loss(params, {ROWS: kept}, second).terms["plm"]) != float(after.terms["plm"])


def test_memory_has_no_gradient(params):
    def carried(params):
        out = OBJECTIVE.loss(params, memory(), {}, batch(), key=None, train=True)
        return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(out.carry[ROWS]["hidden"]))

    assert not any(np.any(leaf) for leaf in jax.tree.leaves(jax.jit(jax.grad(carried))(params)))


def test_microbatches_have_the_same_gradient_and_memory(params):
    """Each row keeps its own memory, in the batch's order; the counts of predictions differ between the pieces."""
    state = TrainState(np.int32(0), params, {}, memory(), {}, {}, np.int32(0))
    results = [
        jax.device_get(jax.jit(make_gradient(Phase.of(OBJECTIVE), microbatches=count))(state, batch(), tiny.SEED))
        for count in (1, 2)
    ]
    (gradient, carry, metrics), (split_gradient, split_carry, split_metrics) = results
    for one, other in zip(jax.tree.leaves((gradient, carry)), jax.tree.leaves((split_gradient, split_carry)), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5 * max(1.0, float(np.abs(one).max())))
    assert float(metrics["loss"].total) == pytest.approx(float(split_metrics["loss"].total), rel=1e-5)


def test_scan_and_unroll_agree_with_dropout(params):
    """The trees, dropout and the memory are the same, and dropout on R alone changes the loss."""
    wet = dataclasses.replace(MODEL, dropout_rate=0.1, attention_dropout_rate=0.1)
    losses = []
    for layers in ("scan", "unroll"):
        objective = PermutationLm(wet, memory_length=0, execution=Execution(layers=layers, attention="reference"))
        call = compile_loss(objective, train=True, gradient=False)
        losses.append(call(params, batch(), key=jax.random.key(1))[0])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    without = loss(params, {}, batch()).terms["plm"] / batch()["masked_loss_weights"].sum()
    assert abs(losses[0] - without) > 1e-3


def test_collected_states_and_predictions(params):
    found = jax.device_get(jax.jit(PLAIN.activations)(params, batch()))
    hidden, real = found["encoder"]
    assert hidden.shape == (3, 4, 16, 16) and real.shape == (4, 16)
    predictions = jax.device_get(jax.jit(PLAIN.predictions)(params, batch()))
    assert predictions.tokens.shape == predictions.targets.shape == (4, 4)
    assert (predictions.probabilities > 1 / tiny.VOCABULARY).all()


def test_carry_is_boxed_by_rows():
    _, carry, _ = jax.eval_shape(lambda key: OBJECTIVE.init(key, SHAPE), jax.random.key(0))
    boxes = jax.tree.leaves(carry, is_leaf=lambda leaf: isinstance(leaf, nn.LogicallyPartitioned))
    assert [(box.value.shape, box.names[0]) for box in boxes] == [((4, 2, 6, 16), "batch"), ((4, 6), "batch")]


ONE_STAGE = (Stage(1, 32, 4),)


def run(objective=OBJECTIVE, stages=ONE_STAGE, **data):
    rows = {"rows": RecurrentPairs(), "corruption": PermutationNoise(), "order": "streams"} | data
    return Run(objective=objective, data=TextData(**rows), stages=stages)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"order": "shuffled"}, 'memory_length is 6, but rows do not continue.*set TextData.order = "streams"'),
        ({"stages": (Stage(1, 32, 4), Stage(1, 32, 8))}, "memory_length is 6.* batches of 4 to 8 rows.*one batch_size"),
        ({"objective": Mlm(MODEL)}, r"PermutationNoise shows Mlm the tokens .*set TextData.corruption to @BertMasking\(\)"),
        ({"corruption": TextData().corruption}, r"reads encoder_ranks, .*set TextData.corruption to @PermutationNoise\(\)"),
        ({"stages": (Stage(1, 64, 4),)}, "Stage.length 64 is more than XLNetConfig.max_length 32"),
    ],
)
def test_clashing_settings_are_refused(changes, message):
    assert run(PLAIN, order="shuffled").shape(0).rows == 4
    with pytest.raises(UserError, match=message) as error:
        run(**changes)
    assert "\n" not in str(error.value)
