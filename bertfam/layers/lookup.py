"""Row lookup as a product with one-hot rows.

A gather is transposed to a scatter-add, which XLA runs serially on hot indices (positions, types, [CLS]) and, on
some GPU versions of jaxlib, hundreds of times slower than it should in float32. A product with one-hot rows costs few
FLOPs where rows are few, runs on the matrix units in both directions, shards like any product and adds gradients
in a fixed order. Its results are exact: every sum has one non-zero term, 1 x value, which needs the highest precision
in float32 (TF32 or bfloat16 passes would round the value) and nothing in bfloat16.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike


def gather_positions(hidden: jax.Array, positions: jax.Array) -> jax.Array:
    """Gather the hidden states [batch, length, embed] at positions int32[batch, count] of each sequence.

    The result is [batch, count, embed] in the same dtype. A position outside the sequence gives zeros.
    """
    # [batch, count, length]
    selector = jax.nn.one_hot(positions, hidden.shape[1], dtype=hidden.dtype)
    gathered = jnp.einsum("bpl,ble->bpe", selector, hidden, precision=jax.lax.Precision.HIGHEST)
    # Where the length is sharded, each device gathers from its own part and the results are summed. Without this constraint the
    # compiler may send the whole sequence instead, which has several times as many positions.
    return nn.with_logical_constraint(gathered, ("batch", None, None))


def lookup_few(table: jax.Array, indices: jax.Array, dtype: DTypeLike) -> jax.Array:
    """Look up indices int32[...] in a small table [rows, embed]; return dtype[..., embed], zeros for an index outside it."""
    # [..., rows]
    selector = jax.nn.one_hot(indices, table.shape[0], dtype=dtype)
    return jnp.einsum("...r,re->...e", selector, table.astype(dtype), precision=jax.lax.Precision.HIGHEST)


def put_positions(tokens: jax.Array, positions: jax.Array, values: jax.Array, used: jax.Array) -> jax.Array:
    """Write values into rows, by comparisons instead of a scatter.

    Args:
      tokens: int32[batch, length].
      positions: int32[batch, count], where to write; the used ones are distinct.
      values: int32[batch, count].
      used: bool[batch, count]; unused values are not written, whatever their positions are.

    Returns:
      The rows int32[batch, length].
    """
    # [batch, count, length]
    here = (positions[..., None] == jnp.arange(tokens.shape[1])) & used[..., None]
    written = jnp.sum(jnp.where(here, values[..., None], 0), axis=1)
    return jnp.where(jnp.any(here, axis=1), written, tokens)
