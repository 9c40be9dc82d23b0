"""A tensor of another model in the place of a new one."""

import jax
import numpy as np

from bertfam.data.vocabularies.matching import Origins


def taken(names: tuple[str | None, ...], fresh: jax.Array, value: np.ndarray, origins: Origins) -> jax.Array:
    """Copy a tensor of the other model over a new one; in a vocabulary axis, only tokens with origins.

    Args:
      names: logical names of its axes.
      fresh: the new one.
      value: the other model's, whose table may have another number of rows.
      origins: of the rows.
    """
    if "vocab" not in names:
        return jax.make_array_from_callback(fresh.shape, fresh.sharding, lambda index: value[index])
    axis = names.index("vocab")
    put = jax.jit(lambda fresh, rows: fresh.at[(*[slice(None)] * axis, origins.pieces)].set(rows), out_shardings=fresh.sharding)
    return put(fresh, origins.means(value, axis))
