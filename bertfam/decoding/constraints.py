"""Constraints on the next token: the scores of excluded tokens become -infinity."""

import jax
import jax.numpy as jnp

from bertfam.decoding.stepper import Ends, ended
from bertfam.decoding.strategies import Limits, Sample


def constrain(
    scores: jax.Array, history: jax.Array, first: jax.Array, prompt: int, written: jax.Array, limits: Limits, ends: Ends
) -> jax.Array:
    """Apply `limits` and `ends` to the scores of the next token.

    Args:
      scores: float32[rows, vocabulary], logits or log-probabilities.
      history: int32[rows, length], prompts followed by the new tokens.
      first: int32[rows], place of the first token that is not padding.
      prompt: length of the prompts with their padding.
      written: int32[], number of new tokens so far.
      limits: bounds on repeated n-grams and on the number of tokens.
      ends: tokens that end a text, and the forced first and last tokens, which get score 0.
    """
    vocabulary = jnp.arange(scores.shape[-1])
    if limits.no_repeat_ngrams:
        repeated = repeated_ngrams(history, first, prompt + written, limits.no_repeat_ngrams, len(vocabulary))
        scores = jnp.where(repeated, -jnp.inf, scores)
    if limits.min_new_tokens and ends.ids:
        scores = jnp.where(ended(vocabulary, ends) & (written < limits.min_new_tokens), -jnp.inf, scores)
    for forced, place in ((ends.first, 0), (ends.last, limits.max_new_tokens - 1)):
        if forced is not None:
            scores = jnp.where(written == place, jnp.where(vocabulary == forced, 0.0, -jnp.inf), scores)
    return scores


def repeated_ngrams(history: jax.Array, first: jax.Array, length: jax.Array, size: int, vocabulary: int) -> jax.Array:
    """Find the tokens that would complete an n-gram of the text again: bool[rows, vocabulary].

    Args:
      history: int32[rows, slots].
      first: int32[rows], first slot of the text.
      length: int32[], slot behind the last token of the text.
      size: length of the n-grams.
      vocabulary: size of the vocabulary.
    """
    rows, slots = history.shape
    if slots < size:
        return jnp.zeros((rows, vocabulary), bool)
    # [rows, size - 1]: the n-gram's tokens before the next one; no n-gram ends before the text has `size` tokens
    prefix = jax.lax.dynamic_slice_in_dim(history, jnp.maximum(length - size + 1, 0), size - 1, axis=1)
    starts = jnp.arange(slots - size + 1)
    matches = (starts >= first[:, None]) & (starts + size <= length)
    for place in range(size - 1):
        matches &= history[:, place : place + len(starts)] == prefix[:, place, None]
    last = history[:, size - 1 :]
    return jnp.zeros((rows, vocabulary), bool).at[jnp.arange(rows)[:, None], last].max(matches)


def truncate(logits: jax.Array, sample: Sample) -> jax.Array:
    """Apply temperature, top-k and top-p to logits float32[rows, vocabulary]."""
    logits = logits / sample.temperature
    if sample.top_k:
        least = jax.lax.top_k(logits, min(sample.top_k, logits.shape[-1]))[0][:, -1:]
        logits = jnp.where(logits < least, -jnp.inf, logits)
    if sample.top_p < 1:
        order = jnp.argsort(logits, axis=-1)
        ascending = jnp.take_along_axis(logits, order, axis=-1)
        # Probability of a token together with all less likely ones; the likeliest stays in spite of rounding.
        below = jnp.cumsum(jax.nn.softmax(ascending, axis=-1), axis=-1)
        drop = (below <= 1 - sample.top_p).at[:, -1].set(False)
        rows = jnp.arange(len(logits))[:, None]
        logits = jnp.where(jnp.zeros_like(drop).at[rows, order].set(drop), -jnp.inf, logits)
    return logits
