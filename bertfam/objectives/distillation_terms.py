"""What a student is to have in common with its teacher: the terms of distillation, and logits of all tokens in pieces."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from bertfam.kernels.chunked_cross_entropy import NO_TOKEN_LOGIT

_TINY = 1e-12  # added to squared norms, as torch does


def soft_targets(student: jax.Array, teacher: jax.Array, weights: jax.Array, temperature: float) -> jax.Array:
    """Weighted sum of T^2 KL(softmax(teacher / T) || softmax(student / T)) (Hinton et al. 2015, section 2): float32[].

    The factor T^2 keeps the gradient's size, which falls with 1 / T^2.

    Args:
      student: float32[..., vocabulary] logits.
      teacher: float32[..., vocabulary] logits.
      weights: float32[...]; a place of weight 0 adds exactly nothing, to the gradient too, whatever its logits.
      temperature: T.
    """
    ours, theirs = (jax.nn.log_softmax(_where(weights, logits) / temperature) for logits in (student, teacher))
    # A row of the table that is no token has the probability 0 with both, and a finite difference of logarithms.
    divergence = jnp.sum(jnp.exp(theirs) * (theirs - ours), axis=-1)
    return temperature**2 * jnp.sum(divergence * weights)


def squared_differences(student: jax.Array, teacher: jax.Array, weights: jax.Array) -> jax.Array:
    """Weighted sum of the squared differences of logits, summed over the vocabulary: float32[]. See `soft_targets`."""
    differences = _where(weights, student) - _where(weights, teacher)
    return jnp.sum(jnp.sum(differences * differences, axis=-1) * weights)


def cosine_distances(student: jax.Array, teacher: jax.Array, weights: jax.Array) -> jax.Array:
    """Weighted sum of 1 - cos(student, teacher): float32[].

    Args:
      student: [..., embed] hidden states.
      teacher: [..., embed] hidden states.
      weights: float32[...]; a place of weight 0 adds exactly nothing, to the gradient too.
    """
    ours, theirs = _where(weights, student), _where(weights, teacher)
    norms = (jnp.sum(ours * ours, axis=-1) + _TINY) * (jnp.sum(theirs * theirs, axis=-1) + _TINY)
    return jnp.sum((1 - jnp.sum(ours * theirs, axis=-1) * jax.lax.rsqrt(norms)) * weights)


def _where(weights: jax.Array, values: jax.Array) -> jax.Array:
    """float32 values [..., n] where there is weight [...], else 0: 0 times a gradient that is not finite would not be 0."""
    return jnp.where(weights[..., None] > 0, values.astype(jnp.float32), 0.0)


def as_wide(logits: jax.Array, rows: int) -> jax.Array:
    """Logits over a table of so many rows: those behind the real tokens, which have no probability, come or go."""
    if logits.shape[-1] >= rows:
        return logits[..., :rows]
    return jnp.pad(logits, [(0, 0)] * (logits.ndim - 1) + [(0, rows - logits.shape[-1])], constant_values=NO_TOKEN_LOGIT)


def in_pieces(values: jax.Array, pieces: int) -> jax.Array:
    """[batch, length, ...] -> [pieces, batch, length / pieces, ...]; zeros fill the last one up."""
    batch, length, *rest = values.shape
    each = -(-length // min(pieces, length))
    count = -(-length // each)
    padded = jnp.pad(values, [(0, 0), (0, count * each - length)] + [(0, 0)] * len(rest))
    cut = jnp.moveaxis(padded.reshape(batch, count, each, *rest), 1, 0)
    return nn.with_logical_constraint(cut, (None, "batch", *[None] * (cut.ndim - 2)))
