"""Packed examples do not see each other, and their loss is that of the same examples in rows of their own."""

import dataclasses
from functools import partial

import jax
import numpy as np
import pytest
import tiny
from gradients import compile_loss, random_params

from bertfam.features import RowShape
from bertfam.models.distilbert import DistilBertConfig
from bertfam.models.ernie import ErnieConfig
from bertfam.models.roberta import RobertaConfig
from bertfam.models.sizes import Sizes
from bertfam.objectives.mlm import Mlm

PAIRS = tiny.objective()
MASKED = Mlm(PAIRS.model, PAIRS.execution)
PACKED = RowShape(length=2 * tiny.SHAPE.length, predictions=2 * tiny.SHAPE.predictions, examples=3)


def packed(batch):
    """Pack rows 2 i and 2 i + 1 into row i, one after the other; a third example's slot stays empty."""
    rows = len(batch["encoder_input_tokens"]) // 2
    result = {
        name: np.zeros((rows, *PAIRS.features(PACKED)[name].shape), PAIRS.features(PACKED)[name].dtype)
        for name in PAIRS.features(PACKED)
    }
    for row in range(rows):
        start = 0
        for nth in (0, 1):
            index = 2 * row + nth
            length = int(batch["encoder_segment_ids"][index].sum())
            span = slice(start, start + length)
            for name in ("encoder_input_tokens", "encoder_token_type_ids"):
                result[name][row, span] = batch[name][index, :length]
            result["encoder_segment_ids"][row, span] = nth + 1
            result["encoder_positions"][row, span] = np.arange(length)
            slots = slice(nth * tiny.SHAPE.predictions, (nth + 1) * tiny.SHAPE.predictions)
            for name in ("masked_target_tokens", "masked_loss_weights"):
                result[name][row, slots] = batch[name][index]
            result["masked_positions"][row, slots] = batch["masked_positions"][index] + start
            result["sequence_start_positions"][row, nth] = start
            for name in ("next_sentence_labels", "next_sentence_weights"):
                result[name][row, nth] = batch[name][index, 0]
            start += length
    return result


@pytest.fixture(scope="module")
def params():
    return random_params(PAIRS, seed=5)


def test_packed_examples_have_the_loss_of_separate_rows(params):
    batch = tiny.batch(8)
    sizes = {"mlm": batch["masked_loss_weights"].sum(), "nsp": 8.0}
    value_and_gradient = compile_loss(PAIRS)
    ((_, alone), expected), ((_, together), actual) = (
        value_and_gradient(params, rows, **sizes) for rows in (batch, packed(batch))
    )
    for term, value in alone.terms.items():
        assert float(together.terms[term]) == pytest.approx(float(value), rel=1e-5)
    for name, metric in alone.metrics.items():
        np.testing.assert_allclose(together.metrics[name], metric, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), actual, expected)
    denominators = (PAIRS.denominators(rows) for rows in (batch, packed(batch)))
    assert [{name: float(value) for name, value in sizes.items()} for sizes in denominators] == [sizes] * 2


@pytest.mark.parametrize("family", [RobertaConfig, DistilBertConfig, partial(ErnieConfig, task_type_vocab_size=2)])
def test_packed_examples_of_families_with_other_embeddings(family):
    """They have positions counted from 2, no token types, or a table of tasks."""
    objective = Mlm(family(**{field.name: getattr(PAIRS.model, field.name) for field in dataclasses.fields(Sizes)}))
    batch, loss_of = tiny.batch(4), compile_loss(objective, gradient=False)
    params = random_params(objective, seed=5)
    (alone, _), (together, _) = (
        loss_of(params, {name: rows[name] for name in objective.features(shape)})
        for rows, shape in ((batch, tiny.SHAPE), (packed(batch), PACKED))
    )
    assert float(together) == pytest.approx(float(alone), rel=1e-5)


def test_example_does_not_see_its_neighbour(params):
    rows = packed(tiny.batch(2))
    changed = {name: value.copy() for name, value in rows.items()}
    changed["encoder_input_tokens"][0, 3] = 7 if rows["encoder_input_tokens"][0, 3] != 7 else 8
    encode = jax.jit(lambda params, batch: PAIRS.encoded(params, batch, key=None, train=False))
    before, after = (np.asarray(encode(params, batch)) for batch in (rows, changed))
    second = rows["encoder_segment_ids"][0] == 2
    assert np.array_equal(before[0, second], after[0, second])
    assert not np.allclose(before[0, rows["encoder_segment_ids"][0] == 1], after[0, rows["encoder_segment_ids"][0] == 1])


def test_mlm_is_mlm_nsp_without_its_second_head(params):
    batch = tiny.batch(4)
    own_params = {name: params[name] for name in ("encoder", "mlm_head")}
    _, both = compile_loss(PAIRS, gradient=False)(params, batch)
    loss_of_masked = compile_loss(MASKED, gradient=False)
    loss, alone = loss_of_masked(own_params, {name: batch[name] for name in MASKED.features(tiny.SHAPE)})
    assert alone.terms.keys() == MASKED.coefficients.keys() == MASKED.denominators(batch).keys() == {"mlm"}
    assert float(alone.terms["mlm"]) == float(both.terms["mlm"])
    assert float(loss) == pytest.approx(float(both.terms["mlm"]) / batch["masked_loss_weights"].sum(), rel=1e-6)
    assert {name: tuple(map(float, value)) for name, value in alone.metrics.items()} == {
        name: tuple(map(float, both.metrics[name])) for name in ("mlm_loss", "mlm_accuracy")
    }
