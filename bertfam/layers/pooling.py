"""Pooling of the hidden states of a text into one vector, its embedding."""

from typing import Literal

import jax
import jax.numpy as jnp

from bertfam.layers.lookup import gather_positions

PoolingMode = Literal["mean", "cls", "max"]


def pool(hidden: jax.Array, segment_ids: jax.Array, cls_positions: jax.Array, mode: PoolingMode) -> jax.Array:
    """Pool the hidden states of rows of one text each.

    Args:
      hidden: [batch, length, embed].
      segment_ids: int32[batch, length], 0 for padding.
      cls_positions: int32[batch, 1], the position of [CLS].
      mode: "mean" or "max" over all tokens but padding, control tokens included, or "cls", the hidden state at [CLS].

    Returns:
      float32[batch, embed].
    """
    hidden = hidden.astype(jnp.float32)
    if mode == "cls":
        return gather_positions(hidden, cls_positions)[:, 0]
    # [batch, length, 1]
    is_real = (segment_ids > 0)[..., None]
    if mode == "max":
        return jnp.max(jnp.where(is_real, hidden, -jnp.inf), axis=1)
    return jnp.sum(jnp.where(is_real, hidden, 0.0), axis=1) / jnp.maximum(jnp.sum(is_real, axis=1), 1)


def normalized(vectors: jax.Array) -> jax.Array:
    """Scale vectors float32[batch, embed] to length 1; one of length 0 stays as it is, and has a gradient."""
    return vectors / jnp.sqrt(jnp.maximum(jnp.sum(jnp.square(vectors), axis=-1, keepdims=True), 1e-24))
