"""Linear projections over any number of axes, with logical axis names for their parameters."""

from collections.abc import Sequence
from typing import Any, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from bertfam.kernels import rows
from bertfam.kernels.quantized_product import (
    INPUT_CLIP,
    INPUT_SCALE,
    KERNEL,
    KERNEL_SCALE,
    QuantizedKernel,
    quantize_kernel,
    straight_through,
)
from bertfam.layers.initializers import Initializer, logical, param, truncated_normal
from bertfam.layers.unsharded import unshard

# Names of the two factors of a low-rank adapter, beside the kernel that it adapts.
ADAPTER_IN, ADAPTER_OUT = "adapter_in", "adapter_out"
Adapter = tuple[jax.Array, jax.Array]
Kernel = jax.Array | QuantizedKernel


def contracted_axes(axes: Sequence[str | None]) -> int:
    """Return the number of contracted axes of a kernel in a network's layers, given its logical axes.

    They are [embed, *features], or [*inputs, embed].
    """
    return 1 if axes[0] == "embed" else len(axes) - 1


class Dense(nn.Module):
    """Linear projection `inputs @ kernel + bias` that contracts the last axes of the inputs.

    If its parameters hold the factors of an adapter (see `bertfam.objectives.fine_tuning.lora`), their product is added. If they
    hold the scales of a quantised kernel (see `bertfam.compression.quantization`), the product is computed in integers.

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
    def parameters(self, inputs: jax.Array) -> tuple[Kernel, jax.Array | None, Adapter | None]:
        """Return kernel, bias and adapter, in `dtype`; callers use it to fuse several products into one.

        Args:
          inputs: [..., *contracted], which the kernel is to be multiplied by.

        Returns:
          the kernel [*contracted, *features], the bias [*features] or None, and the factors [*contracted, rank] and
          [rank, *features] of the adapter or None.
        """
        kernel_init = logical(self.kernel_init, self.axes)
        kernel = param(self, KERNEL, kernel_init, (*inputs.shape[-self.contracted :], *self.features))
        bias = None
        if self.use_bias:
            axes = self.axes[self.contracted :]
            bias = param(self, "bias", logical(nn.initializers.zeros_init(), axes), self.features)
            bias = unshard(bias.astype(self.dtype), axes)
        return self._quantized(kernel) or unshard(kernel.astype(self.dtype), self.axes), bias, self._adapter()

    def _quantized(self, kernel: jax.Array) -> QuantizedKernel | None:
        """Return the kernel with the scales that the parameters hold; None if they hold none.

        A kernel in floats whose inputs have a range is that of quantisation-aware training: it is rounded, and its gradient is
        that of the kernel itself.
        """
        found: list[Any] = [self.get_variable("params", name) for name in (KERNEL_SCALE, INPUT_CLIP, INPUT_SCALE)]
        scale, clip, input_scale = (nn.meta.unbox(value) for value in found)
        if scale is not None:
            return QuantizedKernel(unshard(kernel, self.axes), scale, clip, input_scale)
        if clip is None:
            return None
        rounded = straight_through(quantize_kernel(kernel, self.contracted, 8), kernel)
        return QuantizedKernel(unshard(rounded.astype(self.dtype), self.axes), None, clip, None)

    def _adapter(self) -> Adapter | None:
        if not self.has_variable("params", ADAPTER_IN):
            return None
        inner, outer = (nn.meta.unbox(self.get_variable("params", name)) for name in (ADAPTER_IN, ADAPTER_OUT))
        axes_in, axes_out = (*self.axes[: self.contracted], None), (None, *self.axes[self.contracted :])
        return unshard(inner.astype(self.dtype), axes_in), unshard(outer.astype(self.dtype), axes_out)

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Project inputs [..., *contracted] to `dtype`[..., *features]."""
        return project(inputs.astype(self.dtype), *self.parameters(inputs), contracted=self.contracted)


def project(
    inputs: jax.Array, kernel: Kernel, bias: jax.Array | None, adapter: Adapter | None = None, *, contracted: int = 1
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
    if isinstance(kernel, QuantizedKernel):
        outputs = kernel.product(inputs, contracted)
    else:
        outputs = (_product if rows.join_products(inputs.dtype) else _product_on_cpu)(inputs, kernel, contracted)
    outputs = outputs if bias is None else outputs + bias
    return outputs if adapter is None else outputs + low_rank(inputs, adapter, contracted=contracted)


def _product(inputs: jax.Array, kernel: jax.Array, contracted: int) -> jax.Array:
    trailing = tuple(range(inputs.ndim - contracted, inputs.ndim))
    return jax.lax.dot_general(inputs, kernel, ((trailing, tuple(range(contracted))), ((), ())))


_product_on_cpu = jax.custom_vjp(_product, nondiff_argnums=(2,))


def _product_forward(inputs: jax.Array, kernel: jax.Array, contracted: int) -> tuple[jax.Array, Adapter]:
    return _product(inputs, kernel, contracted), (inputs, kernel)


def _product_backward(contracted: int, saved: Adapter, gradient: jax.Array) -> Adapter:
    """Return the gradients of inputs and kernel.

    XLA transposes the first factor of a product over rows, on CPUs slowly and together with all that computes it. JAX's own
    rule has the gradient there, behind which is the derivative of an activation; here it is the inputs.
    """
    inputs, kernel = saved
    leading = tuple(range(inputs.ndim - contracted))
    features = tuple(range(kernel.ndim - contracted))
    outputs = (tuple(axis + len(leading) for axis in features), tuple(axis + contracted for axis in features))
    return (
        jax.lax.dot_general(gradient, kernel, (outputs, ((), ()))),
        jax.lax.dot_general(inputs, gradient, ((leading, leading), ((), ()))),
    )


_product_on_cpu.defvjp(_product_forward, _product_backward)


def low_rank(inputs: jax.Array, adapter: Adapter, *, contracted: int = 1) -> jax.Array:
    """Multiply inputs [..., *contracted] by the factors [*contracted, rank] and [rank, *features]: [..., *features].

    The kernel's gradient, a third of the products of training, is never computed, as it would be for the sum of both.
    """
    inner, outer = adapter
    return project(project(inputs, inner, None, contracted=contracted), outer, None)


def project_jointly(inputs: jax.Array, kernels: Sequence[Kernel], adapters: Sequence[Adapter | None]) -> jax.Array:
    """Multiply inputs by several kernels in one product, by each quantised kernel alone, and by the adapters that are there.

    Args:
      inputs: [..., embed].
      kernels: [embed, *features] each; they are stacked on a new axis, so that sharding over the features is kept.
      adapters: the adapter of each kernel; None: it has none.

    Returns:
      [..., kernels, *features], in the dtype of the inputs.
    """
    if any(isinstance(kernel, QuantizedKernel) for kernel in kernels):
        joint = jnp.stack([project(inputs, kernel, None) for kernel in kernels], axis=inputs.ndim - 1)
    else:
        joint = project(inputs, jnp.stack(cast(Sequence[jax.Array], kernels), axis=1), None)
    if all(adapter is None for adapter in adapters):
        return joint
    zeros = jnp.zeros((*inputs.shape[:-1], *joint.shape[inputs.ndim :]), inputs.dtype)
    products = [zeros if adapter is None else low_rank(inputs, adapter) for adapter in adapters]
    return joint + jnp.stack(products, axis=inputs.ndim - 1)


@jax.custom_vjp
def unstack(joint: jax.Array) -> tuple[jax.Array, ...]:
    """Split the output of stacked kernels, [batch, length, projections, ...], into the projections [batch, length, ...]."""
    return tuple(joint[:, :, index] for index in range(joint.shape[2]))


# JAX would pad each gradient with zeros and add them all.
unstack.defvjp(lambda joint: (unstack(joint), None), lambda _, gradients: (jnp.stack(gradients, axis=2),))
