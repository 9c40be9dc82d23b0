"""Attention within a window and to global tokens, by blocks of the row: time and memory grow linearly with its length.

A block of queries attends to its own block of keys and to the neighbouring blocks that its window reaches. Everything is a
batched matrix product, so it runs on every platform, and a row that is sharded over devices exchanges neighbouring blocks only.
"""

from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp
from typing_extensions import override

from bertfam.kernels.attention.interface import Backend, Inputs, Request
from bertfam.kernels.attention.patterns import GlobalTokens, Window

_MIN_BLOCK, _MAX_BLOCK = 16, 128
_OUTSIDE = -1  # segment of keys beside the ends of a row, which no query has


class Blocks(Backend):
    """Attention within a window that is bounded on both sides, and to a few global tokens."""

    name = "blocks"

    @override
    def refusals(self, request: Request) -> Iterator[str]:
        if _reach(request) is None:
            yield f"tokens attend to {request.pattern.describe()}"
        if request.return_weights:
            yield "attention weights are requested"
        if request.bias:
            yield "scores have a bias"
        if request.key_length is not None:
            yield "keys come from another sequence or a cache"

    @override
    def cost(self, request: Request) -> float:
        reach = _reach(request)
        if reach is None:
            return float("inf")
        # Measured with three blocks of 128: 2.3 ms for rows of any length.
        return 0.5 + 0.0049 * (sum(_sizes(*reach)) + _most_global(request))

    @override
    def gathers_keys(self, request: Request) -> bool:
        return False

    @override
    def run(self, inputs: Inputs, request: Request) -> tuple[jax.Array, None]:
        flags = inputs.arrays["global_tokens"] if inputs.arrays is not None and _most_global(request) else None
        return _attend(inputs.query, inputs.key, inputs.value, inputs.segment_ids, flags, request), None


def _window(request: Request) -> Window | None:
    pattern = request.pattern.window if isinstance(request.pattern, GlobalTokens) else request.pattern
    return pattern if isinstance(pattern, Window) else None


def _most_global(request: Request) -> int:
    """Return the largest number of global tokens in a row."""
    return request.pattern.most if isinstance(request.pattern, GlobalTokens) else 0


def _reach(request: Request) -> tuple[int, int] | None:
    """Return the places before and after a query that its window reaches; None if it has no such bounds."""
    window = _window(request)
    if window is None or window.left is None or window.right is None:
        return None
    return window.left, window.right


def _sizes(left: int, right: int) -> tuple[int, int, int]:
    """Return the places before, in and after a block of queries that it attends to; each is a multiple of the second."""
    block = min(max(_MIN_BLOCK, 1 << (max(left, right) - 1).bit_length()), _MAX_BLOCK)
    return -(-left // block) * block, block, -(-right // block) * block


# Attention weights are computed again in the backward pass: they take several times the memory of queries, keys and values.
@partial(jax.checkpoint, static_argnums=(5,))
def _attend(
    query: jax.Array, key: jax.Array, value: jax.Array, segment_ids: jax.Array, flags: jax.Array | None, request: Request
) -> jax.Array:
    """Compute attention by blocks; shapes as in `Inputs`, and global tokens bool[batch, length] or None."""
    window, reach = _window(request), _reach(request)
    assert window is not None and reach is not None
    before, block, after = _sizes(*reach)
    batch, length, heads, head_dim = query.shape
    count = -(-length // block)

    def blocks(array: jax.Array, fill: int = 0) -> jax.Array:
        """Pad a row to whole blocks: [batch, length, ...] -> [batch, count, block, ...]."""
        padding = [(0, 0), (0, count * block - length), *[(0, 0)] * (array.ndim - 2)]
        return jnp.pad(array, padding, constant_values=fill).reshape(batch, count, block, *array.shape[2:])

    def neighbourhoods(array: jax.Array, fill: int = 0) -> jax.Array:
        """Join each block with its neighbours: [batch, length, ...] -> [batch, count, before + block + after, ...]."""
        padding = [(0, 0), (before // block, after // block), *[(0, 0)] * (array.ndim - 1)]
        padded = jnp.pad(blocks(array, fill), padding, constant_values=fill)
        return jnp.concatenate([padded[:, i : i + count] for i in range((before + block + after) // block)], axis=2)

    keys, values, key_segments = neighbourhoods(key), neighbourhoods(value), neighbourhoods(segment_ids, _OUTSIDE)
    mask = window.mask(jnp.arange(block)[:, None], jnp.arange(-before, block + after)[None])  # [block, keys]
    if flags is not None:
        # Every block of queries has the global tokens as further keys, and not a second time within its window.
        places = jnp.argsort(~flags, axis=1, stable=True)[:, : _most_global(request)]
        found = jnp.take_along_axis(flags, places, axis=1)
        counted = jnp.zeros_like(flags).at[jnp.arange(batch)[:, None], places].set(found)
        key_segments = jnp.where(neighbourhoods(counted), _OUTSIDE, key_segments)
        segments = jnp.where(found, jnp.take_along_axis(segment_ids, places, axis=1), _OUTSIDE)

        def joined(near: jax.Array, chosen: jax.Array) -> jax.Array:
            """Join the keys [batch, count, keys, ...] with the global ones [batch, most, ...] of each row."""
            shape = (*near.shape[:2], *chosen.shape[1:])
            return jnp.concatenate([near, jnp.broadcast_to(chosen[:, None], shape)], axis=2)

        index = places[:, :, None, None]
        keys = joined(keys, jnp.take_along_axis(key, index, axis=1))
        values = joined(values, jnp.take_along_axis(value, index, axis=1))
        key_segments = joined(key_segments, segments)
        mask = jnp.pad(mask, [(0, 0), (0, places.shape[1])], constant_values=True)
    key_heads = key.shape[2]
    queries = blocks(query).reshape(batch, count, block, key_heads, heads // key_heads, head_dim)
    # [batch, count, block, key_heads, group, head_dim] x [batch, count, keys, key_heads, head_dim]
    # -> float32[batch, count, key_heads, group, block, keys]
    scores = jnp.einsum("bnqhgd,bnkhd->bnhgqk", queries, keys, preferred_element_type=jnp.float32)
    mask = mask & jnp.equal(blocks(segment_ids)[..., :, None], key_segments[..., None, :])  # [batch, count, block, keys]
    scores = jnp.where(mask[:, :, None, None], scores * request.score_scale, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
    # -> [batch, count, block, key_heads, group, head_dim]
    mixed = jnp.einsum("bnhgqk,bnkhd->bnqhgd", weights, values)
    return mixed.reshape(batch, count * block, heads, head_dim)[:, :length]
