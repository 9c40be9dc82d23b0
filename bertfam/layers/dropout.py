"""Dropout: zero a share of the values, scale up the rest (Srivastava et al. 2014)."""

import flax.linen as nn
import jax

from bertfam.kernels.dropout import dropout


class Dropout(nn.Module):
    """`dropout` with a key of the "dropout" collection; the identity when `train` is False or the rate is 0."""

    rate: float

    @nn.compact
    def __call__(self, inputs: jax.Array, *, train: bool) -> jax.Array:
        """inputs: any shape -> the same shape and dtype."""
        if not train or self.rate == 0:
            return inputs
        return dropout(self.make_rng("dropout"), inputs, self.rate)
