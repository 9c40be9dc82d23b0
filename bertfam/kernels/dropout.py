"""Dropout as a function of a key."""

import jax
import jax.numpy as jnp


def dropout(key: jax.Array, inputs: jax.Array, rate: float) -> jax.Array:
    """Zero each value with probability `rate` (0 <= rate < 1) and divide the others by 1 - rate.

    Random bits are compared with a threshold as integers, which saves the conversion to uniform floats.
    """
    bits = jax.random.bits(key, inputs.shape, jnp.uint32)
    kept = bits >= jnp.uint32(round(rate * 2**32))
    return jnp.where(kept, inputs / (1 - rate), jnp.zeros((), inputs.dtype))
