"""Attention within a window and to global tokens, by blocks of the row: time and memory grow linearly with its length.

A block of queries attends to its own block of keys and to the neighbouring blocks that its window reaches. Everything is a
batched matrix product, so it runs on every platform, and a row that is sharded over devices exchanges neighbouring blocks only,
apart from global tokens.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from typing_extensions import override

from bertfam.kernels.attention.interface import Backend, Inputs, Request, beyond_self_attention
from bertfam.kernels.attention.patterns import FULL, ExtraTokens, GlobalTokens, Window, first_global
from bertfam.kernels.attention.xla import Xla

_MIN_BLOCK, _MAX_BLOCK = 16, 128
_OUTSIDE = -1  # segment of keys that no query attends to, such as those beside the ends of a row


class _Further(NamedTuple):
    """Keys of every block of queries besides those near it.

    Attributes:
      key: [batch, further, key_heads, head_dim].
      value: of the same shape.
      segment_ids: int32[batch, further].
    """

    key: jax.Array
    value: jax.Array
    segment_ids: jax.Array


class Blocks(Backend):
    """Attention within a window that is bounded on both sides, and to a few global tokens."""

    name = "blocks"

    @override
    def refusals(self, request: Request) -> Iterator[str]:
        if _reach(request) is None and not isinstance(request.pattern, ExtraTokens):
            yield f"tokens attend to {request.pattern.describe()}"
        yield from beyond_self_attention(request)

    @override
    def cost(self, request: Request) -> float:
        if isinstance(request.pattern, ExtraTokens):
            keys = request.pattern.pairs(request.length) / request.length
        elif (reach := _reach(request)) is not None:
            keys = sum(_sizes(*reach)) + _most_global(request)
        else:
            return float("inf")
        # Measured with three blocks of 128: 2.3 ms for rows of any length.
        return 0.5 + 0.0049 * keys

    @override
    def gathers_keys(self, request: Request) -> bool:
        return False

    @override
    def run(self, inputs: Inputs, request: Request) -> tuple[jax.Array, None]:
        if isinstance(request.pattern, ExtraTokens):
            return _with_extra_tokens(inputs, request.pattern, request), None
        window, reach = _window(request), _reach(request)
        assert window is not None and reach is not None
        further, key_segments = None, inputs.segment_ids
        if inputs.arrays is not None and _most_global(request):
            further, key_segments = _global_tokens(inputs, inputs.arrays["global_tokens"], _most_global(request))
        return _attend(inputs._replace(key_segment_ids=key_segments), further, window, _sizes(*reach), request.score_scale), None


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


def _global_tokens(inputs: Inputs, flags: jax.Array, most: int) -> tuple[_Further, jax.Array]:
    """Return the first global tokens as further keys, and the segments int32[batch, length] of the keys near a query.

    Global tokens are no keys near a query, so that none is attended to a second time within its window.
    """
    places, found = first_global(flags, most)
    counted = jnp.zeros_like(flags).at[jnp.arange(len(flags))[:, None], places].set(found)
    segments = jnp.where(found, jnp.take_along_axis(inputs.segment_ids, places, axis=1), _OUTSIDE)
    keys, values = (jnp.take_along_axis(array, places[:, :, None, None], axis=1) for array in (inputs.key, inputs.value))
    return _Further(keys, values, segments), jnp.where(counted, _OUTSIDE, inputs.segment_ids)


# Attention weights are computed again in the backward pass: they take several times the memory of queries, keys and values.
@partial(jax.checkpoint, static_argnums=(1, 2))
def _with_extra_tokens(inputs: Inputs, pattern: ExtraTokens, request: Request) -> jax.Array:
    """Compute the attention of the global tokens to all tokens, and of the others by blocks."""
    query, key, value, segment_ids = inputs[:4]
    first, others = (
        Inputs(query[:, part], key[:, part], value[:, part], segment_ids[:, part])
        for part in (slice(None, pattern.count), slice(pattern.count, None))
    )
    to_all = replace(request, pattern=FULL, length=pattern.count, key_length=request.length)
    mixed, _ = Xla().run(Inputs(first.query, key, value, first.segment_ids, segment_ids), to_all)
    further = _Further(first.key, first.value, first.segment_ids)
    near = others._replace(key_segment_ids=others.segment_ids)
    by_block = _attend(near, further, FULL, (pattern.block,) * 3, request.score_scale)
    return jnp.concatenate([mixed, by_block], axis=1)


@partial(jax.checkpoint, static_argnums=(2, 3, 4))  # for the same reason
def _attend(inputs: Inputs, further: _Further | None, window: Window, sizes: tuple[int, int, int], scale: float) -> jax.Array:
    """Compute attention by blocks, to the keys that are near and within the window, and to further ones."""
    query, key, value, segment_ids, key_segment_ids = inputs[:5]
    assert key_segment_ids is not None
    before, block, after = sizes
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

    def joined(near: jax.Array, others: jax.Array) -> jax.Array:
        """Join keys [batch, count, keys, ...] with the further ones [batch, further, ...] of each row."""
        return jnp.concatenate([near, jnp.broadcast_to(others[:, None], (*near.shape[:2], *others.shape[1:]))], axis=2)

    keys, values, key_segments = neighbourhoods(key), neighbourhoods(value), neighbourhoods(key_segment_ids, _OUTSIDE)
    mask = window.mask(jnp.arange(block)[:, None], jnp.arange(-before, block + after)[None])  # [block, keys]
    if further is not None:
        keys, values, key_segments = map(joined, (keys, values, key_segments), further)
        mask = jnp.broadcast_to(mask, (block, before + block + after))
        mask = jnp.pad(mask, [(0, 0), (0, further.key.shape[1])], constant_values=True)
    key_heads = key.shape[2]
    queries = blocks(query).reshape(batch, count, block, key_heads, heads // key_heads, head_dim)
    # [batch, count, block, key_heads, group, head_dim] x [batch, count, keys, key_heads, head_dim]
    # -> float32[batch, count, key_heads, group, block, keys]
    scores = jnp.einsum("bnqhgd,bnkhd->bnhgqk", queries, keys, preferred_element_type=jnp.float32)
    mask = mask & jnp.equal(blocks(segment_ids)[..., :, None], key_segments[..., None, :])  # [batch, count, block, keys]
    scores = jnp.where(mask[:, :, None, None], scores * scale, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
    # -> [batch, count, block, key_heads, group, head_dim]
    mixed = jnp.einsum("bnhgqk,bnkhd->bnqhgd", weights, values)
    return mixed.reshape(batch, count * block, heads, head_dim)[:, :length]
