"""Linear projections over any number of axes, with logical axis names for their parameters."""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from bertfam.layers.initializers import Initializer, logical, param, truncated_normal
from bertfam.layers.unsharded import unshard

# Names of the two factors of a low-rank adapter, beside the kernel that it adapts.
ADAPTER_IN, ADAPTER_OUT = "adapter_in", "adapter_out"
Adapter = tuple[jax.Array, jax.Array]


class Dense(nn.Module):
    """Linear projection `inputs @ kernel + bias` that contracts the last axes of the inputs.

    If its parameters hold the factors of an adapter (see `bertfam.objectives.fine_tuning.lora`), their product is added.

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
    def parameters(self, contracted_shape: Sequence[int]) -> tuple[jax.Array, jax.Array | None, Adapter | None]:
        """Return kernel, bias and adapter, in `dtype`; callers use it to fuse several products into one.

        Returns:
          the kernel [*contracted_shape, *features], the bias [*features] or None, and the factors [*contracted_shape, rank] and
          [rank, *features] of the adapter or None.
        """
        kernel_init = logical(self.kernel_init, self.axes)
        kernel = param(self, "kernel", kernel_init, (*contracted_shape, *self.features))
        bias = None
        if self.use_bias:
            axes = self.axes[self.contracted :]
            bias = param(self, "bias", logical(nn.initializers.zeros_init(), axes), self.features)
            bias = unshard(bias.astype(self.dtype), axes)
        return unshard(kernel.astype(self.dtype), self.axes), bias, self._adapter()

    def _adapter(self) -> Adapter | None:
        if not self.has_variable("params", ADAPTER_IN):
            return None
        inner, outer = (nn.meta.unbox(self.get_variable("params", name)) for name in (ADAPTER_IN, ADAPTER_OUT))
        axes_in, axes_out = (*self.axes[: self.contracted], None), (None, *self.axes[self.contracted :])
        return unshard(inner.astype(self.dtype), axes_in), unshard(outer.astype(self.dtype), axes_out)

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Project inputs [..., *contracted] to `dtype`[..., *features]."""
        count = self.contracted
        return project(inputs.astype(self.dtype), *self.parameters(inputs.shape[-count:]), contracted=count)


def project(
    inputs: jax.Array, kernel: jax.Array, bias: jax.Array | None, adapter: Adapter | None = None, *, contracted: int = 1
) -> jax.Array:
    """Multiply inputs [..., *contracted] by a kernel [*contracted, *features], and add bias [*features] and adapter, if any.

    Args:
      inputs: [..., *contracted].
      kernel: [*contracted, *features].
      bias: [*features], or None.
      adapter: its factors [*contracted, rank] and [rank, *features], or None.
      contracted: number of axes that are contracted.

    Returns:
      [..., *features], in the dtype of the inputs.
    """
    trailing = tuple(range(inputs.ndim - contracted, inputs.ndim))
    outputs = jax.lax.dot_general(inputs, kernel, ((trailing, tuple(range(contracted))), ((), ())))
    outputs = outputs if bias is None else outputs + bias
    return outputs if adapter is None else outputs + low_rank(inputs, adapter, contracted=contracted)


def low_rank(inputs: jax.Array, adapter: Adapter, *, contracted: int = 1) -> jax.Array:
    """Multiply inputs [..., *contracted] by the factors [*contracted, rank] and [rank, *features]: [..., *features].

    The kernel's gradient, a third of the products of training, is never computed, as it would be for the sum of both.
    """
    inner, outer = adapter
    return project(project(inputs, inner, None, contracted=contracted), outer, None)


def project_jointly(inputs: jax.Array, kernels: Sequence[jax.Array], adapters: Sequence[Adapter | None]) -> jax.Array:
    """Multiply inputs by several kernels in one product, and by the adapters that are there.

    Args:
      inputs: [..., embed].
      kernels: [embed, *features] each; they are stacked on a new axis, so that sharding over the features is kept.
      adapters: the adapter of each kernel; None: it has none.

    Returns:
      [..., kernels, *features], in the dtype of the inputs.
    """
    joint = project(inputs, jnp.stack(kernels, axis=1), None)
    if all(adapter is None for adapter in adapters):
        return joint
    zeros = jnp.zeros((*inputs.shape[:-1], *kernels[0].shape[1:]), inputs.dtype)
    products = [zeros if adapter is None else low_rank(inputs, adapter) for adapter in adapters]
    return joint + jnp.stack(products, axis=inputs.ndim - 1)


@jax.custom_vjp
def unstack(joint: jax.Array) -> tuple[jax.Array, ...]:
    """Split the output of stacked kernels, [batch, length, projections, ...], into the projections [batch, length, ...]."""
    return tuple(joint[:, :, index] for index in range(joint.shape[2]))


# JAX would pad each gradient with zeros and add them all.
unstack.defvjp(lambda joint: (unstack(joint), None), lambda _, gradients: (jnp.stack(gradients, axis=2),))
