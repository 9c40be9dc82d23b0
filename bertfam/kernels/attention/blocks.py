"""Attention within a window, by blocks of the row: time and memory grow linearly with its length.

A block of queries attends to its own block of keys and to the neighbouring blocks that its window reaches. Everything is a
batched matrix product, so it runs on every platform, and a row that is sharded over devices exchanges neighbouring blocks only.
"""

from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp
from typing_extensions import override

from bertfam.kernels.attention.interface import Backend, Inputs, Request
from bertfam.kernels.attention.patterns import Window

_MIN_BLOCK, _MAX_BLOCK = 16, 128


class Blocks(Backend):
    """Attention within a window that is bounded on both sides."""

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
        return 0.5 + 0.0049 * sum(_sizes(*reach))

    @override
    def gathers_keys(self, request: Request) -> bool:
        return False

    @override
    def run(self, inputs: Inputs, request: Request) -> tuple[jax.Array, None]:
        return _attend(inputs.query, inputs.key, inputs.value, inputs.segment_ids, request), None


def _reach(request: Request) -> tuple[int, int] | None:
    """Return the places before and after a query that its window reaches; None if it has no such bounds."""
    pattern = request.pattern
    if not isinstance(pattern, Window) or pattern.left is None or pattern.right is None:
        return None
    return pattern.left, pattern.right


def _sizes(left: int, right: int) -> tuple[int, int, int]:
    """Return the places before, in and after a block of queries that it attends to; each is a multiple of the second."""
    block = min(max(_MIN_BLOCK, 1 << (max(left, right) - 1).bit_length()), _MAX_BLOCK)
    return -(-left // block) * block, block, -(-right // block) * block


# Attention weights are computed again in the backward pass: they take several times the memory of queries, keys and values.
@partial(jax.checkpoint, static_argnums=(4,))
def _attend(query: jax.Array, key: jax.Array, value: jax.Array, segment_ids: jax.Array, request: Request) -> jax.Array:
    """Compute attention by blocks; shapes as in `Inputs`."""
    reach = _reach(request)
    assert reach is not None
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

    key_heads = key.shape[2]
    queries = blocks(query).reshape(batch, count, block, key_heads, heads // key_heads, head_dim)
    # [batch, count, block, key_heads, group, head_dim] x [batch, count, keys, key_heads, head_dim]
    # -> float32[batch, count, key_heads, group, block, keys]
    scores = jnp.einsum("bnqhgd,bnkhd->bnhgqk", queries, neighbourhoods(key), preferred_element_type=jnp.float32)
    query_places = jnp.arange(block)[:, None]
    key_places = jnp.arange(-before, block + after)[None]
    # The blocks that a row is filled up with, and those beside its ends, are of no segment.
    same = jnp.equal(blocks(segment_ids)[..., :, None], neighbourhoods(segment_ids, -1)[..., None, :])
    mask = same & request.pattern.mask(query_places, key_places)  # [batch, count, block, keys]
    scores = jnp.where(mask[:, :, None, None], scores * request.score_scale, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
    # -> [batch, count, block, key_heads, group, head_dim]
    mixed = jnp.einsum("bnhgqk,bnkhd->bnqhgd", weights, neighbourhoods(value))
    return mixed.reshape(batch, count * block, heads, head_dim)[:, :length]
