"""Constraints on the next token, equal to the logits processors of transformers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertfam.decoding.constraints import constrain, repeated_ngrams, truncate
from bertfam.decoding.stepper import Ends
from bertfam.decoding.strategies import Limits, Sample

torch = pytest.importorskip("torch")
logits_process = pytest.importorskip("transformers.generation.logits_process")


@pytest.mark.parametrize(
    "sample",
    [Sample(0.7, 5), Sample(1.3, 0, 0.9), Sample(1.0, 8, 0.6), Sample(0.1, 0, 0.01), Sample(2.0, 999), Sample(1.0, 3, 0.5)],
)
def test_truncated_distribution_equals_that_of_transformers(sample):
    logits = 3 * np.random.default_rng(0).standard_normal((64, 50)).astype(np.float32)
    logits[:16] = logits[:16].round()  # ties, some of them at the threshold
    logits[:, 7] = -np.inf  # already forbidden
    processors = [logits_process.TemperatureLogitsWarper(sample.temperature)]
    processors += [logits_process.TopKLogitsWarper(sample.top_k)] if sample.top_k else []
    processors += [logits_process.TopPLogitsWarper(sample.top_p)] if sample.top_p < 1 else []
    expected = torch.tensor(logits)
    for processor in processors:
        expected = processor(None, expected)
    expected, probabilities = torch.softmax(expected, -1).numpy(), np.array(jax.jit(truncate, static_argnums=1)(logits, sample))
    probabilities = np.exp(probabilities - probabilities.max(-1, keepdims=True))
    probabilities /= probabilities.sum(-1, keepdims=True)
    # It is undefined which of several equally likely tokens at the threshold of top_p stays, so the sorted rows are compared.
    np.testing.assert_allclose(np.sort(probabilities), np.sort(expected), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(probabilities[16:], expected[16:], rtol=1e-5, atol=1e-7)
    assert (probabilities[:, 7] == 0).all() and ((probabilities > 0).sum(-1) >= 1).all()


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_repeated_ngrams_equal_those_of_transformers(size):
    """Compare with transformers on each text alone, without its padding and free positions."""
    generator, vocabulary = np.random.default_rng(size), 5
    history = generator.integers(0, vocabulary, (40, 30)).astype(np.int32)
    length = 24
    first = np.append(generator.integers(0, length, 36), [length - 1, length - 2, length - 3, 0]).astype(np.int32)
    repeated = jax.jit(repeated_ngrams, static_argnums=(3, 4))
    forbidden = np.asarray(repeated(history, first, np.int32(length), size, vocabulary))
    processor = logits_process.NoRepeatNGramLogitsProcessor(size)
    for row, start in enumerate(first):
        text = torch.tensor(history[None, row, start:length], dtype=torch.long)
        expected = processor(text, torch.zeros(1, vocabulary)).isinf().numpy()[0]
        np.testing.assert_array_equal(forbidden[row], expected)
    assert forbidden.any() and (size == 1 or not forbidden.all())
    assert not repeated(history[:, :2], np.zeros(40, np.int32), np.int32(2), 3, vocabulary).any()


def test_end_tokens_are_forbidden_first_and_forced_last():
    ends, limits = Ends((1, 3), 0, first=2, last=3), Limits(6, min_new_tokens=2)

    @functools.partial(jax.jit, static_argnums=(1, 2))
    def constrained(written, limits, ends):
        return constrain(jnp.zeros((1, 5)), jnp.zeros((1, 9), jnp.int32), jnp.zeros(1, jnp.int32), 3, written, limits, ends)

    def allowed(written, limits=limits, ends=ends):
        return np.flatnonzero(np.isfinite(constrained(np.int32(written), limits, ends)[0])).tolist()

    assert [allowed(written) for written in range(6)] == [[2], [0, 2, 4], *[[0, 1, 2, 3, 4]] * 3, [3]]
    assert allowed(0, Limits(1)) == [3]  # as in transformers, the last token is the forced end
    assert [allowed(written, ends=Ends((1,), 0)) for written in (0, 1, 2)] == [[0, 2, 3, 4]] * 2 + [[0, 1, 2, 3, 4]]
    assert allowed(0, ends=Ends((), 0)) == [0, 1, 2, 3, 4]
