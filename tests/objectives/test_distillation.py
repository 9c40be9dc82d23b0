"""Terms of distillation against torch's losses, and exactness of pieces, microbatches and packed rows."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import linen as nn
from gradients import assert_sums_of_microbatches, compile_loss
from test_packed_rows import packed

from bertfam.errors import UserError
from bertfam.features import RowShape
from bertfam.kernels.chunked_cross_entropy import NO_TOKEN_LOGIT
from bertfam.models.bart import BartConfig
from bertfam.models.bert import BertConfig
from bertfam.models.distilbert import DistilBertConfig
from bertfam.models.encoder_decoder import EncoderOnlyConfig
from bertfam.models.language_model import encode
from bertfam.models.t5 import T5Config
from bertfam.objectives.distillation import Distillation
from bertfam.objectives.mlm import Mlm
from bertfam.objectives.student.layers import spread
from bertfam.objectives.student.terms import cosine_distances, in_pieces, soft_targets, squared_differences
from bertfam.objectives.teacher import Teacher

SIZES = {"hidden_size": 16, "num_heads": 2, "feed_forward_size": 32, "max_length": 32, "attention_dropout_rate": 0.0}
STUDENT = DistilBertConfig(vocab_size=tiny.VOCABULARY, num_layers=1, **SIZES, dropout_rate=0.0)
# Its table has rows without a token, more than the student's, and it has a dropout rate, which is never applied.
TEACHER_MODEL = BertConfig(vocab_size=tiny.VOCABULARY, table_rows=130, num_layers=2, **SIZES, dropout_rate=0.5)
TEACHER = Teacher("teacher", TEACHER_MODEL, has_head=True, digest="0")
ALL = Distillation(STUDENT, teacher=TEACHER, mse=0.5, pieces=5)
TERMS = {"soft", "mlm", "cosine", "mse"}


# Rows with unequal numbers of tokens and masks, the last two of them padding.
BATCH = tiny.padded(tiny.batch(6, predictions=[1, 4, 2, 3, 1, 4]), 2)
# In training, so that a dropout of the teacher, whose rate is not 0, would differ from the torch losses; the student has none.
value_and_gradient = functools.partial(compile_loss(ALL, train=True), key=jax.random.key(0))
term_functions = tuple(
    jax.jit(jax.value_and_grad(term)) for term in (lambda *args: soft_targets(*args, 2.0), squared_differences, cosine_distances)
)


def random_like(shapes, seed, scale=0.3):
    generator = np.random.default_rng(seed)

    def values(leaf):
        if jax.numpy.issubdtype(leaf.dtype, jax.numpy.integer):
            return np.ones(leaf.shape, leaf.dtype)
        return np.float32(scale * generator.standard_normal(leaf.shape))

    return jax.tree.map(values, shapes)


@pytest.fixture(scope="module")
def trees():
    """Return random parameters of the student and of the teacher."""
    params, _, aux = nn.meta.unbox(jax.eval_shape(lambda key: ALL.init(key, tiny.SHAPE), jax.random.key(0)))
    return random_like(params, 3), random_like(aux, 4)


@pytest.fixture(scope="module")
def whole(trees):
    """Return ((loss, LossOut), gradient) of the batch."""
    return value_and_gradient(trees[0], BATCH, trees[1])


@functools.partial(jax.jit, static_argnums=0)
def hidden_and_logits(config, params, batch):
    mlm = Mlm(config)
    hidden = mlm.encoded(params, batch, key=None, train=False)
    return hidden, mlm.logits(params, hidden)[..., : tiny.VOCABULARY]


def outputs(config, params, batch):
    """Return hidden states and logits of real tokens, and the logits of all tokens."""
    hidden, logits = jax.device_get(hidden_and_logits(config, params, batch))
    real = batch["encoder_segment_ids"] > 0
    return hidden[real], logits[real], logits


SEQ2SEQ_SIZES = {"vocab_size": tiny.VOCABULARY, "num_layers": 1, "hidden_size": 16, "num_heads": 2, "feed_forward_size": 32}


def taught_by_encoder_of(config):
    """Return a distillation of hidden states, and random parameters of the student and of the teacher."""
    teacher = Teacher("teacher", EncoderOnlyConfig(config), has_head=False, digest="0", network="encoder")
    objective = Distillation(STUDENT, teacher=teacher, soft=0.0)
    params, _, aux = nn.meta.unbox(jax.eval_shape(lambda key: objective.init(key, tiny.SHAPE), jax.random.key(0)))
    return objective, random_like(params, 3), random_like(aux, 4)


def test_encoder_of_an_encoder_decoder_teaches_hidden_states():
    config, batch = BartConfig(**SEQ2SEQ_SIZES, max_length=32), tiny.batch(6)
    objective, params, aux = taught_by_encoder_of(config)
    _, out = compile_loss(objective, gradient=False)(params, batch, aux)
    shared = objective.teacher.model.shared_params(aux["teacher"])
    real = batch["encoder_segment_ids"] > 0

    @jax.jit
    def expected_distance(params, shared):
        taught = encode(config, shared, batch["encoder_input_tokens"], batch["encoder_segment_ids"])[0]
        hidden = Mlm(STUDENT).encoded(params, batch, key=None, train=False)
        return cosine_distances(hidden, taught, real.astype(jnp.float32))

    assert out.terms.keys() == {"mlm", "cosine"}
    assert float(out.terms["cosine"]) == pytest.approx(float(expected_distance(params, shared)), rel=1e-5)
    objective.features(tiny.SHAPE)
    assert objective.initial_params(aux)[0] == "layer 0 of teacher"


def test_student_cannot_start_as_the_encoder_of_another_family():
    objective, _, aux = taught_by_encoder_of(T5Config(**SEQ2SEQ_SIZES))
    objective.features(tiny.SHAPE)
    with pytest.raises(UserError, match="the student cannot start as it"):
        objective.initial_params(aux)


@pytest.mark.parametrize(("temperature", "divergence"), [(1, 0.17181), (2, 0.05601), (4, 0.01384)])
def test_soft_targets_by_hand(temperature, divergence):
    """The loss of one place is KL(teacher || student) times T^2."""
    teacher, student = jnp.array([[2.0, 0.0, -1.0]]), jnp.array([[1.0, 0.5, -1.0]])
    loss = float(soft_targets(student, teacher, jnp.ones(1), temperature))
    assert loss / temperature**2 == pytest.approx(divergence, abs=5e-6)
    assert loss == pytest.approx({1: 0.17181, 2: 0.22405, 4: 0.22146}[temperature], abs=5e-6)
    assert float(soft_targets(teacher, student, jnp.ones(1), temperature)) != pytest.approx(loss, abs=1e-4)


@pytest.mark.parametrize("over", ["tokens", "masked"])
def test_every_term_matches_torch(trees, whole, over):
    """Expected values follow the published code: batchmean over the tokens, times T^2; sums of squares over the tokens."""
    torch = pytest.importorskip("torch")
    objective, batch = dataclasses.replace(ALL, over=over), BATCH
    loss, out = whole[0] if over == "tokens" else compile_loss(objective, gradient=False)(trees[0], batch, trees[1])
    (h_s, z_s, rows_s), (h_t, z_t, rows_t) = (
        outputs(config, tree, batch) for config, tree in ((STUDENT, trees[0]), (TEACHER_MODEL, trees[1]["teacher"]))
    )
    row, slot = np.nonzero(batch["masked_loss_weights"])
    places, targets = batch["masked_positions"][row, slot], batch["masked_target_tokens"][row, slot]
    masked_s, masked_t = (torch.tensor(rows[row, places]) for rows in (rows_s, rows_t))
    student, teacher = (masked_s, masked_t) if over == "masked" else map(torch.tensor, (z_s, z_t))
    kl = torch.nn.KLDivLoss(reduction="batchmean")
    ones = torch.ones(len(h_s))
    expected = {
        "soft": 4.0 * kl(torch.log_softmax(student / 2, -1), torch.softmax(teacher / 2, -1)),
        "mlm": torch.nn.functional.cross_entropy(masked_s, torch.tensor(targets).long()),
        "cosine": torch.nn.CosineEmbeddingLoss()(torch.tensor(h_s), torch.tensor(h_t), ones),
        "mse": torch.nn.MSELoss(reduction="sum")(student, teacher) / len(student),
    }
    metrics = {name: float(metric.total / metric.weight) for name, metric in out.metrics.items()}
    assert out.terms.keys() == expected.keys() == TERMS
    for name, number in expected.items():
        assert metrics[f"{name}_loss"] == pytest.approx(float(number), rel=2e-5), name
    assert float(loss) == pytest.approx(sum(objective.coefficients[name] * float(number) for name, number in expected.items()))
    assert metrics["mlm_accuracy"] == pytest.approx(float((masked_s.argmax(-1).numpy() == targets).mean()))
    agreement = float((masked_s.argmax(-1) == masked_t.argmax(-1)).float().mean())
    assert metrics["teacher_agreement"] == pytest.approx(agreement)
    assert metrics.keys() == {f"{name}_loss" for name in TERMS} | {"mlm_accuracy", "teacher_agreement"}


def test_pieces_are_exact_in_value_and_gradient(trees, whole):
    """16 tokens are cut into 4 pieces; packed rows of 32 tokens, see below, into 5, the last of them with padding."""
    (expected, _), gradient = whole
    (loss, _), actual = compile_loss(dataclasses.replace(ALL, pieces=1))(trees[0], BATCH, trees[1])
    assert float(loss) == pytest.approx(float(expected), rel=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), actual, gradient)


@pytest.mark.parametrize(("pieces", "count", "size"), [(1, 1, 16), (5, 4, 4), (7, 6, 3), (16, 16, 1), (99, 16, 1)])
def test_pieces_of_a_row(pieces, count, size):
    """There are at most as many pieces as tokens; zeros fill the last piece."""
    rows = np.random.default_rng(0).standard_normal((3, 16, 2)).astype(np.float32)
    actual = jax.device_get(jax.jit(in_pieces, static_argnums=1)(rows, pieces))
    assert actual.shape == (count, 3, size, 2)
    joined = np.moveaxis(actual, 0, 1).reshape(3, count * size, 2)
    assert np.array_equal(joined[:, :16], rows) and not joined[:, 16:].any()


def test_rows_without_a_token_do_not_count():
    student, teacher = (np.random.default_rng(seed).standard_normal((3, 7)).astype(np.float32) for seed in (0, 1))
    padded = [np.pad(logits, ((0, 0), (0, 5)), constant_values=NO_TOKEN_LOGIT) for logits in (student, teacher)]
    for term in term_functions[:2]:
        actual, gradient = jax.device_get(term(*padded, np.ones(3, np.float32)))
        expected, gradient_of_tokens = jax.device_get(term(student, teacher, np.ones(3, np.float32)))
        assert float(actual) == pytest.approx(float(expected), rel=1e-6)
        np.testing.assert_allclose(gradient[:, :7], gradient_of_tokens, rtol=1e-5, atol=1e-7)
        assert not gradient[:, 7:].any()


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_place_of_weight_0_adds_exactly_nothing(bad):
    generator = np.random.default_rng(0)
    good = tuple(generator.standard_normal((4, 6)).astype(np.float32) for _ in range(2))
    corrupted = tuple(np.where(np.arange(4)[:, None] == 2, np.float32(bad), logits) for logits in good)
    weights = np.array([1.0, 1.0, 0.0, 0.5], np.float32)
    for term in term_functions:
        (expected, expected_gradient), (actual, gradient) = (jax.device_get(term(*rows, weights)) for rows in (good, corrupted))
        assert float(actual) == float(expected) and np.array_equal(gradient, expected_gradient) and not gradient[2].any()


def test_cosine_of_known_angles():
    student = np.array([[1.0, 0.0], [1.0, 0.0], [2.0, 0.0], [1.0, 1.0]], np.float32)
    teacher = np.array([[3.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [1.0, 0.0]], np.float32)
    distance, one = term_functions[2], np.ones(1, np.float32)
    distances = [float(distance(student[i : i + 1], teacher[i : i + 1], one)[0]) for i in range(4)]
    assert distances == pytest.approx([0, 1, 2, 1 - 2**-0.5], abs=1e-6)
    assert np.isfinite(distance(np.zeros((1, 2), np.float32), teacher[:1], one)[1]).all()


def test_sums_of_microbatches_are_those_of_the_batch(trees, whole):
    assert {f"{name}_loss" for name in TERMS} <= whole[0][1].metrics.keys()
    assert_sums_of_microbatches(lambda rows: value_and_gradient(trees[0], rows, trees[1])[0][1], BATCH)


def test_teacher_has_no_dropout(trees, whole):
    """It has a rate; the student has none here."""
    other_key = value_and_gradient(trees[0], BATCH, trees[1], key=jax.random.key(1))
    jax.tree.map(np.testing.assert_array_equal, other_key, whole)


def test_student_has_dropout(trees):
    objective = dataclasses.replace(ALL, mlm=0.0, model=dataclasses.replace(STUDENT, dropout_rate=0.5))
    loss_of = compile_loss(objective, gradient=False, train=True)
    losses = [float(loss_of(trees[0], BATCH, trees[1], jax.random.key(seed))[0]) for seed in (0, 1)]
    assert losses[0] != losses[1]


def test_packed_examples_match_separate_rows(trees):
    """Two examples in a row give the terms and denominators of two rows."""
    batch = tiny.batch(8)
    together = packed(batch)
    (expected, alone), _ = value_and_gradient(trees[0], batch, trees[1])
    loss, out = compile_loss(ALL, gradient=False)(trees[0], together, trees[1])
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)
    for name, term in alone.terms.items():
        assert float(out.terms[name]) == pytest.approx(float(term), rel=1e-5), name
    real = float((batch["encoder_segment_ids"] > 0).sum())
    masked = float(batch["masked_loss_weights"].sum())
    for rows in (batch, together):
        assert {name: float(number) for name, number in ALL.denominators(rows).items()} == {
            "soft": real, "mlm": masked, "cosine": real, "mse": real
        }  # fmt: skip


def shapes_within(jaxpr):
    """Yield the shapes of all values that a program computes, also in loops."""
    for equation in jaxpr.eqns:
        yield from (variable.aval.shape for variable in equation.outvars)
        for parameter in jax.tree.leaves(equation.params, is_leaf=lambda leaf: hasattr(leaf, "eqns") or hasattr(leaf, "jaxpr")):
            inner = getattr(parameter, "jaxpr", parameter)
            if hasattr(inner, "eqns"):
                yield from shapes_within(inner)


@pytest.mark.parametrize(
    ("changes", "computed"),
    [
        ({"soft": 0.0}, {"mlm", "cosine"}),
        ({"cosine": 0.0}, {"soft", "mlm"}),
        ({"mlm": 0.0}, {"soft", "cosine"}),
        ({"soft": 0.0, "mlm": 0.0}, {"cosine"}),
        ({"alpha": 0.3}, {"soft", "mlm"}),
        ({"alpha": 0.0}, {"mlm"}),
    ],
)
def test_term_of_coefficient_0_is_not_computed(trees, changes, computed):
    objective, batch = dataclasses.replace(ALL, mse=0.0, **changes), tiny.batch(4)
    assert objective.denominators(batch).keys() == computed

    def loss(params, aux):
        return objective.loss(params, {}, aux, batch, key=jax.random.key(0), train=True)

    out = jax.eval_shape(loss, *trees)
    assert out.terms.keys() == computed
    assert {name for name in TERMS if f"{name}_loss" in out.metrics} == computed
    shapes = set(shapes_within(jax.make_jaxpr(loss)(*trees).jaxpr))
    logits = {len(shape) > 2 and shape[-1] in (128, 256) for shape in shapes}
    assert (True in logits) == bool(computed & {"soft", "mlm"})
    # The logits of all tokens never exist at once.
    assert not any(shape[1:] in ((16, 128), (16, 256)) or shape[0] in (16 * 4,) and shape[-1] == 128 for shape in shapes if shape)
    # An evaluation still measures the student's own scores.
    measured = jax.eval_shape(lambda params, aux: objective.loss(params, {}, aux, batch, key=None, train=False), *trees)
    assert {"mlm_loss", "mlm_accuracy", "teacher_agreement"} <= measured.metrics.keys() and measured.terms.keys() == computed


def test_hintons_general_form(trees):
    objective = dataclasses.replace(ALL, alpha=0.3, temperature=4.0, over="masked")
    loss, out = compile_loss(objective, gradient=False)(trees[0], BATCH, trees[1])
    means = {name: float(metric.total / metric.weight) for name, metric in out.metrics.items()}
    assert float(loss) == pytest.approx(0.3 * means["soft_loss"] + 0.7 * means["mlm_loss"], rel=1e-6)


def test_student_is_evaluated_without_its_teacher(trees):
    out, plain = (compile_loss(objective, gradient=False)(trees[0], tiny.batch(4))[1] for objective in (ALL, Mlm(STUDENT)))
    assert out.metrics.keys() == plain.metrics.keys() == {"mlm_loss", "mlm_accuracy"}
    assert float(out.metrics["mlm_loss"].total) == pytest.approx(float(plain.metrics["mlm_loss"].total), rel=1e-6)


def test_params_are_the_student_and_aux_is_the_teacher():
    params, carry, aux = jax.eval_shape(lambda key: ALL.init(key, tiny.SHAPE), jax.random.key(0))
    plain = jax.eval_shape(lambda key: Mlm(STUDENT).init(key, tiny.SHAPE)[0], jax.random.key(0))
    assert jax.tree.structure(params) == jax.tree.structure(plain) and carry == {}
    teacher_params = jax.eval_shape(lambda key: Mlm(TEACHER_MODEL).init(key, tiny.SHAPE)[0], jax.random.key(0))
    assert jax.tree.map(lambda leaf: leaf.shape, aux["teacher"]) == jax.tree.map(lambda leaf: leaf.shape, teacher_params)
    assert ALL.networks == {"encoder": STUDENT}


def test_flops():
    """The student counts three forward passes, the teacher one; heads count the tokens that they predict."""
    shape = RowShape(16, 4)
    head = lambda config: 2 * config.hidden_size**2 + 2 * config.hidden_size * tiny.VOCABULARY  # noqa: E731
    body = lambda config: config.flops(16, 0) // 3  # noqa: E731
    expected = {
        (): 3 * (body(STUDENT) + 20 * head(STUDENT)) + body(TEACHER_MODEL) + 20 * head(TEACHER_MODEL),
        ("masked",): 3 * (body(STUDENT) + 4 * head(STUDENT)) + body(TEACHER_MODEL) + 4 * head(TEACHER_MODEL),
    }
    for over, flops in expected.items():
        objective = dataclasses.replace(ALL, over=over[0] if over else "tokens")
        assert objective.flops(shape) == flops


@pytest.mark.parametrize(
    ("count", "teacher_layers", "layers"),
    [
        (6, 12, (0, 2, 4, 7, 9, 11)),
        (3, 6, (0, 3, 5)),
        (4, 12, (0, 4, 7, 11)),
        (3, 12, (0, 6, 11)),
        (2, 4, (0, 3)),
        (1, 12, (0,)),
        (3, 3, (0, 1, 2)),
        (1, 1, (0,)),
    ],
)
def test_spread_layers(count, teacher_layers, layers):
    assert spread(count, teacher_layers) == layers


def test_invalid_settings_are_refused():
    deep = dataclasses.replace(STUDENT, num_layers=3)
    wide = dataclasses.replace(TEACHER, model=dataclasses.replace(TEACHER_MODEL, hidden_size=32))
    for changes, message in (
        ({"teacher": dataclasses.replace(TEACHER, has_head=False)}, "teacher has no masked-language-model head"),
        ({"teacher": wide}, "teacher is 32 wide and the student 16, .*: set Distillation.cosine = 0"),
        ({"layers": (0, 1)}, r"layers \(0, 1\) name 2 layers of the teacher, and the student has 1 layer"),
        ({"layers": (2,)}, r"layers \(2,\) names 2, and the teacher's layers are 0 to 1"),
        ({"model": deep}, r"the student has 3 layers and the teacher 2: .* as \(0, 0, 1\)"),
    ):
        with pytest.raises(UserError, match=message):
            dataclasses.replace(ALL, **changes)
    for changes, message in (
        ({"alpha": 1.5}, r"alpha 1.5 is not in \[0, 1\]"),
        ({"temperature": 0.0}, "temperature 0.0 must be above 0"),
        ({"over": "rows"}, "over 'rows' is not one of tokens, masked"),
        ({"layers": "first"}, "layers 'first' is not one of spread, random"),
        ({"pieces": 0}, "pieces 0 is less than 1"),
        ({"soft": 0.0, "mlm": 0.0, "cosine": 0.0, "mse": 0.0}, "nothing would be learnt"),
        ({"mlm": -1.0}, "mlm -1.0 is no coefficient"),
    ):
        with pytest.raises(ValueError, match=message):
            dataclasses.replace(ALL, **changes)
    # Terms that need neither logits nor equal widths are still possible.
    dataclasses.replace(ALL, teacher=dataclasses.replace(TEACHER, has_head=False), soft=0.0, mse=0.0)
    dataclasses.replace(ALL, teacher=wide, cosine=0.0)
    with pytest.raises(UserError, match="Stage.length 24 is more than the 20 tokens that the teacher teacher reads"):
        short = dataclasses.replace(TEACHER, model=dataclasses.replace(TEACHER_MODEL, max_length=20))
        dataclasses.replace(ALL, teacher=short).features(RowShape(24, 4))
