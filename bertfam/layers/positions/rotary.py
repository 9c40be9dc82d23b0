"""Rotary positions (Su, Lu, Pan, Murtadha, Wen, Liu 2021, "RoFormer", section 3.2.2), in the arrangement of GPT-NeoX."""

import jax
import jax.numpy as jnp
import numpy as np


def rotated(heads: jax.Array, positions: jax.Array | None, theta: float) -> jax.Array:
    """Rotate the pair (x[i], x[i + head_dim / 2]) of every head by the angle position * theta ** (-2 i / head_dim).

    The score of a turned query and a turned key depends on the difference of their positions alone.

    Args:
      heads: [batch, length, heads, head_dim], queries or keys; head_dim is even.
      positions: int32[batch, length], from 0 in each example of a packed row; None: 0, 1, 2, ... in every row.
      theta: the base; the slowest pair turns once in about 2 pi theta tokens.

    Returns:
      the same shape and dtype; angles and products are float32.
    """
    length, size = heads.shape[1], heads.shape[-1]
    if positions is None:
        positions = jnp.arange(length)[None]
    frequencies = np.float32(theta ** (-np.arange(0, size, 2) / size))
    # [batch or 1, length, 1, head_dim / 2]
    angles = (positions[..., None].astype(jnp.float32) * frequencies)[:, :, None]
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    first, second = jnp.split(heads.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(heads.dtype)
