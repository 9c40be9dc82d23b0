"""Learned mix of the hidden states of all layers."""

import flax.linen as nn
import jax
import jax.numpy as jnp


class ScalarMix(nn.Module):
    """gamma sum_j softmax(w)_j h_j over the layers j, with w = 0 and gamma = 1 at first (Peters et al. 2018, equation 1)."""

    @nn.compact
    def __call__(self, hidden: jax.Array, among: jax.Array | None = None) -> jax.Array:
        """Mix hidden states [layers + 1, ..., embed], those of `among` bool[layers + 1] if it is given; return [..., embed]."""
        zeros, ones = (nn.with_logical_partitioning(init, (None,)) for init in (nn.initializers.zeros, nn.initializers.ones))
        weights = jnp.asarray(self.param("weights", zeros, (hidden.shape[0],), jnp.float32))
        gamma = jnp.asarray(self.param("gamma", ones, (1,), jnp.float32))
        return jnp.tensordot((gamma * layer_shares(weights, among)).astype(hidden.dtype), hidden, axes=1)


def layer_shares(weights: jax.Array, among: jax.Array | None = None) -> jax.Array:
    """Return the share of each layer in a mix, softmax(w) over the layers of `among` bool[..., layers + 1]; None: over all."""
    return jax.nn.softmax(weights if among is None else jnp.where(among, weights, -jnp.inf))
