"""Products with quantised kernels, by the arrays and products of the library qwix.

qwix's own providers (version 0.1.8, `PtqProvider`, `QtProvider`) were considered. They replace `dot_general` within Flax modules
and find a kernel by the operand of a product. Here one product may have the stacked kernels of queries, keys and values, of which
they find none, and they would quantise the products of attention too.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bertfam.errors import UserError

KERNEL = "kernel"
# Parameters beside a quantised kernel.
KERNEL_SCALE, INPUT_CLIP, INPUT_SCALE = "kernel_scale", "input_clip", "input_scale"
RANGE_BOUND = 127.5  # int8 values of the ends of a range, before rounding, as in qwix
_GROUP = 64  # values of an int4 kernel that share a scale, at most
_TINY = float(jnp.finfo(jnp.float32).tiny)


def qwix_library() -> Any:
    """Return the package qwix; raise UserError if it is not installed."""
    try:
        import qwix
    except ModuleNotFoundError as error:
        raise UserError("quantised models need qwix: pip install 'bertfam[quantize]'") from error
    return qwix


class QuantizedKernel(NamedTuple):
    """Kernel of a product in int8 or int4, and the quantisation of the inputs of the product.

    With neither `clip` nor `input_scale` the inputs are not quantised, and the kernel is dequantised before the product.

    Attributes:
      values: int8 or int4[*contracted, *features]; in quantisation-aware training float[...], rounded values times their scales.
      scale: float32, of as many axes as `values`: the kernel is `values * scale`; None in quantisation-aware training.
      clip: float32[], share of the greatest magnitude of a token's inputs that is the range of its int8 values; the range is
        computed for each token.
      input_scale: float32[], inputs are `int8 values * input_scale`, the same for all tokens.
    """

    values: jax.Array
    scale: jax.Array | None
    clip: jax.Array | None
    input_scale: jax.Array | None

    def product(self, inputs: jax.Array, contracted: int) -> jax.Array:
        """Multiply inputs [..., *contracted] by the kernel; return [..., *features], in the dtype of the inputs.

        Integer products are summed in int32 and multiplied by both scales (Jacob et al. 2018, equation 4).
        """
        qwix = qwix_library()
        axes = tuple(range(inputs.ndim - contracted, inputs.ndim))
        numbers = ((axes, tuple(range(contracted))), ((), ()))
        if self.scale is None:
            return jax.lax.dot_general(straight_through(self._inputs(inputs, axes), inputs), self.values, numbers)
        quantised = self.clip is not None or self.input_scale is not None
        left = self._inputs(inputs, axes) if quantised else inputs
        right = qwix.QArray(self.values, self.scale if quantised else self.scale.astype(inputs.dtype))
        return qwix.dot_general(left, right, numbers).astype(inputs.dtype)

    def _inputs(self, inputs: jax.Array, axes: tuple[int, ...]) -> Any:
        """Return the inputs as qwix's array of int8 values with one scale for each token, or for all."""
        wide = inputs.astype(jnp.float32)
        if self.input_scale is not None:
            scale = self.input_scale.reshape((1,) * inputs.ndim)
        else:
            assert self.clip is not None, "inputs without a range"
            scale = self.clip * jnp.max(jnp.abs(wide), axis=axes, keepdims=True) / RANGE_BOUND
        scale = jnp.maximum(scale, _TINY)
        values = jnp.clip(jnp.round(wide / scale), -127, 127)
        return qwix_library().QArray(values.astype(jnp.int8), scale)


def straight_through(quantised: Any, array: jax.Array) -> jax.Array:
    """Return an array rounded as qwix's array says, whose gradient is that of the array itself (Bengio et al. 2013)."""
    rounded = qwix_library().dequantize(quantised).astype(array.dtype)
    return array + jax.lax.stop_gradient(rounded - array)


def quantize_kernel(kernel: jax.Array, contracted: int, bits: int, first: int = 0) -> Any:
    """Quantise a kernel [layers..., *contracted, *features] by its greatest magnitudes; return qwix's array.

    An int8 kernel has a scale for each output. An int4 kernel has one for each output and group of at most 64 inputs, which
    do not cross heads.

    Args:
      kernel: the kernel.
      contracted: number of contracted axes.
      bits: 8 or 4.
      first: number of axes before them, of which each index has scales of its own.
    """
    last, own = first + contracted - 1, [*range(first), *range(first + contracted, kernel.ndim)]
    groups = {}
    if bits == 4:
        size = kernel.shape[last]
        groups = {last: next(group for group in range(min(_GROUP, size), 0, -1) if size % group == 0)}
        own += range(first, last)
    return qwix_library().quantize(kernel, f"int{bits}", channelwise_axes=sorted(own), tiled_axes=groups)
