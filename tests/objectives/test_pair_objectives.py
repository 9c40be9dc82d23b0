"""ALBERT's and StructBERT's objectives against NumPy in float64: losses, denominators, microbatches, packed rows."""

import dataclasses

import jax
import numpy as np
import pytest
import tiny
from gradients import assert_sums_of_microbatches, compile_loss, random_params
from test_mlm_nsp import numpy_cross_entropy

from bertfam.features import SENTENCES, RowShape
from bertfam.layers.lookup import gather_positions
from bertfam.models.albert import AlbertConfig
from bertfam.models.encoder import pooler, sentence_head, word_table
from bertfam.objectives.albert import MlmSop
from bertfam.objectives.structbert import MlmStructure
from bertfam.training.logs.metrics import means
from bertfam.training.stages.phases import Phase
from bertfam.training.step import TERM, make_eval_step, total_loss

SIZES = {"num_layers": 2, "hidden_size": 16, "num_heads": 2, "feed_forward_size": 32, "max_length": 32}
ALBERT = AlbertConfig(vocab_size=tiny.VOCABULARY, embedding_size=8, **SIZES)
OBJECTIVES = {
    "order": MlmSop(ALBERT, mlm=0.5, sop=2.0),
    "structure": MlmStructure(tiny.objective().model, mlm=0.5, shuffled=2.0, structure=3.0),
}


def batch_of(relation, rows=5, seed=0, **options):
    """Return `tiny.batch` with the labels of a relation; the last two slots of StructBERT's are of shuffled tokens."""
    batch, sentences = tiny.batch(rows, seed=seed, **options), SENTENCES[relation]
    labels = np.random.default_rng(seed).integers(0, len(sentences.classes), (rows, 1)).astype(np.int32)
    weights = batch["next_sentence_weights"]
    batch = {name: value for name, value in batch.items() if not name.startswith("next_sentence")}
    batch |= {sentences.labels: labels, sentences.weights: weights}
    if relation == "structure":
        slots = np.arange(tiny.SHAPE.predictions) >= tiny.SHAPE.predictions - 2
        batch["shuffled_loss_weights"] = np.float32(slots * batch["masked_loss_weights"])
    return batch


@pytest.fixture(scope="module", params=OBJECTIVES)
def case(request):
    """Return relation, objective and random parameters."""
    objective = OBJECTIVES[request.param]
    return request.param, objective, random_params(objective)


@pytest.fixture(scope="module")
def loss_of(case):
    """Return a compiled batch -> (loss, LossOut)."""
    _, objective, params = case
    compiled = compile_loss(objective, gradient=False)
    return lambda batch: compiled(params, batch)


def logits_of(objective, params, batch):
    hidden = objective.encoded(params, batch, key=None, train=False)
    config, sentences = objective.model, objective.sentences
    head = config.masked_lm_head()
    masked = head.apply({"params": params["mlm_head"]}, gather_positions(hidden, batch["masked_positions"]), word_table(params))
    pooled = pooler(config).apply({"params": params["pooler"]}, hidden[:, :1])
    sentence_logits = sentence_head(config, len(sentences.classes)).apply({"params": params[sentences.head]}, pooled)
    return masked[..., : tiny.VOCABULARY], sentence_logits


def test_loss_matches_the_logits(case, loss_of):
    """Rows of padding, which the last three are, add nothing."""
    relation, objective, params = case
    batch, sentences = tiny.padded(batch_of(relation), 3), SENTENCES[relation]
    assert batch.keys() == objective.features(tiny.SHAPE).keys()
    masked_logits, sentence_logits = jax.device_get(jax.jit(lambda rows: logits_of(objective, params, rows))(batch))
    weights, shuffled = batch["masked_loss_weights"], batch.get("shuffled_loss_weights", np.float32(0))
    mlm = numpy_cross_entropy(masked_logits, batch["masked_target_tokens"], weights - shuffled)
    sentence_sums = numpy_cross_entropy(sentence_logits, batch[sentences.labels], batch[sentences.weights])
    assert sentence_logits.shape == (8, 1, len(sentences.classes))
    expected = {"mlm": mlm, sentences.term: sentence_sums}
    if relation == "structure":
        expected["shuffled"] = numpy_cross_entropy(masked_logits, batch["masked_target_tokens"], shuffled)
        assert mlm[2] > 0 and expected["shuffled"][2] > 0
        total = (0.5 * mlm[0] + 2 * expected["shuffled"][0]) / weights.sum() + 3 * sentence_sums[0] / sentence_sums[2]
    else:
        total = 0.5 * mlm[0] / mlm[2] + 2 * sentence_sums[0] / sentence_sums[2]
    loss, out = loss_of(batch)
    assert float(loss) == pytest.approx(total, rel=1e-6)
    metrics = {name: tuple(map(float, value)) for name, value in out.metrics.items()}
    assert metrics.keys() == {f"{term}_{metric}" for term in expected for metric in ("loss", "accuracy")}
    for term, (loss_sum, hits, weight) in expected.items():
        assert metrics[f"{term}_loss"] == pytest.approx((loss_sum, weight), rel=1e-5), term
        assert metrics[f"{term}_accuracy"] == pytest.approx((hits, weight), rel=1e-5), term
    assert objective.coefficients.keys() == out.terms.keys() == objective.denominators(batch).keys()


def test_equal_coefficients_give_one_mean_over_masked_and_shuffled():
    objective = MlmStructure(tiny.objective().model)
    terms, sizes = {"mlm": 6.0, "shuffled": 3.0, "structure": 0.0}, {"mlm": 12.0, "shuffled": 12.0, "structure": 1.0}
    as_arrays = ({name: np.float32(value) for name, value in values.items()} for values in (terms, sizes))
    batch = batch_of("structure")
    total, denominators = jax.jit(lambda: (total_loss(*as_arrays, objective.coefficients), objective.denominators(batch)))()
    assert float(total) == pytest.approx(9 / 12)
    assert float(denominators["mlm"]) == float(denominators["shuffled"]) == batch["masked_loss_weights"].sum()


def test_merged_evaluation_is_the_loss_of_training(case, loss_of):
    """Each term has its own denominator, except that StructBERT's masked and shuffled tokens share one."""
    relation, objective, params = case
    batch, step = batch_of(relation, 8, predictions=[4, 1, 4, 3, 0, 4, 0, 1]), jax.jit(make_eval_step(Phase.of(objective)))
    merged = means([step(params, {name: value[rows] for name, value in batch.items()}) for rows in (slice(4), slice(4, 8))])
    loss = sum(weight * merged[TERM + name] for name, weight in objective.coefficients.items())
    assert loss == pytest.approx(float(loss_of(batch)[0]), rel=1e-6)


def test_sums_of_microbatches_are_those_of_the_batch(case, loss_of):
    """The second of two microbatches has no token to predict."""
    batch = batch_of(case[0], 8, predictions=[4, 0, 1, 0, 4, 0, 3, 0])
    assert_sums_of_microbatches(lambda rows: loss_of(rows)[1], batch)


def test_packed_examples_have_the_loss_of_separate_rows(case, loss_of):
    relation, objective, _ = case
    sentences, length = SENTENCES[relation], tiny.SHAPE.length
    batch = batch_of(relation, 2)
    alone = loss_of(tiny.padded(batch, 6))[1]
    shape = RowShape(2 * length, 2 * tiny.SHAPE.predictions, 3)
    together = {name: np.zeros((1, *spec.shape), spec.dtype) for name, spec in objective.features(shape).items()}
    start = 0
    for row in range(2):
        size = int(batch["encoder_segment_ids"][row].sum())
        span, slots = slice(start, start + size), slice(row * tiny.SHAPE.predictions, (row + 1) * tiny.SHAPE.predictions)
        for name in ("encoder_input_tokens", "encoder_token_type_ids"):
            together[name][0, span] = batch[name][row, :size]
        together["encoder_segment_ids"][0, span] = row + 1
        together["encoder_positions"][0, span] = np.arange(size)
        for name in ("masked_target_tokens", "masked_loss_weights", "shuffled_loss_weights"):
            if name in together:
                together[name][0, slots] = batch[name][row]
        together["masked_positions"][0, slots] = batch["masked_positions"][row] + start
        together["sequence_start_positions"][0, row] = start
        for name in (sentences.labels, sentences.weights):
            together[name][0, row] = batch[name][row, 0]
        start += size
    packed = loss_of(together)[1]
    for term, value in alone.terms.items():
        assert float(packed.terms[term]) == pytest.approx(float(value), rel=1e-5)


def test_parts(case):
    relation, _, params = case
    assert params.keys() == {"encoder", "pooler", "mlm_head", SENTENCES[relation].head}
    assert params[SENTENCES[relation].head]["dense"]["kernel"].shape == (16, len(SENTENCES[relation].classes))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MlmSop(ALBERT, sop=-1.0), "sop -1.0 is no coefficient; it must be a number of at least 0"),
        (lambda: MlmSop(ALBERT, mlm=0.0, sop=0.0), "mlm and sop are both 0: nothing would be learnt; set one above 0"),
        (lambda: MlmStructure(ALBERT, mlm=0, shuffled=0, structure=0), "mlm and shuffled and structure are all 0"),
        (lambda: MlmStructure(ALBERT, shuffled=float("nan")), "shuffled nan is no coefficient"),
        (lambda: dataclasses.replace(tiny.objective(), mlm=0.0, nsp=0.0), "mlm and nsp are both 0"),
    ],
)
def test_coefficients_are_checked(make, message):
    with pytest.raises(ValueError, match=message):
        make()
