"""Linear projections over any number of axes, with logical axis names for their parameters."""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from bertfam.layers.initializers import Initializer, logical, param, truncated_normal
from bertfam.layers.unsharded import unshard


class Dense(nn.Module):
    """Linear projection `inputs @ kernel + bias` that contracts the last axes of the inputs.

    Attributes:
      features: sizes of the output axes.
      axes: logical names of the kernel's axes: first the contracted ones, then those of `features`. Two axes of one
        kernel may not share a name; None is never sharded.
      dtype: dtype of the computation; parameters are float32.
      use_bias: True to add `bias` [*features].
      kernel_init: initializer of the kernel, called with its full shape.
    """

    features: tuple[int, ...]
    axes: tuple[str | None, ...]
    dtype: DTypeLike = jnp.float32
    use_bias: bool = True
    kernel_init: Initializer = truncated_normal(0.02)

    @property
    def contracted(self) -> int:
        """Number of trailing axes of the inputs that are contracted."""
        return len(self.axes) - len(self.features)

    @nn.compact
    def parameters(self, contracted_shape: Sequence[int]) -> tuple[jax.Array, jax.Array | None]:
        """Return the kernel [*contracted_shape, *features] and the bias [*features] or None, in `dtype`.

        Callers use it to fuse several products into one.
        """
        kernel_init = logical(self.kernel_init, self.axes)
        kernel = param(self, "kernel", kernel_init, (*contracted_shape, *self.features))
        bias = None
        if self.use_bias:
            axes = self.axes[self.contracted :]
            bias = param(self, "bias", logical(nn.initializers.zeros_init(), axes), self.features)
            bias = unshard(bias.astype(self.dtype), axes)
        return unshard(kernel.astype(self.dtype), self.axes), bias

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Project inputs [..., *contracted] to `dtype`[..., *features]."""
        count = self.contracted
        kernel, bias = self.parameters(inputs.shape[-count:])
        return project(inputs.astype(self.dtype), kernel, bias, contracted=count)


def project(inputs: jax.Array, kernel: jax.Array, bias: jax.Array | None, *, contracted: int = 1) -> jax.Array:
    """Multiply inputs [..., *contracted] by a kernel [*contracted, *features] and add the bias [*features], if any.

    Args:
      inputs: [..., *contracted].
      kernel: [*contracted, *features].
      bias: [*features], or None.
      contracted: number of axes that are contracted.

    Returns:
      [..., *features], in the dtype of the inputs.
    """
    trailing = tuple(range(inputs.ndim - contracted, inputs.ndim))
    outputs = jax.lax.dot_general(inputs, kernel, ((trailing, tuple(range(contracted))), ((), ())))
    return outputs if bias is None else outputs + bias


@jax.custom_vjp
def unstack(joint: jax.Array) -> tuple[jax.Array, ...]:
    """Split the output of stacked kernels, [batch, length, projections, ...], into the projections [batch, length, ...]."""
    return tuple(joint[:, :, index] for index in range(joint.shape[2]))


# JAX would pad each gradient with zeros and add them all.
unstack.defvjp(lambda joint: (unstack(joint), None), lambda _, gradients: (jnp.stack(gradients, axis=2),))
