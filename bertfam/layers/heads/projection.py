"""Projection of the embedding of a text, as of dual encoders."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from bertfam.layers.dense import Dense
from bertfam.layers.initializers import truncated_normal
from bertfam.layers.norm import LayerNorm

_EPSILON = 1e-12  # REALM's


class Projection(nn.Module):
    """Linear projection and LayerNorm, in float32: [..., embed] -> float32[..., size] (Guu et al. 2020, section 3.2).

    Attributes:
      size: numbers of a projected embedding.
      initializer_range: standard deviation of the initial kernel.
    """

    size: int
    initializer_range: float = 0.02

    @nn.compact
    def __call__(self, embedding: jax.Array) -> jax.Array:
        """Project embeddings."""
        dense = Dense(
            (self.size,), ("embed", None), jnp.float32, kernel_init=truncated_normal(self.initializer_range), name="dense"
        )
        return LayerNorm(_EPSILON, jnp.float32, name="norm")(dense(embedding.astype(jnp.float32)))


def project(params: dict[str, dict[str, jax.Array]], embedding: jax.Array) -> jax.Array:
    """Apply the parameters of a projection to embeddings [..., embed]: float32[..., size]."""
    projected: jax.Array = Projection(params["dense"]["kernel"].shape[-1]).apply({"params": params}, embedding)  # type: ignore[assignment]
    return projected
