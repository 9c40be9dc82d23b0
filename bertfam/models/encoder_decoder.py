"""What encoder-decoders have in common: how their decoders see a row, what they collect, and what they cost."""

from typing import Any

import jax
import jax.numpy as jnp

from bertfam.layers.attention import Row
from bertfam.layers.cache import Cache


def row_of(segment_ids: jax.Array, cache: Cache | None, bias: jax.Array | None = None) -> Row:
    """What a decoder's attention to its own row is told: the row alone, or beside it the slots of a cache.

    Args:
      segment_ids: int32[batch, length], of these tokens.
      cache: of the tokens before them.
      bias: float32[1, heads, length, length or slots].
    """
    if cache is None:
        return Row(segment_ids, bias=bias)
    return Row(segment_ids, bias=bias, key_segment_ids=cache.seen(segment_ids), offset=cache.filled)


def collected_of(layers: dict[str, Any], first: jax.Array, last: jax.Array, segment_ids: jax.Array, cache: Cache | None) -> Any:
    """What a network returns beside its output.

    Args:
      layers: of the stack, [layers, ...] each.
      first: [batch, length, embed], what goes into the stack.
      last: [batch, length, embed], the network's output, which stands for that of the last layer.
      segment_ids: int32[batch, length], of these tokens.
      cache: of the tokens before them.

    Returns:
      the same with hidden_states [layers + 1, batch, length, embed], and as "cache" the next `Cache`.
    """
    found = dict(layers)
    if "hidden_states" in found:
        found["hidden_states"] = jnp.concatenate([first[None], found["hidden_states"][:-1], last[None]])
    if cache is not None:
        found["cache"] = cache.after(segment_ids, found["cache"])
    return found


def training_flops(
    length: int,
    targets: int,
    *,
    layers: tuple[int, int],
    hidden: int,
    inner: tuple[int, int],
    feed_forward: tuple[int, int],
    maps: int,
    vocabulary: int,
) -> int:
    """Matrix-product FLOPs of one row of one training step, 3 x forward.

    3 [L s (8hi + 2mhf + 4si) + L' (4shi + t (12hi + 2mhf + 2ti + 4si)) + 2thV], with L layers of the encoder on s tokens and
    L' of the decoder on t, whose attention to itself counts half, as it is causal.

    Args:
      length: s.
      targets: t.
      layers: L and L'.
      hidden: h.
      inner: i, heads times their width, in each stack.
      feed_forward: f in each stack.
      maps: m, matrices of a feed-forward network.
      vocabulary: V.
    """
    reader, writer = (
        (12 if decoder else 8) * hidden * i + 2 * maps * hidden * f + 4 * length * i + (2 * targets * i if decoder else 0)
        for decoder, i, f in zip((False, True), inner, feed_forward, strict=True)
    )
    decoder = layers[1] * (4 * length * hidden * inner[1] + targets * writer)
    return 3 * (layers[0] * length * reader + decoder + 2 * targets * hidden * vocabulary)
