"""Layer normalisation (Ba, Kiros, Hinton 2016) and root mean square normalisation (Zhang, Sennrich 2019).

`flax.linen.LayerNorm` and `RMSNorm` (flax 0.12.8) were considered. They multiply the scale into the reciprocal deviation first,
so outputs and gradients differ in the last bits, measured on a CPU in float32 and bfloat16, with `use_fast_variance=False` too.
They also use their parameters as they are stored, where these layers gather them under fsdp (`bertfam.layers.unsharded`).
"""

from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from typing_extensions import override

from bertfam.kernels import layer_norm
from bertfam.layers.initializers import logical, param
from bertfam.layers.unsharded import unshard

_AXES = ("embed",)


class _Norm(nn.Module):
    """Base of the norms.

    Attributes:
      epsilon: added to the mean of squares.
      dtype: dtype of the output; parameters and statistics are float32.
    """

    epsilon: float = 1e-12
    dtype: DTypeLike = jnp.float32

    centred: ClassVar[bool]

    def __call__(self, inputs: jax.Array, added: jax.Array | None = None) -> jax.Array:
        """Normalise inputs + added [..., embed], where `added` is 0 if it is None; return `dtype`[..., embed]."""
        normed: jax.Array = self._normalise(inputs, added, branches=False)
        return normed

    def branch(self, inputs: jax.Array, added: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
        """Return inputs + added, for a residual connection, and the normalised sum.

        Kernels add the gradients of both in the pass that computes the gradient of the norm.
        """
        found: tuple[jax.Array, jax.Array] = self._normalise(inputs, added, branches=True)
        return found

    @nn.compact
    def _normalise(self, inputs: jax.Array, added: jax.Array | None, branches: bool) -> Any:
        size = inputs.shape[-1]
        scale = unshard(param(self, "scale", logical(nn.initializers.ones_init(), _AXES), (size,)), _AXES)
        bias = None
        if self._has_bias():
            bias = unshard(param(self, "bias", logical(nn.initializers.zeros_init(), _AXES), (size,)), _AXES)
        if inputs.dtype == self.dtype and layer_norm.supports(inputs):
            return layer_norm.normalise(inputs, added, scale, bias, layer_norm.Settings(self.epsilon, self.centred, branches))
        if added is not None:
            inputs = inputs + added
        wide = inputs.astype(jnp.float32)
        if self.centred:
            # The variance is computed from centred values, since mean(x^2) - mean(x)^2 cancels.
            wide = wide - jnp.mean(wide, axis=-1, keepdims=True)
        scaled = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + self.epsilon) * scale
        normed = (scaled if bias is None else scaled + bias).astype(self.dtype)
        return (inputs, normed) if branches else normed

    def _has_bias(self) -> bool:
        raise NotImplementedError


class LayerNorm(_Norm):
    """Layer normalisation over the last axis: `(x - mean) / sqrt(variance + epsilon) * scale + bias`, with an optional bias.

    Statistics are float32 whatever `dtype` is, since an epsilon of 1e-12 vanishes in 16 bits.
    """

    use_bias: bool = True

    centred: ClassVar[bool] = True

    @override
    def _has_bias(self) -> bool:
        return self.use_bias


class RMSNorm(_Norm):
    """Root mean square normalisation over the last axis: `x / sqrt(mean(x^2) + epsilon) * scale`, without centring or bias.

    Statistics are float32 whatever `dtype` is, since squares overflow float16 and lose their small terms in bfloat16.
    """

    epsilon: float = 1e-6

    centred: ClassVar[bool] = False

    @override
    def _has_bias(self) -> bool:
        return False
