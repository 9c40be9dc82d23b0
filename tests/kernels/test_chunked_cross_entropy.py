"""Chunked cross-entropy against values computed by hand, torch and the plain loss, in gradients and on every mesh."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import xla
from fork_server import run_program

from bertfam.kernels import cross_entropy, rows
from bertfam.kernels.chunked_cross_entropy import VocabularyLoss, chunked_cross_entropy, target_log_probabilities, token_scores
from bertfam.kernels.cross_entropy import likeliest

BATCH, LENGTH, EMBED, ROWS, REAL = 3, 11, 6, 24, 21
PLAIN = VocabularyLoss(REAL)


def arguments(dtype=jnp.float32, bias=True):
    generator = np.random.default_rng(0)
    hidden = generator.normal(size=(BATCH, LENGTH, EMBED)).astype(dtype)
    kernel = generator.normal(size=(ROWS, EMBED)).astype(np.float32)
    weights = np.float32(generator.integers(0, 3, (BATCH, LENGTH)) * 0.5)
    targets = generator.integers(0, REAL, (BATCH, LENGTH), np.int32)
    return hidden, kernel, generator.normal(size=ROWS).astype(np.float32) if bias else None, targets, weights


def plain_sums(hidden, kernel, bias, targets, weights, settings):
    """Compute the sums with all logits of the real tokens at once, and gradients by JAX."""
    kernel = kernel.astype(hidden.dtype)[: settings.vocab_size]
    logits = jnp.einsum("bne,ve->bnv", hidden, kernel, preferred_element_type=jnp.float32)
    logits = logits if bias is None else logits + bias[: settings.vocab_size]
    log_z = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    surprise = log_z - logits
    loss = jnp.take_along_axis(surprise, targets[..., None], axis=-1)[..., 0]
    smooth = (1 - settings.label_smoothing) * loss + settings.label_smoothing * surprise.mean(-1)
    z_loss = settings.z_loss * log_z[..., 0] ** 2
    correct = jnp.argmax(logits, axis=-1) == targets
    return [jnp.sum(weights * values) for values in (smooth + z_loss, loss, z_loss, correct)]


def test_values_computed_by_hand():
    """Logits of two tokens are (0, ln 3) and (0, 0); the third row of the table has no token, the third place no weight."""
    hidden = np.float32([[[1.0], [0.0], [5.0]]])
    kernel = np.float32([[0.0], [np.log(3.0)], [100.0]])
    actual = jax.jit(chunked_cross_entropy, static_argnums=5)(
        hidden, kernel, None, np.array([[0, 1, 0]]), np.float32([[1.0, 2.0, 0.0]]), VocabularyLoss(2, z_loss=0.5, chunk=2)
    )
    log4, log2 = np.log(4), np.log(2)
    np.testing.assert_allclose(actual.cross_entropy, log4 + 2 * log2, rtol=1e-6)
    np.testing.assert_allclose(actual.z_loss, 0.5 * (log4**2 + 2 * log2**2), rtol=1e-6)
    np.testing.assert_allclose(actual.loss, actual.cross_entropy + actual.z_loss, rtol=1e-6)
    assert actual.correct == 0  # of two equal logits the first counts


@pytest.fixture
def with_kernel(request, monkeypatch):
    """Let the kernel compute the losses, in steps of fewer columns than a row has; it is interpreted here."""
    if request.param:
        monkeypatch.setattr(rows, "run_here", lambda dtype: True)
        monkeypatch.setattr(cross_entropy, "_COLUMNS", 8)


@pytest.mark.parametrize(
    ("chunk", "has_biases", "with_kernel"),
    [(1, [True], False), (4, [True, False], False), (64, [True], False), (4, [True], True)],
    indirect=["with_kernel"],
)
def test_value_and_gradients_match_the_plain_loss(chunk, has_biases, with_kernel):
    settings = VocabularyLoss(REAL, z_loss=0.05, label_smoothing=0.1, chunk=chunk)
    for has_bias in has_biases:
        args = arguments(bias=has_bias)
        which = (0, 1, 2) if has_bias else (0, 1)

        def both(function, args=args, which=which):
            (loss, others), gradients = jax.value_and_grad(
                lambda *args: ((actual := function(*args, settings))[0] * 1.7, actual[1:]), which, has_aux=True
            )(*args)
            return loss, tuple(others), gradients

        chunked, plain = (jax.jit(both, static_argnums=0)(function) for function in (chunked_cross_entropy, plain_sums))
        assert jax.tree.structure(chunked) == jax.tree.structure(plain)
        jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5), chunked, plain)
        assert not np.any(chunked[2][1][REAL:])  # rows without a token
        # Without differentiation the sums are computed in another way.
        sums = jax.jit(chunked_cross_entropy, static_argnums=5)(*args, settings)
        np.testing.assert_allclose(sums[1:], plain[1], rtol=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_loss_and_gradients_match_torch(smoothing):
    torch = pytest.importorskip("torch")
    hidden, kernel, bias, targets, weights = (np.array(array) for array in arguments())
    weights = np.sign(weights)
    tensors = [torch.tensor(array, requires_grad=True) for array in (hidden, kernel, bias)]
    logits = (tensors[0] @ tensors[1].T + tensors[2])[..., :REAL].reshape(-1, REAL)
    labels = np.where(weights > 0, targets, -100).reshape(-1)
    loss = torch.nn.CrossEntropyLoss(label_smoothing=smoothing)(logits, torch.tensor(labels).long())
    loss.backward()

    def mean_loss(hidden, kernel, bias):
        settings = VocabularyLoss(REAL, label_smoothing=smoothing, chunk=4)
        return chunked_cross_entropy(hidden, kernel, bias, targets, weights, settings).loss / weights.sum()

    actual, gradients = jax.jit(jax.value_and_grad(mean_loss, (0, 1, 2)))(hidden, kernel, bias)
    np.testing.assert_allclose(actual, loss.item(), rtol=1e-5)
    for one, tensor in zip(gradients, tensors, strict=True):
        np.testing.assert_allclose(one, tensor.grad.numpy(), rtol=1e-5, atol=1e-6)


def test_bfloat16_hidden_states_have_float32_logits():
    args = arguments(jnp.bfloat16)
    gradient = jax.jit(jax.value_and_grad(lambda *args: chunked_cross_entropy(*args, PLAIN).loss, (0, 1)))
    (loss, (hidden_gradient, kernel_gradient)) = gradient(*args)
    plain_gradient = jax.jit(jax.value_and_grad(lambda *args: plain_sums(*args, PLAIN)[0], (0, 1)))
    (expected, (expected_hidden, expected_kernel)) = plain_gradient(
        args[0].astype(np.float32), args[1].astype(jnp.bfloat16).astype(np.float32), *args[2:]
    )
    np.testing.assert_allclose(loss, expected, rtol=1e-5)  # bfloat16 logits would differ by 1e-3
    assert hidden_gradient.dtype == jnp.bfloat16 and kernel_gradient.dtype == jnp.float32
    np.testing.assert_allclose(hidden_gradient.astype(jnp.float32), expected_hidden, rtol=0.02, atol=0.02)
    np.testing.assert_allclose(kernel_gradient, expected_kernel, rtol=0.02, atol=0.05)


@pytest.mark.parametrize("with_kernel", [False, True], indirect=True)
def test_places_of_weight_0_add_exactly_nothing(with_kernel):
    hidden, kernel, bias, targets, weights = arguments()
    wild = np.where(weights[..., None] > 0, hidden, np.float32([np.nan, np.inf, -np.inf, 1e38, 0, 1.0]))
    gradient = jax.jit(
        jax.value_and_grad(
            lambda hidden, kernel, bias, weights: chunked_cross_entropy(hidden, kernel, bias, targets, weights, PLAIN).loss,
            (0, 1, 2),
        )
    )
    expected, actual = (gradient(array, kernel, bias, weights) for array in (hidden, wild))
    jax.tree.map(np.testing.assert_array_equal, actual, expected)
    assert not np.any(np.asarray(actual[1][0])[weights == 0])
    loss, gradients = gradient(wild, kernel, bias, np.zeros_like(weights))
    assert loss == 0 and not any(np.any(array) for array in gradients)


def test_scores_of_all_places():
    hidden, kernel, bias, targets, _ = arguments()
    actual = jax.jit(token_scores, static_argnums=4)(hidden, kernel, bias, targets, VocabularyLoss(REAL, chunk=4))
    logits = (hidden @ kernel.T + bias)[..., :REAL]
    expected = scipy.special.log_softmax(logits, axis=-1)
    np.testing.assert_allclose(
        actual.log_probabilities, np.take_along_axis(expected, targets[..., None], axis=-1)[..., 0], rtol=1e-5
    )
    np.testing.assert_array_equal(actual.best, expected.argmax(-1))
    np.testing.assert_allclose(actual.best_log_probabilities, expected.max(-1), rtol=1e-5, atol=1e-6)


def test_log_probabilities_of_targets_with_gradient():
    """Any function of them has the gradient of the plain ones; a hidden state of weight 0 has none, even if it is no number."""
    hidden, kernel, bias, targets, weights = arguments()
    factors = np.float32(np.random.default_rng(1).normal(size=targets.shape))

    def plain(hidden, kernel, bias):
        logits = (jnp.einsum("bne,ve->bnv", hidden, kernel) + bias)[..., :REAL]
        found = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], axis=-1)[..., 0]
        return jnp.sum(found**2 * factors * (weights > 0))

    def chunked(hidden, kernel, bias):
        hidden = jnp.where(weights[..., None] > 0, hidden, jnp.nan)
        found = target_log_probabilities(hidden, kernel, bias, targets, weights, VocabularyLoss(REAL, chunk=4))
        return jnp.sum(found**2 * factors)

    ours, theirs = (jax.jit(jax.value_and_grad(one, (0, 1, 2)))(hidden, kernel, bias) for one in (chunked, plain))
    jax.tree.map(lambda left, right: np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-5), ours, theirs)
    assert np.abs(theirs[1][1]).max() > 0.1


def test_likeliest_is_the_first_of_the_largest():
    logits = np.array(
        [[0.5, 2.0, 2.0, -1.0], [-1e9, -1e9, -3.0, -3.0], [0.0, 0.0, 0.0, 0.0], [1.0, 2.0, 3.0, np.inf]], np.float32
    )
    assert np.array_equal(jax.jit(likeliest)(logits), np.argmax(logits, axis=-1))


def test_no_program_holds_the_logits():
    """In training and in evaluation the largest buffer is of one chunk, and the memory is that of few chunks."""
    batch, length, embed, height, chunk = 2, 512, 8, 4096, 16
    shapes = [(batch, length, embed), (height, embed), (height,), (batch, length), (batch, length)]
    args = [
        jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in zip(shapes, ["float32"] * 3 + ["int32", "float32"], strict=True)
    ]
    settings = VocabularyLoss(height, z_loss=1e-4, label_smoothing=0.1, chunk=chunk)
    logits = 4 * batch * length * height

    def loss(function):
        return lambda *args: function(*args, settings)[0]

    gradient = jax.grad(loss(chunked_cross_entropy), (0, 1, 2))
    for function in (gradient, loss(chunked_cross_entropy)):
        compiled = jax.jit(function).lower(*args).compile()
        text = compiled.as_text()
        assert f"[{batch},{length},{height}]" not in text and f"[{batch},{chunk},{height}]" in text
        assert compiled.memory_analysis().temp_size_in_bytes < 8 * logits * chunk / length
    whole = jax.jit(jax.grad(loss(plain_sums), (0, 1, 2))).lower(*args).compile()
    assert whole.memory_analysis().temp_size_in_bytes > logits  # the measure distinguishes the two


def test_meshes_give_the_same_sums():
    """Eight devices give the same sums and gradients, and sum nothing over devices in the loop."""
    out, _ = run_program(Path(__file__).parent / "chunked_meshes.py", environment=xla.device_environment(8))
    actual = json.loads(out.splitlines()[-1])
    assert actual["differences"] and max(actual["differences"]) < 1e-5
    assert actual["kernel_sums"] == [["outside"], ["outside"]]
