"""Intervals of tokens that tokens see, and the steps in which a tile of rows visits them."""

import jax
import jax.numpy as jnp
from jax import lax

ROWS = 64  # of a tile


def intervals(
    segment_ids: jax.Array, other_ids: jax.Array | None, left: int | None, right: int | None
) -> tuple[jax.Array, jax.Array]:
    """Return the interval [low, high) of tokens that each token sees, int32[batch, length] each; [0, 0) for padding.

    Args:
      segment_ids: int32[batch, length]; 0 = padding. The tokens of a segment are consecutive.
      other_ids: int32[batch, others], the segments of the tokens that are seen; None: `segment_ids`.
      left: the number of places before its own that a token sees; None: all of them.
      right: the number of places after its own.
    """
    length = segment_ids.shape[1]
    places = jnp.arange(length, dtype=jnp.int32)[None]
    if other_ids is None:
        changes = segment_ids[:, 1:] != segment_ids[:, :-1]
        edge = jnp.ones_like(segment_ids[:, :1], bool)
        low = lax.cummax(jnp.where(jnp.concatenate([edge, changes], 1), places, 0), axis=1)
        high = lax.cummin(jnp.where(jnp.concatenate([changes, edge], 1), places + 1, length), axis=1, reverse=True)
    else:
        # bool[batch, length, others], which is not kept in memory
        same = segment_ids[:, :, None] == other_ids[:, None, :]
        others = jnp.arange(other_ids.shape[1], dtype=jnp.int32)
        low = jnp.min(jnp.where(same, others, other_ids.shape[1]), axis=-1)
        high = jnp.max(jnp.where(same, others + 1, 0), axis=-1)
    if left is not None:
        low = jnp.maximum(low, places - left)
    if right is not None:
        high = jnp.minimum(high, places + right + 1)
    visible = (segment_ids > 0) & (low < high)
    return jnp.where(visible, low, 0), jnp.where(visible, high, 0)


def steps(low: jax.Array, high: jax.Array, block: int, columns: int) -> jax.Array:
    """Return int32[batch, tiles, 4] for tiles of rows that see the columns [low, high): the first column and the steps.

    The last two are the interval of columns that all rows of the tile see.
    """
    batch, length = low.shape
    low, high = (array.reshape(batch, length // ROWS, ROWS) for array in (low, high))
    # Copies start at multiples of 8 columns.
    first = jnp.where(low < high, low, columns).min(-1) // 8 * 8
    count = jnp.maximum(-(-(high.max(-1) - first) // block), 0)
    first = jnp.clip(first, 0, columns - count * block)
    return jnp.stack([first, count, low.max(-1), high.min(-1)], axis=-1)
