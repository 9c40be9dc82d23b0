"""The position-wise network of a Transformer layer."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from bertfam.layers.activations import ACTIVATIONS, Activation
from bertfam.layers.dense import Dense
from bertfam.layers.initializers import Initializer, truncated_normal


class FeedForward(nn.Module):
    """`output(activation(intermediate(x)))`.

    Attributes:
      size: width of the hidden layer.
      activation: a name of `ACTIVATIONS`.
      dtype: of the computation; parameters are float32.
      kernel_init: of both kernels.
    """

    size: int
    activation: Activation = "gelu"
    dtype: DTypeLike = jnp.float32
    kernel_init: Initializer = truncated_normal(0.02)

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """inputs: [batch, length, embed] -> `dtype`[batch, length, embed]."""
        up = Dense((self.size,), ("embed", "mlp"), self.dtype, kernel_init=self.kernel_init, name="intermediate")
        down = Dense((inputs.shape[-1],), ("mlp", "embed"), self.dtype, kernel_init=self.kernel_init, name="output")
        # [batch, length, embed] -> [batch, length, mlp]
        hidden = ACTIVATIONS[self.activation](up(inputs))
        hidden = nn.with_logical_constraint(hidden, ("batch", "length", "mlp"))
        return down(hidden)
