"""Copies of another model's tensors, with rows matched between the vocabularies."""

import jax
import numpy as np

from bertfam.data.vocabularies.matching import Origins


def replaces(names: tuple[str | None, ...]) -> bool:
    """Return True if `copied` keeps nothing of a new tensor whose axes have these logical names."""
    return "vocab" not in names


def copied(names: tuple[str | None, ...], fresh: jax.Array, value: np.ndarray, origins: Origins) -> jax.Array:
    """Copy a tensor of the other model over a new one; along a vocabulary axis, only rows of tokens with origins.

    Args:
      names: logical names of the axes.
      fresh: new tensor.
      value: tensor of the other model, whose vocabulary axis may have another length.
      origins: origins of the rows of the vocabulary axis.
    """
    if replaces(names):
        return jax.make_array_from_callback(fresh.shape, fresh.sharding, lambda index: value[index])
    axis = names.index("vocab")
    put = jax.jit(lambda fresh, rows: fresh.at[(*[slice(None)] * axis, origins.pieces)].set(rows), out_shardings=fresh.sharding)
    return put(fresh, origins.means(value, axis))
