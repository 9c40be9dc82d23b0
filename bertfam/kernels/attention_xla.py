"""Attention by `jax.nn.dot_product_attention`, which XLA compiles."""

import jax

from bertfam.kernels.attention_interface import Backend, Request, attention_mask


def run(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    segment_ids: jax.Array,
    request: Request,
    key_segment_ids: jax.Array | None = None,
    offset: jax.Array | None = None,
    bias: jax.Array | None = None,
    dropout_key: jax.Array | None = None,
) -> tuple[jax.Array, None]:
    """Compute attention without dropout and without returning weights; see `attention_interface.Attend` for shapes."""
    mask = attention_mask(segment_ids, request, key_segment_ids, offset)
    mixed = jax.nn.dot_product_attention(query, key, value, bias=bias, mask=mask, scale=request.scale, implementation="xla")
    return mixed, None


XLA = Backend("xla", run, packed=True, bias=True, window=True)
