"""Lookup tables: words, positions, sentence types."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from bertfam.errors import UserError
from bertfam.layers.initializers import Initializer, logical, truncated_normal
from bertfam.layers.lookup import lookup_few
from bertfam.layers.unsharded import gathered, whole

ROW_MULTIPLE = 128


def padded_rows(rows: int) -> int:
    """Return the padded rows of a vocabulary table: the next multiple of 128, which matrix units and shards divide well."""
    return -(-rows // ROW_MULTIPLE) * ROW_MULTIPLE


class Table(nn.Module):
    """A parameter `table` float32[rows, features]; its logical axes are (axis, "embed").

    Attributes:
      rows, features: its shape.
      axis: logical name of the rows' axis.
      table_init: its initial values.
    """

    rows: int
    features: int
    axis: str
    table_init: Initializer = truncated_normal(0.02)

    @nn.compact
    def __call__(self) -> jax.Array:
        """Return the table float32[rows, features]."""
        axes = (self.axis, "embed")
        return gathered(self.param("table", logical(self.table_init, axes), (self.rows, self.features), jnp.float32), axes)


def embed_words(table: jax.Array, tokens: jax.Array, dtype: DTypeLike) -> jax.Array:
    """Look up words: [rows, embed] at int32[batch, length] -> dtype[batch, length, embed].

    Gathered before the cast, so that gradients of a frequent word add up in float32. An id outside the table gives
    NaN, which the loss shows at once; clamping would hide it.
    """
    # Else the table's gradient, which is split in the width, is made of rows that are moved about to be split so too.
    table = whole(table, ("vocab", "embed"))
    return jnp.take(table, tokens, axis=0, mode="fill").astype(dtype)


def check_length(length: int, longest: int) -> None:
    """Raise UserError where rows of `length` tokens are longer than a model reads."""
    if length > longest:
        raise UserError(
            f"rows of {length} tokens do not fit a model with max_length {longest}: "
            f"use shorter rows or set max_length to at least {length}"
        )


def embed_positions(table: jax.Array, positions: jax.Array | None, length: int, dtype: DTypeLike) -> jax.Array:
    """Look up learned absolute positions -> dtype[length, embed] or dtype[batch, length, embed].

    positions: int32[batch, length], or None for 0, 1, 2, ... in every row (a slice, no lookup).

    Raises:
      UserError: when rows are longer than the table and positions are None.
    """
    if positions is not None:
        return lookup_few(table, positions, dtype)
    check_length(length, table.shape[0])
    return table[:length].astype(dtype)
