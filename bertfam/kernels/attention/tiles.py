"""The blocks of columns that a tile of rows of the attention scores visits, and the columns that each row sees.

Rows are queries and columns keys; for the gradients of keys, rows are keys and columns queries. A row sees an interval of the
columns that its tile visits, so that a mask is two comparisons.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bertfam.kernels.attention.patterns import BlockSparse

ROWS = 64  # of a tile, and columns of a block


class Visits(NamedTuple):
    """Blocks that each tile visits.

    Attributes:
      low: int32[batch, rows], the first column that each row sees.
      high: int32[batch, rows], the first after them that it does not see; at most `low` if it sees none.
      steps: int32[batch, heads or 1, tiles, 4]: the first column of a tile, or its first place in `columns`, its number of
        blocks, and the interval of columns that all its rows see.
      columns: int32[heads, places], first columns of blocks; None: the blocks of a tile are consecutive.
    """

    low: jax.Array
    high: jax.Array
    steps: jax.Array
    columns: jax.Array | None = None


@dataclass(frozen=True)
class Part:
    """Consecutive places of a row: the queries that a device has.

    Attributes:
      first: int32[], the first place.
      count: number of places.
    """

    first: jax.Array
    count: int


def intervals(
    segment_ids: jax.Array, other_ids: jax.Array | None, left: int | jax.Array | None, right: int | jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    """Return the interval [low, high) of tokens that each token sees, int32[batch, length] each; [0, 0) for padding.

    Args:
      segment_ids: int32[batch, length]; 0 = padding. The tokens of a segment are consecutive.
      other_ids: int32[batch, others], the segments of the tokens that are seen; None: `segment_ids`.
      left: the number of places before its own that a token sees, one for all or int32[length]; None: all of them.
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


def block_intervals(segment_ids: jax.Array, block: int) -> tuple[jax.Array, jax.Array]:
    """Return the interval of tokens in a token's own block and the blocks beside it, of `intervals`; they see the token too."""
    place = jnp.arange(segment_ids.shape[1], dtype=jnp.int32) % block
    return intervals(segment_ids, None, block + place, 2 * block - 1 - place)


def rows_of(low: jax.Array, high: jax.Array, part: Part) -> tuple[jax.Array, jax.Array]:
    """Return the intervals of the rows of a part, filled up with empty ones to a multiple of 64 rows."""
    own = (lax.dynamic_slice_in_dim(side, part.first, part.count, axis=1) for side in (low, high))
    low, high = (jnp.pad(side, [(0, 0), (0, -part.count % ROWS)]) for side in own)
    return low, high


def columns_of(low: jax.Array, high: jax.Array, part: Part) -> tuple[jax.Array, jax.Array]:
    """Return the intervals within the columns of a part, counted from its first column; [0, 0) for those outside of it."""
    low, high = (jnp.clip(side - part.first, 0, part.count) for side in (low, high))
    return jnp.where(low < high, low, 0), jnp.where(low < high, high, 0)


def interval_visits(low: jax.Array, high: jax.Array, columns: int) -> Visits:
    """Return the visits of all blocks between the first and the last column that a row of the tile sees.

    Args:
      low: int32[batch, rows], the first column that a row sees.
      high: int32[batch, rows], the first after them that it does not see.
      columns: the number of columns, a multiple of 64.
    """
    lows, highs = (_tiled(side) for side in (low, high))
    # Copies start at multiples of 8 columns.
    first = jnp.where(lows < highs, lows, columns).min(-1) // 8 * 8
    count = jnp.maximum(-(-(highs.max(-1) - first) // ROWS), 0)
    first = jnp.clip(first, 0, columns - count * ROWS)
    return Visits(low, high, jnp.stack([first, count, lows.max(-1), highs.min(-1)], axis=-1)[:, None])


def listed_visits(
    low: jax.Array,
    high: jax.Array,
    tiles: jax.Array,
    blocks: jax.Array,
    *,
    rows: Part | None = None,
    columns: Part | None = None,
) -> Visits:
    """Return the visits of listed blocks.

    Args:
      low: int32[batch, rows], the first column that a row sees of those that its tile visits.
      high: int32[batch, rows], the first after them that it does not see.
      tiles: int32[heads, pairs]; a tile of rows visits the block of columns at the same place of `blocks`.
      blocks: int32[heads, pairs]; a tile that visits a block several times counts it as often.
      rows: the rows that are computed, which begin and end with a tile; None: all.
      columns: the columns that there are, which begin and end with a block; None: all.
    """
    count = low.shape[1] // ROWS
    own = jnp.ones_like(blocks, bool)
    earlier, start = ~own, jnp.int32(0)
    if columns is not None:
        start = columns.first // ROWS
        earlier, own = blocks < start, (blocks >= start) & (blocks < start + columns.count // ROWS)
        low, high = columns_of(low, high, columns)
    of_tile = tiles[:, :, None] == jnp.arange(count)
    before, visits, total = (
        jnp.sum(of_tile & counted[:, :, None], axis=1, dtype=jnp.int32)  # [heads, tiles]
        for counted in (earlier, own, jnp.ones_like(own))
    )
    first = jnp.cumsum(total, axis=1) - total + before
    lows, highs = (_tiled(side) for side in (low, high))
    shape = lows.shape[0], *visits.shape
    of_heads = (jnp.broadcast_to(part[None], shape) for part in (first, visits))
    of_rows = (jnp.broadcast_to(part[:, None], shape) for part in (lows.max(-1), highs.min(-1)))
    steps = jnp.stack([*of_heads, *of_rows], axis=-1)
    if rows is not None:
        low, high = rows_of(low, high, rows)
        steps = lax.dynamic_slice_in_dim(steps, rows.first // ROWS, rows.count // ROWS, axis=2)
    ordered = jnp.sort(tiles * count + blocks, axis=-1)
    return Visits(low, high, steps, (ordered % count - start) * ROWS)


def block_sparse_pairs(pattern: BlockSparse, random_blocks: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the blocks of queries and of keys of each pair of blocks of the pattern, int32[heads, pairs] each."""
    assert pattern.blocks is not None
    last, heads = pattern.blocks - 1, random_blocks.shape[0]
    pairs = [(end, block) for end in (0, last) for block in range(last + 1)]
    for block in range(1, last):
        pairs += [(block, other) for other in sorted({0, block - 1, block, block + 1, last})]
    fixed = np.broadcast_to(np.array(pairs, np.int32).T[:, None], (2, heads, len(pairs)))
    middle = np.repeat(np.arange(1, last, dtype=np.int32), pattern.random)
    queries = np.concatenate([fixed[0], np.broadcast_to(middle, (heads, middle.size))], axis=1)
    return jnp.asarray(queries), jnp.concatenate([fixed[1], random_blocks.reshape(heads, -1)], axis=1)


def _tiled(rows: jax.Array) -> jax.Array:
    return rows.reshape(rows.shape[0], -1, ROWS)
