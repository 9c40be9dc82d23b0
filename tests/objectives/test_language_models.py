"""Objectives of causal LMs and encoder-decoders against NumPy in float64; padding adds nothing to their losses."""

import dataclasses

import jax
import numpy as np
import pytest
import scipy.special
import tiny
from gradients import assert_sums_of_microbatches, compile_loss, random_params

from bertfam.corruption.next_tokens import NextTokens
from bertfam.corruption.t5.span_corruption import SpanCorruption
from bertfam.data.rows.running_text import Chunks
from bertfam.data.text_data import TextData
from bertfam.errors import UserError
from bertfam.features import RowShape
from bertfam.layers.execution import Execution
from bertfam.models.bart import BartConfig
from bertfam.models.gpt2 import Gpt2Config
from bertfam.models.language_model import logits
from bertfam.models.t5 import T5Config
from bertfam.objectives.causal_lm import CausalLm
from bertfam.objectives.sequence_to_sequence import SequenceToSequence
from bertfam.training.run import Run, check_resumable
from bertfam.training.run_plan import describe_attention
from bertfam.training.stages import Stage
from bertfam.training.step import total_loss

SHAPE = RowShape(length=16, predictions=0, targets=16)
NO_DROPOUT = {"dropout_rate": 0.0, "embedding_dropout_rate": 0.0, "attention_dropout_rate": 0.0}
SIZES = {"vocab_size": tiny.VOCABULARY, "hidden_size": 16, "num_layers": 2, "num_heads": 2, "max_length": 32}
GPT2 = Gpt2Config(**SIZES, **NO_DROPOUT)
OPTIONS = {"z_loss": 0.01, "label_smoothing": 0.1, "chunk": 5}
T5_SIZES = {name: size for name, size in SIZES.items() if name != "max_length"} | {"head_dim": 8, "feed_forward_size": 32}
T5 = T5Config(**T5_SIZES, relative_buckets=8, relative_max_distance=12, dropout_rate=0.0)
OBJECTIVES = {"causal_lm": CausalLm(GPT2, **OPTIONS), "sequence_to_sequence": SequenceToSequence(T5, **OPTIONS)}


def loss_and_logits(objective):
    """Return a function (params, batch) -> (loss, (LossOut, predictions, activations, logits of all places))."""

    def run(params, batch):
        out = objective.loss(params, {}, {}, batch, key=None, train=False)
        hidden, _ = objective.decoded(params, batch, key=None, train=False)
        loss = total_loss(out.terms, objective.denominators(batch), objective.coefficients)
        inspected = objective.predictions(params, batch), objective.activations(params, batch)
        return loss, (out, *inspected, logits(objective.model, params, hidden)[..., : tiny.VOCABULARY])

    return run


@pytest.fixture(scope="module", params=OBJECTIVES)
def case(request):
    """Return objective, random parameters and a compiled function of losses, see above."""
    objective = OBJECTIVES[request.param]
    run = jax.jit(loss_and_logits(objective))
    return objective, random_params(objective, shape=SHAPE), lambda *args: jax.device_get(run(*args))


def numpy_sums(objective, logits, batch):
    """Return the sums of loss, plain cross-entropy, z-loss and hits, added place by place in float64, and of weights."""
    sums = np.zeros(4)
    targets, weights = batch["decoder_target_tokens"].ravel(), batch["decoder_loss_weights"].ravel()
    for row, target, weight in zip(np.asarray(logits, np.float64).reshape(len(targets), -1), targets, weights, strict=True):
        log_z = np.log(np.sum(np.exp(row - row.max()))) + row.max()
        z_loss, surprise = objective.z_loss * log_z**2, log_z - row
        smooth = (1 - objective.label_smoothing) * surprise[target] + objective.label_smoothing * surprise.mean()
        sums += weight * np.array([smooth + z_loss, surprise[target], z_loss, np.argmax(row) == target])
    return sums, weights.sum()


def test_loss_matches_the_logits(case):
    """Rows of padding, which the last three are, add nothing."""
    objective, params, run = case
    batch = tiny.padded(tiny.batch(5, SHAPE), 3)
    loss, (out, predictions, activations, model_logits) = run(params, batch)
    (total, plain, z_loss, hits), targets = numpy_sums(objective, model_logits, batch)
    assert 5 < targets < batch["decoder_loss_weights"].size
    assert float(loss) == pytest.approx(total / targets, rel=1e-6)
    assert abs(total / (plain + z_loss) - 1) > 1e-4  # label smoothing contributes
    expected = {"lm_loss": plain, "lm_accuracy": hits, "z_loss": z_loss}
    assert out.metrics.keys() == expected.keys()
    for name, value in expected.items():
        assert tuple(map(float, out.metrics[name])) == pytest.approx((value, targets), rel=1e-5), name
    probabilities = scipy.special.softmax(model_logits, axis=-1)
    np.testing.assert_array_equal(predictions.tokens, probabilities.argmax(-1))
    np.testing.assert_allclose(predictions.probabilities, probabilities.max(-1), rtol=1e-5)
    for name, (hidden, real) in activations.items():
        assert hidden.shape == (3, *batch[f"{name}_input_tokens"].shape, 16)
        np.testing.assert_array_equal(real, batch[f"{name}_segment_ids"] > 0)


def test_sums_of_microbatches_are_those_of_the_batch(case):
    """Rows have very different numbers of targets, so a mean of means would differ."""
    _, params, run = case
    assert_sums_of_microbatches(lambda rows: run(params, rows)[1][0], tiny.batch(8, SHAPE, seed=1))


def test_packed_examples_have_the_loss_of_separate_rows(case):
    objective, params, _ = case
    batch = tiny.batch(2, SHAPE, seed=2)
    lengths = batch["decoder_segment_ids"].sum(1)
    short = {name: value[:, :8] for name, value in batch.items() if name.startswith(("encoder", "decoder"))}
    packed = {name: value.reshape(1, 16) for name, value in short.items()}
    for name in ("encoder", "decoder"):
        row = packed[f"{name}_segment_ids"] * np.repeat([1, 2], 8)
        packed |= {f"{name}_segment_ids": row, f"{name}_positions": np.tile(np.arange(8, dtype=np.int32), (1, 2))}
    assert min(lengths) > 3
    alone, together = (compile_loss(objective, gradient=False)(params, rows)[0] for rows in (short, packed))
    np.testing.assert_allclose(together, alone, rtol=1e-5)


def test_settings():
    lm = CausalLm(GPT2)
    assert lm.networks == {"decoder": GPT2} and lm.joined(lm.split({"decoder": 1})) == {"decoder": 1}
    assert lm.flops(SHAPE) == GPT2.flops(16, 16)
    assert describe_attention(lm, SHAPE) == "xla: the fastest backend that supports float32 rows of 16 tokens on cpu"
    dropping = CausalLm(dataclasses.replace(GPT2, attention_dropout_rate=0.1), execution=Execution(attention="xla"))
    with pytest.raises(UserError, match="attention_dropout_rate is 0.1, which only 'reference' applies"):
        describe_attention(dropping, SHAPE)
    with pytest.raises(UserError, match=r"33 tokens of the decoder and Gpt2Config.max_length is 32; shorten .*Stage.length"):
        lm.features(SHAPE._replace(targets=33))
    assert "decoder_positions" in lm.features(SHAPE._replace(examples=2)).keys() - lm.features(SHAPE).keys()
    with pytest.raises(UserError, match="Gpt2Config is a causal LM: .* objectives/causal_lm.gin"):
        SequenceToSequence(GPT2)
    with pytest.raises(UserError, match="T5Config is an encoder-decoder: .* objectives/t5_random_spans.gin"):
        CausalLm(T5)
    both = SequenceToSequence(T5)
    assert both.features(SHAPE).keys() - lm.features(SHAPE).keys() == {"encoder_input_tokens", "encoder_segment_ids"}
    assert both.networks == {"encoder_decoder": T5} and both.decoder_start == "pad" and both.flops(SHAPE) == T5.flops(16, 16)
    assert describe_attention(both, SHAPE._replace(targets=8)) == (
        "over all tokens, xla: the fastest backend that supports float32 rows of 16 tokens on cpu; "
        "over previous tokens, xla: the fastest backend that supports float32 rows of 8 tokens on cpu; "
        "over the encoder's output, xla: the fastest backend that supports float32 rows of 8 tokens on cpu"
    )
    for name, value in (("z_loss", -1.0), ("z_loss", float("nan")), ("label_smoothing", 1.0), ("chunk", 0)):
        with pytest.raises(ValueError, match=name):
            CausalLm(GPT2, **{name: value})


def test_unsuitable_rows_are_refused():
    stages, spans = (Stage(1, 16, 4),), TextData(rows=Chunks(), corruption=SpanCorruption())
    next_tokens = TextData(rows=Chunks(), corruption=NextTokens())
    assert Run(objective=SequenceToSequence(T5), data=spans, stages=stages).shape(0).targets > 1
    bart = BartConfig(**SIZES, feed_forward_size=32)
    for objective, data, message in (
        (CausalLm(GPT2), TextData(), "CausalLm reads decoder_input_tokens, .*: set TextData.corruption to @NextTokens"),
        (SequenceToSequence(T5), next_tokens, "reads encoder_input_tokens, .*: set TextData.corruption to @SpanCorruption"),
        (SequenceToSequence(bart), spans, 'eos, but rows of SpanCorruption with pad: set SpanCorruption.start = "eos"'),
    ):
        with pytest.raises(UserError, match=message):
            Run(objective=objective, data=data, stages=stages)
    started = Run(objective=CausalLm(GPT2), data=next_tokens, stages=stages)
    check_resumable(started, dataclasses.replace(started, objective=CausalLm(GPT2, chunk=7)), 0)
    with pytest.raises(UserError, match="z_loss was 0.0 when this run started"):
        check_resumable(started, dataclasses.replace(started, objective=CausalLm(GPT2, z_loss=1e-4)), 0)
