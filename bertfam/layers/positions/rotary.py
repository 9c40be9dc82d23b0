"""Rotary positions (Su, Lu, Pan, Murtadha, Wen, Liu 2021, "RoFormer", section 3.2.2), in the arrangement of GPT-NeoX."""

import jax
import jax.numpy as jnp
import numpy as np

from bertfam.kernels.split_heads import turn


def angles_at(positions: jax.Array | None, length: int, head_dim: int, theta: float) -> jax.Array:
    """Compute the angles float32[batch or 1, length, head_dim / 2] of positions.

    Args:
      positions: int32[batch, length], from 0 in each example of a packed row; None: 0, 1, 2, ... in every row.
      length: tokens of a row.
      head_dim: width of a head, an even number.
      theta: the base; the slowest pair makes one turn in about 2 pi theta tokens.
    """
    if positions is None:
        positions = jnp.arange(length)[None]
    frequencies = np.float32(theta ** (-np.arange(0, head_dim, 2) / head_dim))
    return positions[..., None].astype(jnp.float32) * frequencies


def rotate(heads: jax.Array, angles: jax.Array) -> jax.Array:
    """Rotate the pair (x[i], x[i + head_dim / 2]) of every head by the angle position * theta ** (-2 i / head_dim).

    The score of a rotated query and a rotated key depends only on the difference of their positions.

    Args:
      heads: queries or keys [batch, length, heads, head_dim].
      angles: float32[batch or 1, length, head_dim / 2].

    Returns:
      The rotated array in the same shape and dtype; products are float32.
    """
    angles = angles[:, :, None]
    return _turn(heads, jnp.cos(angles), jnp.sin(angles))


@jax.custom_vjp
def _turn(heads: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    halves = jnp.split(heads.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate(turn(halves, cos, sin), axis=-1).astype(heads.dtype)


def _turn_forward(heads: jax.Array, cos: jax.Array, sin: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _turn(heads, cos, sin), (cos, sin)


def _turn_backward(saved: tuple[jax.Array, jax.Array], gradient: jax.Array) -> tuple[jax.Array, None, None]:
    """Turn back; JAX would pad the gradients of both halves with zeros and add them."""
    cos, sin = saved
    return _turn(gradient, cos, -sin), None, None


_turn.defvjp(_turn_forward, _turn_backward)
