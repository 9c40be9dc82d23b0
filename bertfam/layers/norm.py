"""Layer normalisation (Ba, Kiros, Hinton 2016) and root mean square normalisation (Zhang, Sennrich 2019).

`flax.linen.LayerNorm` and `RMSNorm` (flax 0.12.8) were considered. They multiply the scale into the reciprocal deviation first,
so outputs and gradients differ in the last bits, measured on a CPU in float32 and bfloat16, with `use_fast_variance=False` too.
They also use their parameters as they are stored, where these layers gather them under fsdp (`bertfam.layers.unsharded`).
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from bertfam.layers.initializers import logical
from bertfam.layers.unsharded import unshard

_AXES = ("embed",)


class LayerNorm(nn.Module):
    """Layer normalisation over the last axis: `(x - mean) / sqrt(variance + epsilon) * scale + bias`, with an optional bias.

    Statistics are float32 whatever `dtype` is, since an epsilon of 1e-12 vanishes in 16 bits. The variance is computed from
    the centred values, since mean(x^2) - mean(x)^2 cancels.
    """

    epsilon: float = 1e-12
    dtype: DTypeLike = jnp.float32
    use_bias: bool = True

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Normalise inputs [..., embed]; return `dtype`[..., embed]."""
        size = inputs.shape[-1]
        scale = unshard(self.param("scale", logical(nn.initializers.ones_init(), _AXES), (size,), jnp.float32), _AXES)
        wide = inputs.astype(jnp.float32)
        centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
        variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
        scaled = centred * jax.lax.rsqrt(variance + self.epsilon) * scale
        if self.use_bias:
            scaled += unshard(self.param("bias", logical(nn.initializers.zeros_init(), _AXES), (size,), jnp.float32), _AXES)
        return scaled.astype(self.dtype)


class RMSNorm(nn.Module):
    """Root mean square normalisation over the last axis: `x / sqrt(mean(x^2) + epsilon) * scale`, without centring or bias.

    Statistics are float32 whatever `dtype` is, since squares overflow float16 and lose their small terms in bfloat16.
    """

    epsilon: float = 1e-6
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Normalise inputs [..., embed]; return `dtype`[..., embed]."""
        scale = unshard(self.param("scale", logical(nn.initializers.ones_init(), _AXES), inputs.shape[-1:], jnp.float32), _AXES)
        wide = inputs.astype(jnp.float32)
        mean_square = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
        return (wide * jax.lax.rsqrt(mean_square + self.epsilon) * scale).astype(self.dtype)
