"""Which tokens may come next: scores of the others become -infinity."""

import jax
import jax.numpy as jnp

from bertfam.decoding.stepper import Ends, ended
from bertfam.decoding.strategies import Limits, Sample


def constrained(
    scores: jax.Array, history: jax.Array, first: jax.Array, prompt: int, written: jax.Array, limits: Limits, ends: Ends
) -> jax.Array:
    """Scores of the next token under `limits` and `ends`.

    Args:
      scores: float32[rows, vocabulary], logits or log-probabilities.
      history: int32[rows, length], prompts and then what has been written.
      first: int32[rows], the place of the first token that is no padding.
      prompt: the length of the prompts with their padding.
      written: int32[], how many tokens have been.
      limits: the n-grams, and the fewest tokens.
      ends: what ends a text, and what must begin and end it; these are of score 0.
    """
    vocabulary = jnp.arange(scores.shape[-1])
    if limits.no_repeat_ngrams:
        scores = jnp.where(repeated(history, first, prompt + written, limits.no_repeat_ngrams, len(vocabulary)), -jnp.inf, scores)
    if limits.min_new_tokens and ends.ids:
        scores = jnp.where(ended(vocabulary, ends) & (written < limits.min_new_tokens), -jnp.inf, scores)
    for forced, place in ((ends.first, 0), (ends.last, limits.max_new_tokens - 1)):
        if forced is not None:
            scores = jnp.where(written == place, jnp.where(vocabulary == forced, 0.0, -jnp.inf), scores)
    return scores


def repeated(history: jax.Array, first: jax.Array, length: jax.Array, size: int, vocabulary: int) -> jax.Array:
    """The tokens that would end an n-gram which stands in the text already: bool[rows, vocabulary].

    Args:
      history: int32[rows, slots].
      first, length: int32[rows] and int32[], the text lies in the slots first ... length - 1.
      size: of n-grams.
      vocabulary: how many tokens there are.
    """
    rows, slots = history.shape
    if slots < size:
        return jnp.zeros((rows, vocabulary), bool)
    # [rows, size - 1]: what the next token would end; no n-gram ends before the text has `size` tokens
    begun = jax.lax.dynamic_slice_in_dim(history, jnp.maximum(length - size + 1, 0), size - 1, axis=1)
    starts = jnp.arange(slots - size + 1)
    found = (starts >= first[:, None]) & (starts + size <= length)
    for place in range(size - 1):
        found &= history[:, place : place + len(starts)] == begun[:, place, None]
    last = history[:, size - 1 :]
    return jnp.zeros((rows, vocabulary), bool).at[jnp.arange(rows)[:, None], last].max(found)


def cut(logits: jax.Array, sample: Sample) -> jax.Array:
    """The logits float32[rows, vocabulary] of the distribution that is drawn from."""
    logits = logits / sample.temperature
    if sample.top_k:
        least = jax.lax.top_k(logits, min(sample.top_k, logits.shape[-1]))[0][:, -1:]
        logits = jnp.where(logits < least, -jnp.inf, logits)
    if sample.top_p < 1:
        order = jnp.argsort(logits, axis=-1)
        ascending = jnp.take_along_axis(logits, order, axis=-1)
        # The probability of a token and of all less likely ones; the likeliest stays whatever rounding says.
        below = jnp.cumsum(jax.nn.softmax(ascending, axis=-1), axis=-1)
        drop = (below <= 1 - sample.top_p).at[:, -1].set(False)
        rows = jnp.arange(len(logits))[:, None]
        logits = jnp.where(jnp.zeros_like(drop).at[rows, order].set(drop), -jnp.inf, logits)
    return logits
