"""Marginal log-likelihoods of targets over retrieved passages, in log space (Lewis et al. 2020, RAG, section 2.1).

The arguments have these shapes:

- passages: float32[batch, k], log p(z | x), a softmax over the k passages alone.
- tokens: float32[batch, k, targets], log p(y_t | x, z, y_1 .. y_t-1).
- weights: float32[batch, targets], 1 at targets and 0 at padding, which adds exactly nothing, to the gradient too.
"""

from collections.abc import Callable, Mapping
from typing import Literal, get_args

import jax
import jax.numpy as jnp

Marginal = Literal["sequence", "token"]
Likelihood = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def passage_log_probabilities(scores: jax.Array) -> jax.Array:
    """Compute log p(z | x) from the inner products float32[batch, k] of questions and their passages."""
    return jax.nn.log_softmax(scores.astype(jnp.float32), axis=-1)


def sequence_log_likelihood(passages: jax.Array, tokens: jax.Array, weights: jax.Array) -> jax.Array:
    """Compute log sum over z of p(z | x) prod over t of p(y_t | x, z, y_1 .. y_t-1), of RAG-Sequence: float32[batch]."""
    return jax.nn.logsumexp(passages + jnp.sum(_zero_padding(tokens, weights), axis=-1), axis=-1)


def token_log_likelihood(passages: jax.Array, tokens: jax.Array, weights: jax.Array) -> jax.Array:
    """Compute sum over t of log sum over z of p(z | x) p(y_t | x, z, y_1 .. y_t-1), of RAG-Token: float32[batch]."""
    marginal = jax.nn.logsumexp(passages[:, :, None] + _zero_padding(tokens, weights), axis=1)
    return jnp.sum(jnp.where(weights > 0, marginal, 0.0), axis=-1)


LOG_LIKELIHOODS: Mapping[Marginal, Likelihood] = dict(
    zip(get_args(Marginal), (sequence_log_likelihood, token_log_likelihood), strict=True)
)


def _zero_padding(tokens: jax.Array, weights: jax.Array) -> jax.Array:
    return jnp.where(weights[:, None] > 0, tokens, 0.0)
