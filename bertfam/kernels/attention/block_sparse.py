"""BigBird's attention (see `patterns.BlockSparse`) by blocks of the row: time and memory grow linearly with its length."""

from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp
from typing_extensions import override

from bertfam.kernels.attention.interface import Backend, Inputs, Request, beyond_self_attention
from bertfam.kernels.attention.patterns import BlockSparse

_OUTSIDE = -1  # segment of the keys that the last block is filled up with


class BlockSparseProducts(Backend):
    """Attention by gathered blocks and batched matrix products."""

    name = "block_sparse"

    @override
    def refusals(self, request: Request) -> Iterator[str]:
        if not isinstance(request.pattern, BlockSparse):
            yield f"tokens attend to {request.pattern.describe()}"
        yield from beyond_self_attention(request)

    @override
    def cost(self, request: Request) -> float:
        if not isinstance(request.pattern, BlockSparse):
            return float("inf")
        return 0.5 + 0.0049 * request.pattern.pairs(request.length) / request.length

    @override
    def run(self, inputs: Inputs, request: Request) -> tuple[jax.Array, None]:
        assert inputs.arrays is not None
        random_blocks = inputs.arrays["random_blocks"]
        return _attend(inputs.query, inputs.key, inputs.value, inputs.segment_ids, random_blocks, request), None


# Attention weights are computed again in the backward pass: they take several times the memory of queries, keys and values.
@partial(jax.checkpoint, static_argnums=(5,))
def _attend(
    query: jax.Array, key: jax.Array, value: jax.Array, segment_ids: jax.Array, random_blocks: jax.Array, request: Request
) -> jax.Array:
    """Compute attention by blocks; shapes as in `Inputs`, and random_blocks int32[heads, blocks - 2, random]."""
    pattern = request.pattern
    assert isinstance(pattern, BlockSparse) and pattern.blocks is not None
    count, block = pattern.blocks, pattern.block
    length, heads = query.shape[1:3]
    if key.shape[2] != heads:
        key, value = (jnp.repeat(array, heads // key.shape[2], axis=2) for array in (key, value))

    def blocks(array: jax.Array, fill: int = 0) -> jax.Array:
        """Pad a row to whole blocks: [batch, length, heads, ...] -> [batch, heads, blocks, block, ...]."""
        padding = [(0, 0), (0, count * block - length), *[(0, 0)] * (array.ndim - 2)]
        padded = jnp.pad(array, padding, constant_values=fill)
        return jnp.swapaxes(padded.reshape(array.shape[0], count, block, *array.shape[2:]), 1, 3).swapaxes(2, 3)

    queries, keys, values = blocks(query), blocks(key), blocks(value)
    segments = segment_ids[:, :, None]  # the same for all heads
    query_segments, key_segments = blocks(segments), blocks(segments, _OUTSIDE)
    ends = [_joined(array[:, :, :: count - 1]) for array in (queries, query_segments)]
    outer = _mixed(ends[0], _joined(keys), _joined(values), ends[1], _joined(key_segments), request.score_scale)
    inner = _mixed(
        queries[:, :, 1:-1],
        _seen(keys, random_blocks),
        _seen(values, random_blocks),
        query_segments[:, :, 1:-1],
        _seen_segments(key_segments, random_blocks),
        request.score_scale,
    )
    # [batch, heads, 2 * block, head_dim] -> 2 x [batch, heads, 1, block, head_dim]
    first, last = jnp.split(outer[:, :, None], 2, axis=3)
    # [batch, heads, blocks, block, head_dim] -> [batch, length, heads, head_dim]
    return jnp.swapaxes(_joined(jnp.concatenate([first, inner, last], axis=2)), 1, 2)[:, :length]


def _joined(blocks: jax.Array) -> jax.Array:
    """Join all blocks: [batch, heads, blocks, block, ...] -> [batch, heads, blocks * block, ...]."""
    return blocks.reshape(*blocks.shape[:2], -1, *blocks.shape[4:])


def _seen(blocks: jax.Array, random_blocks: jax.Array) -> jax.Array:
    """Join the blocks of keys that each block of queries attends to, but for the first and the last block of queries.

    [batch, heads or 1, blocks, block, ...] -> [batch, heads, blocks - 2, keys, ...]
    """
    batch, _, count, block, *rest = blocks.shape
    heads = random_blocks.shape[0]
    blocks = jnp.broadcast_to(blocks, (batch, heads, *blocks.shape[2:]))
    first, last = (jnp.broadcast_to(blocks[:, :, [place]], (batch, heads, count - 2, block, *rest)) for place in (0, -1))
    # [batch, heads, blocks - 2, random, block, ...]
    at_random = blocks[:, jnp.arange(heads)[:, None, None], random_blocks]
    at_random = at_random.reshape(batch, heads, count - 2, -1, *rest)
    return jnp.concatenate([first, blocks[:, :, :-2], blocks[:, :, 1:-1], blocks[:, :, 2:], last, at_random], axis=3)


def _seen_segments(segments: jax.Array, random_blocks: jax.Array) -> jax.Array:
    """Return the segments of `_seen`'s keys.

    The block beside the first or the last one has that block twice, once as a neighbour, which counts as outside.
    """
    block = segments.shape[3]
    seen = _seen(segments, random_blocks)
    return seen.at[:, :, 0, block : 2 * block].set(_OUTSIDE).at[:, :, -1, 3 * block : 4 * block].set(_OUTSIDE)


def _mixed(
    query: jax.Array, key: jax.Array, value: jax.Array, query_segments: jax.Array, key_segments: jax.Array, scale: float
) -> jax.Array:
    """Compute attention within segments: queries [..., queries, head_dim], keys and values [..., keys, head_dim]."""
    scores = jnp.einsum("...qd,...kd->...qk", query, key, preferred_element_type=jnp.float32) * scale
    mask = jnp.equal(query_segments[..., :, None], key_segments[..., None, :])
    weights = jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(jnp.float32).min), axis=-1)
    return jnp.einsum("...qk,...kd->...qd", weights.astype(value.dtype), value)
