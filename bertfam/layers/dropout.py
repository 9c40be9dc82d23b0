"""Dropout (Srivastava et al. 2014).

`flax.linen.Dropout` (flax 0.12.8) was considered. It draws other masks from the same key, so every training run would change.
"""

import flax.linen as nn
import jax

from bertfam.kernels.dropout import dropout


class Dropout(nn.Module):
    """Dropout with a key of the "dropout" collection; the identity when `train` is False or the rate is 0."""

    rate: float

    @nn.compact
    def __call__(self, inputs: jax.Array, *, train: bool) -> jax.Array:
        """Drop values of inputs of any shape and dtype."""
        if not train or self.rate == 0:
            return inputs
        return dropout(self.make_rng("dropout"), inputs, self.rate)
