"""The position-wise network of a Transformer layer."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from bertfam.kernels import hidden_layer, rows
from bertfam.layers.activations import ACTIVATIONS, WIDE_ACTIVATIONS, Activation
from bertfam.layers.dense import Dense, project, project_jointly, unstack
from bertfam.layers.dropout import Dropout
from bertfam.layers.gates import gated
from bertfam.layers.initializers import Initializer, truncated_normal


class FeedForward(nn.Module):
    """Feed-forward network, optionally gated (GLU).

    It computes `output(activation(intermediate(x)))`, or if gated `output(activation(intermediate(x)) * linear(x))`. Gated
    with "gelu" it is the GEGLU of Shazeer 2020, "GLU Variants Improve Transformer", equation 6.

    Attributes:
      size: width of the hidden layer.
      activation: a name of `ACTIVATIONS`.
      dtype: dtype of the computation; parameters are float32.
      kernel_init: initializer of all kernels.
      output_init: initializer of the kernel of `output`; None: `kernel_init`.
      gated: True to multiply the hidden layer by `linear`, a second projection.
      use_bias: True if all projections have biases.
      dropout_rate: dropout rate of the hidden layer.
    """

    size: int
    activation: Activation = "gelu"
    dtype: DTypeLike = jnp.float32
    kernel_init: Initializer = truncated_normal(0.02)
    output_init: Initializer | None = None
    gated: bool = False
    use_bias: bool = True
    dropout_rate: float = 0.0

    @nn.compact
    def __call__(self, inputs: jax.Array, *, train: bool = False) -> jax.Array:
        """Apply the network to inputs [batch, length, embed]; return `dtype`[batch, length, embed].

        Dropout is applied if `train`.
        """
        up = partial(Dense, (self.size,), ("embed", "mlp"), self.dtype, self.use_bias, self.kernel_init)
        output_init = self.output_init or self.kernel_init
        down = Dense((inputs.shape[-1],), ("mlp", "embed"), self.dtype, self.use_bias, output_init, name="output")
        names = ("intermediate", "linear") if self.gated else ("intermediate",)
        parameters = [up(name=name).parameters(inputs) for name in names]
        inputs = inputs.astype(self.dtype)
        if not rows.join_products(self.dtype):
            apart = [project(inputs, *own) for own in parameters]
            hidden = self._hidden([nn.with_logical_constraint(factor, ("batch", "length", "mlp")) for factor in apart])
        else:
            hidden = self._joint_hidden(inputs, parameters)
        hidden = nn.with_logical_constraint(hidden, ("batch", "length", "mlp"))
        hidden = Dropout(self.dropout_rate, name="dropout")(hidden, train=train)
        return down(gated(self, hidden, -1))

    def _joint_hidden(self, inputs: jax.Array, parameters: Sequence[Any]) -> jax.Array:
        """Compute the hidden layer from one product with all kernels, given kernel, bias and adapter of each projection."""
        kernels, biases, adapters = zip(*parameters, strict=True)
        # [batch, length, embed] -> [batch, length, mlp], gated [batch, length, 2, mlp]
        if self.gated:
            products, bias = project_jointly(inputs, kernels, adapters), jnp.stack(biases) if self.use_bias else None
        else:
            products, bias = project(inputs, kernels[0], None, adapters[0]), biases[0]
        if hidden_layer.supports(products):
            return hidden_layer.activate(products, bias, hidden_layer.Settings(WIDE_ACTIVATIONS[self.activation], self.gated))
        products = products if bias is None else products + bias
        if not self.gated:
            return self._hidden([products])
        return self._hidden(unstack(nn.with_logical_constraint(products, ("batch", "length", None, "mlp"))))

    def _hidden(self, factors: Sequence[jax.Array]) -> jax.Array:
        """Apply the activation to the first of one or two factors [batch, length, mlp], and multiply it by the second."""
        hidden = ACTIVATIONS[self.activation](factors[0])
        return hidden * factors[1] if self.gated else hidden
