"""Causal and masked language model of one encoder: each row's loss by hand, and exactly the same in microbatches."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from gradients import random_params, random_values
from tiny import SHAPE, VOCABULARY

from bertfam.api import Model
from bertfam.errors import UserError
from bertfam.models.bert import BertConfig
from bertfam.models.modernbert import ModernBertConfig
from bertfam.objectives.mlm import CausalAndMasked, Mlm
from bertfam.training.stages.phases import Phase
from bertfam.training.state import TrainState
from bertfam.training.step import make_gradient, total_loss

MODEL = dataclasses.replace(tiny.objective().model, num_layers=1, hidden_size=8)
ROWS, SHARE = 8, 0.25
BATCH = {name: value for name, value in tiny.batch(ROWS, seed=3).items() if not name.startswith("next")}


@pytest.fixture(scope="module")
def params():
    return random_params(Mlm(MODEL))


def clean(batch):
    tokens = batch["encoder_input_tokens"].copy()
    row, slot = np.nonzero(batch["masked_loss_weights"])
    tokens[row, batch["masked_positions"][row, slot]] = batch["masked_target_tokens"][row, slot]
    return tokens


def log_probabilities(params, tokens, segments, model):
    """Return log p float64[batch, length, vocabulary] of the masked-token head at every position."""
    batch = {"encoder_input_tokens": tokens, "encoder_segment_ids": segments, "encoder_token_type_ids": 0 * tokens}
    objective = Mlm(model)
    logits = jax.jit(lambda: objective.logits(params, objective.encoded(params, batch, key=None, train=False)))()
    return np.asarray(jax.nn.log_softmax(logits[..., :VOCABULARY]), np.float64)


def mean(values):
    return -np.mean(values)


def test_both_losses_by_hand(params):
    batch = BATCH | {"encoder_token_type_ids": 0 * BATCH["encoder_input_tokens"]}
    count, tokens, segments = round(SHARE * ROWS), clean(batch), batch["encoder_segment_ids"]
    causal = log_probabilities(params, tokens[:count], segments[:count], dataclasses.replace(MODEL, causal=True))
    following = [causal[row, place, tokens[row, place + 1]] for row in range(count) for place in range(segments[row].sum() - 1)]
    masked = log_probabilities(params, batch["encoder_input_tokens"][count:], segments[count:], MODEL)
    row, slot = np.nonzero(batch["masked_loss_weights"][count:])
    places, targets = (batch[f"masked_{name}"][count:][row, slot] for name in ("positions", "target_tokens"))
    for shifted in (False, True):
        predicted = masked[row, np.maximum(places - shifted, 0), targets]
        objective = CausalAndMasked(MODEL, causal_share=SHARE, shifted=shifted)
        out = jax.jit(lambda objective=objective: objective.loss(params, {}, {}, batch, key=None, train=False))()
        loss = total_loss(out.terms, objective.denominators(batch), objective.coefficients)
        assert float(loss) == pytest.approx(SHARE * mean(following) + (1 - SHARE) * mean(predicted), rel=1e-5)
        for name, expected in (("causal_loss", mean(following)), ("mlm_loss", mean(predicted))):
            assert float(out.metrics[name].total / out.metrics[name].weight) == pytest.approx(expected, rel=1e-5)
    assert objective.flops(SHAPE) > Mlm(MODEL).flops(SHAPE)


def test_causal_rows_alone_are_a_causal_lm(params):
    objective = CausalAndMasked(MODEL, causal_share=1.0)
    loss = jax.jit(lambda batch: objective.loss(params, {}, {}, batch, key=None, train=False))
    out = loss(BATCH)
    assert float(out.metrics["mlm_loss"].weight) == 0 and objective.coefficients == {"causal": 1.0, "mlm": 0.0}
    noisier = dict(BATCH, masked_loss_weights=np.zeros_like(BATCH["masked_loss_weights"]))
    noisier["encoder_input_tokens"] = clean(BATCH)
    again = loss(noisier)
    assert float(again.terms["causal"]) == float(out.terms["causal"])  # the noise of a causal row is not seen


@pytest.mark.parametrize("model", [MODEL, ModernBertConfig(50, None, 3, 8, 2, 16, 16, window=4)])
def test_a_causal_encoder_does_not_see_later_tokens(model):
    causal = dataclasses.replace(model, causal=True)
    tokens = np.arange(5, 21)[None].astype(np.int32)
    changed = tokens.copy()
    changed[:, 9] = 40
    encoder, ones = causal.encoder(), jnp.ones_like(tokens)
    inputs = {"segment_ids": ones, "token_type_ids": 0 * ones, "train": False}
    params = random_values(lambda key: encoder.init(key, tokens, **inputs))
    encode = jax.jit(lambda rows: encoder.apply(params, rows, **inputs)[0][0])
    one, other = (np.asarray(encode(rows)) for rows in (tokens, changed))
    assert np.array_equal(one[:9], other[:9]) and not np.array_equal(one[9], other[9])


def test_microbatches_have_the_gradient_of_the_whole_batch(params):
    objective, zero = CausalAndMasked(MODEL, causal_share=SHARE), jnp.zeros((), jnp.int32)
    state = TrainState(zero, params, {}, {}, {}, {}, zero)
    whole, pieces = (
        jax.jit(make_gradient(Phase.of(objective), microbatches=count))(state, BATCH, tiny.SEED)[0] for count in (1, 2)
    )
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(pieces), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


def test_rows_that_do_not_divide_are_refused():
    objective = CausalAndMasked(MODEL, causal_share=SHARE)
    assert objective.features(SHAPE._replace(rows=8))
    message = "CausalAndMasked.causal_share is 0.25, which of the 6 rows of a batch is 1.5: change it, Stage.batch_size or"
    with pytest.raises(UserError, match=message):
        objective.features(SHAPE._replace(rows=6))
    with pytest.raises(UserError, match="of the 2 rows of a microbatch is 0.5"):
        objective.check_rows(2, "a microbatch")
    with pytest.raises(ValueError, match="causal_share 0 must be above 0 and at most 1"):
        CausalAndMasked(MODEL, causal_share=0)
    with pytest.raises(UserError, match="BertConfig.causal is True, but masked rows are read in both directions"):
        CausalAndMasked(BertConfig(causal=True))


def test_a_loaded_model_predicts_where_it_was_trained_to(params):
    shifted, plain = (Model(MODEL, params, SimpleNamespace(size=VOCABULARY), shifted=value) for value in (True, False))
    inputs = {"tokens": BATCH["encoder_input_tokens"], "segment_ids": BATCH["encoder_segment_ids"]}
    places = BATCH["masked_positions"]
    before = plain.apply(**inputs, masked_positions=np.maximum(places - 1, 0))["mlm_logits"]
    assert np.array_equal(shifted.apply(**inputs, masked_positions=places)["mlm_logits"], before)
    every = shifted.apply(**inputs)["mlm_logits"]
    assert np.array_equal(every[:, 1:], plain.apply(**inputs)["mlm_logits"][:, :-1])
