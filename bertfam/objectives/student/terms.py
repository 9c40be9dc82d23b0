"""Loss terms between a student and its teacher, and helpers that compare logits piece by piece."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from bertfam.kernels.chunked_cross_entropy import NO_TOKEN_LOGIT

_TINY = 1e-12  # added to squared norms, as torch does


def soft_targets(student: jax.Array, teacher: jax.Array, weights: jax.Array, temperature: float) -> jax.Array:
    """Sum T^2 KL(softmax(teacher / T) || softmax(student / T)) by weights (Hinton et al. 2015, section 2): float32[].

    The factor T^2 keeps the gradient's size, which falls with 1 / T^2.

    Args:
      student: float32[..., vocabulary] logits.
      teacher: float32[..., vocabulary] logits.
      weights: float32[...]; a place of weight 0 adds exactly nothing, to the gradient too, whatever its logits.
      temperature: T.
    """
    ours, theirs = (jax.nn.log_softmax(_where(weights, logits) / temperature) for logits in (student, teacher))
    # A table's row without a token has probability 0 in both, and a finite difference of logarithms.
    divergence = jnp.sum(jnp.exp(theirs) * (theirs - ours), axis=-1)
    return temperature**2 * jnp.sum(divergence * weights)


def squared_differences(student: jax.Array, teacher: jax.Array, weights: jax.Array) -> jax.Array:
    """Sum the squared differences of logits over the vocabulary and, by weights, over tokens (arguments as in `soft_targets`)."""
    differences = _where(weights, student) - _where(weights, teacher)
    return jnp.sum(jnp.sum(differences * differences, axis=-1) * weights)


def cosine_distances(student: jax.Array, teacher: jax.Array, weights: jax.Array) -> jax.Array:
    """Sum 1 - cos(student, teacher) by weights: float32[].

    Args:
      student: [..., embed] hidden states.
      teacher: [..., embed] hidden states.
      weights: float32[...]; a place of weight 0 adds exactly nothing, to the gradient too.
    """
    ours, theirs = _where(weights, student), _where(weights, teacher)
    norms = (jnp.sum(ours * ours, axis=-1) + _TINY) * (jnp.sum(theirs * theirs, axis=-1) + _TINY)
    return jnp.sum((1 - jnp.sum(ours * theirs, axis=-1) * jax.lax.rsqrt(norms)) * weights)


def _where(weights: jax.Array, values: jax.Array) -> jax.Array:
    """Return float32 values [..., n] where there is weight [...], else 0: 0 times a gradient that is not finite is not 0."""
    return jnp.where(weights[..., None] > 0, values.astype(jnp.float32), 0.0)


def with_rows(logits: jax.Array, rows: int) -> jax.Array:
    """Drop or add logits behind the real tokens, which have no probability, to match a table of `rows` rows."""
    if logits.shape[-1] >= rows:
        return logits[..., :rows]
    return jnp.pad(logits, [(0, 0)] * (logits.ndim - 1) + [(0, rows - logits.shape[-1])], constant_values=NO_TOKEN_LOGIT)


def in_pieces(values: jax.Array, pieces: int) -> jax.Array:
    """Split rows: [batch, length, ...] -> [pieces, batch, length / pieces, ...]; zeros fill the last piece."""
    batch, length, *rest = values.shape
    size = -(-length // min(pieces, length))
    count = -(-length // size)
    padded = jnp.pad(values, [(0, 0), (0, count * size - length)] + [(0, 0)] * len(rest))
    cut = jnp.moveaxis(padded.reshape(batch, count, size, *rest), 1, 0)
    return nn.with_logical_constraint(cut, (None, "batch", *[None] * (cut.ndim - 2)))
