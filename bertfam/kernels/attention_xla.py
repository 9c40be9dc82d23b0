"""Attention by `jax.nn.dot_product_attention`, left to XLA to fuse."""

import jax

from bertfam.kernels.attention_backend import Backend, Request, visible


def run(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    segment_ids: jax.Array,
    request: Request,
    bias: jax.Array | None = None,
    dropout_key: jax.Array | None = None,
) -> tuple[jax.Array, None]:
    """No dropout, no maps: [batch, length, heads, head_dim] each -> the same; see `attention_backend.Attend`."""
    mask = visible(segment_ids, request)
    mixed = jax.nn.dot_product_attention(query, key, value, bias=bias, mask=mask, implementation="xla")
    return mixed, None


XLA = Backend("xla", run, packed=True, bias=True, window=True)
