"""Embedding tables of words, positions and sentence types."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from bertfam.errors import UserError
from bertfam.layers.initializers import Initializer, logical, param, truncated_normal
from bertfam.layers.lookup import lookup_few
from bertfam.layers.unsharded import replicated, unshard

ROW_MULTIPLE = 128


def padded_rows(rows: int) -> int:
    """Round the rows of a vocabulary table up to a multiple of 128, which matrix units and shards divide well."""
    return -(-rows // ROW_MULTIPLE) * ROW_MULTIPLE


class Table(nn.Module):
    """Embedding table: a parameter `table` float32[rows, features] with the logical axes (axis, "embed").

    Attributes:
      rows, features: shape of the table.
      axis: logical name of the axis of rows.
      table_init: initializer of the table.
    """

    rows: int
    features: int
    axis: str
    table_init: Initializer = truncated_normal(0.02)

    @nn.compact
    def __call__(self) -> jax.Array:
        """Return the table float32[rows, features]."""
        axes = (self.axis, "embed")
        return unshard(param(self, "table", logical(self.table_init, axes), (self.rows, self.features)), axes)


def embed_words(table: jax.Array, tokens: jax.Array, dtype: DTypeLike) -> jax.Array:
    """Look up tokens int32[batch, length] in a table [rows, embed]; return dtype[batch, length, embed].

    The lookup precedes the cast, so that the gradients of a frequent word are summed in float32. An id outside the table gives
    NaN, which shows in the loss at once; clamping would hide it.
    """
    # Otherwise the rows of the table's gradient would be moved between devices, to be sharded over "embed" as the table is.
    table = replicated(table, ("vocab", "embed"))
    return jnp.take(table, tokens, axis=0, mode="fill").astype(dtype)


def check_length(length: int, longest: int) -> None:
    """Raise UserError if rows of `length` tokens are longer than the model's `longest`."""
    if length > longest:
        raise UserError(
            f"rows of {length} tokens do not fit a model with max_length {longest}: "
            f"use shorter rows or set max_length to at least {length}"
        )


def embed_positions(table: jax.Array, positions: jax.Array | None, length: int, dtype: DTypeLike) -> jax.Array:
    """Look up learned absolute positions.

    Args:
      table: [rows, embed].
      positions: int32[batch, length], or None for 0, 1, 2, ... in every row, which takes a slice instead of a lookup.
      length: tokens in a row.
      dtype: dtype of the result.

    Returns:
      dtype[batch, length, embed], or dtype[length, embed] if positions are None.

    Raises:
      UserError: when rows are longer than the table and positions are None.
    """
    if positions is not None:
        return lookup_few(table, positions, dtype)
    check_length(length, table.shape[0])
    return table[:length].astype(dtype)
