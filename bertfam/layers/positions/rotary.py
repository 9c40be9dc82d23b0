"""Rotary positions (Su, Lu, Pan, Murtadha, Wen, Liu 2021, "RoFormer", section 3.2.2), in the arrangement of GPT-NeoX."""

import jax
import jax.numpy as jnp
import numpy as np


def rotate(heads: jax.Array, positions: jax.Array | None, theta: float) -> jax.Array:
    """Rotate the pair (x[i], x[i + head_dim / 2]) of every head by the angle position * theta ** (-2 i / head_dim).

    The score of a rotated query and a rotated key depends only on the difference of their positions.

    Args:
      heads: queries or keys [batch, length, heads, head_dim]; head_dim is even.
      positions: int32[batch, length], from 0 in each example of a packed row; None: 0, 1, 2, ... in every row.
      theta: the base; the slowest pair makes one turn in about 2 pi theta tokens.

    Returns:
      The rotated array in the same shape and dtype; angles and products are float32.
    """
    length, size = heads.shape[1], heads.shape[-1]
    if positions is None:
        positions = jnp.arange(length)[None]
    frequencies = np.float32(theta ** (-np.arange(0, size, 2) / size))
    # [batch or 1, length, 1, head_dim / 2]
    angles = (positions[..., None].astype(jnp.float32) * frequencies)[:, :, None]
    return _turn(heads, jnp.cos(angles), jnp.sin(angles))


@jax.custom_vjp
def _turn(heads: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    first, second = jnp.split(heads.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(heads.dtype)


def _turn_forward(heads: jax.Array, cos: jax.Array, sin: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _turn(heads, cos, sin), (cos, sin)


def _turn_backward(saved: tuple[jax.Array, jax.Array], gradient: jax.Array) -> tuple[jax.Array, None, None]:
    """Turn back; JAX would pad the gradients of both halves with zeros and add them."""
    cos, sin = saved
    return _turn(gradient, cos, -sin), None, None


_turn.defvjp(_turn_forward, _turn_backward)
