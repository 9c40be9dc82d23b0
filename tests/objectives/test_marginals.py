"""Marginal likelihoods over passages: against probabilities by hand, all targets of a tiny vocabulary, and transformers' RAG."""

import itertools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertfam.kernels.chunked_cross_entropy import VocabularyLoss, target_log_probabilities
from bertfam.objectives.retrieval.marginals import LOG_LIKELIHOODS, passage_log_probabilities

BATCH, PASSAGES, LENGTH, VOCABULARY, PAD = 2, 3, 4, 5, 0
LENGTHS = (4, 2)
KINDS = pytest.mark.parametrize("kind", ["sequence", "token"])


def arguments():
    """Return scores, logits, targets without padding tokens, and weights."""
    generator = np.random.default_rng(0)
    weights = np.float32(np.arange(LENGTH) < np.array(LENGTHS)[:, None])
    targets = np.where(weights > 0, generator.integers(1, VOCABULARY, weights.shape), PAD).astype(np.int32)
    scores = generator.normal(0, 2, (BATCH, PASSAGES))
    return scores, generator.normal(0, 2, (BATCH, PASSAGES, LENGTH, VOCABULARY)), targets, weights


def log_likelihood(kind, scores, logits, targets, weights):
    """Compute the marginal as the objective does: a kernel that is the identity makes logits of hidden states."""
    rows = BATCH * PASSAGES
    repeated, real = (jnp.repeat(array, PASSAGES, axis=0) for array in (targets, weights))
    kernel = jnp.eye(VOCABULARY, dtype=jnp.float32)
    hidden = logits.reshape(rows, LENGTH, VOCABULARY)
    tokens = target_log_probabilities(hidden, kernel, None, repeated, real, VocabularyLoss(VOCABULARY, chunk=3))
    return LOG_LIKELIHOODS[kind](passage_log_probabilities(scores), tokens.reshape(BATCH, PASSAGES, LENGTH), weights)


def by_hand(kind, scores, logits, targets, lengths):
    """Compute the likelihood of each row in probabilities and float64, by loops."""
    prior = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    tokens = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    found = []
    for row, length in enumerate(lengths):
        probabilities = [[tokens[row, z, t, targets[row, t]] for t in range(length)] for z in range(PASSAGES)]
        if kind == "sequence":
            found.append(sum(prior[row, z] * np.prod(probabilities[z]) for z in range(PASSAGES)))
        else:
            found.append(np.prod([sum(prior[row, z] * probabilities[z][t] for z in range(PASSAGES)) for t in range(length)]))
    return np.array(found)


@KINDS
def test_values_and_gradients_by_hand(kind):
    """Gradients are central differences of probabilities in float64."""
    scores, logits, targets, weights = arguments()
    ours = jax.jit(lambda *args: log_likelihood(kind, *args, targets, weights))(np.float32(scores), np.float32(logits))
    np.testing.assert_allclose(ours, np.log(by_hand(kind, scores, logits, targets, LENGTHS)), rtol=1e-5)
    gradients = jax.jit(jax.grad(lambda *args: jnp.sum(log_likelihood(kind, *args, targets, weights)), (0, 1)))(
        np.float32(scores), np.float32(logits)
    )
    for which, gradient in enumerate(gradients):
        for place in np.ndindex(gradient.shape):
            values = []
            for step in (1e-5, -1e-5):
                moved = [scores.copy(), logits.copy()]
                moved[which][place] += step
                values.append(np.log(by_hand(kind, *moved, targets, LENGTHS)).sum())
            assert gradient[place] == pytest.approx((values[0] - values[1]) / 2e-5, abs=1e-5)


@KINDS
def test_all_targets_have_probability_one(kind):
    scores, logits, _, _ = arguments()
    total = np.zeros(BATCH)
    run = jax.jit(lambda targets: log_likelihood(kind, np.float32(scores), np.float32(logits), targets, jnp.ones_like(targets)))
    for tokens in itertools.product(range(VOCABULARY), repeat=LENGTH):
        total += np.exp(run(np.tile(np.array(tokens, np.int32), (BATCH, 1))))
    np.testing.assert_allclose(total, 1, atol=1e-5)


@KINDS
def test_padding_adds_nothing(kind):
    """Not even logits that are no numbers have a gradient there."""
    scores, logits, targets, weights = arguments()
    logits[1, :, LENGTHS[1] :] = np.nan
    value, gradient = jax.jit(jax.value_and_grad(lambda own: log_likelihood(kind, np.float32(scores), own, targets, weights)[1]))(
        np.float32(logits)
    )
    assert np.isfinite(value) and np.isfinite(gradient).all() and not np.any(gradient[1, :, LENGTHS[1] :])


@KINDS
def test_transformers(kind):
    """Loss and gradients are those of `get_nll`, which shifts the targets and drops the first."""
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    scores, logits, targets, weights = arguments()
    name = {"sequence": "RagSequenceForGeneration", "token": "RagTokenForGeneration"}[kind]
    cls = getattr(transformers, name)
    generator = types.SimpleNamespace(pad_token_id=PAD, bos_token_id=None)
    model = types.SimpleNamespace(config=types.SimpleNamespace(n_docs=PASSAGES, bos_token_id=None, generator=generator))
    model.marginalize = types.MethodType(transformers.RagTokenForGeneration.marginalize, model)
    # A last place more, whose target is padding.
    longer = np.concatenate([logits, np.zeros((BATCH, PASSAGES, 1, VOCABULARY))], axis=2)
    theirs = [torch.tensor(array, requires_grad=True) for array in (scores, longer)]
    labels = torch.tensor(np.pad(targets, ((0, 0), (1, 0)), constant_values=1)).long()
    losses = cls.get_nll(model, theirs[1].reshape(BATCH * PASSAGES, LENGTH + 1, VOCABULARY), theirs[0], labels)
    losses.sum().backward()
    ours, gradients = jax.jit(jax.value_and_grad(lambda *args: -jnp.sum(log_likelihood(kind, *args, targets, weights)), (0, 1)))(
        np.float32(scores), np.float32(logits)
    )
    assert ours == pytest.approx(losses.sum().item(), rel=1e-5)
    np.testing.assert_allclose(gradients[0], theirs[0].grad, atol=1e-5)
    np.testing.assert_allclose(gradients[1], theirs[1].grad[:, :, :LENGTH], atol=1e-5)
