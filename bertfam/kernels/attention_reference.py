"""Reference attention in jax.numpy, with every option; the other backends are tested against it."""

import jax
import jax.numpy as jnp

from bertfam.kernels.attention_interface import Backend, Request, attention_mask
from bertfam.kernels.dropout import dropout


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
) -> tuple[jax.Array, jax.Array | None]:
    """Compute attention with every option of `attention_interface.Attend`.

    Queries [batch, length, heads, head_dim] give an output of the same shape, and with `return_weights` the attention weights
    float32[batch, heads, length, keys].
    """
    if key.shape[2] != query.shape[2]:
        key, value = (jnp.repeat(array, query.shape[2] // key.shape[2], axis=2) for array in (key, value))
    # [batch, length, heads, head_dim] x the same -> float32[batch, heads, queries, keys]
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key, preferred_element_type=jnp.float32)
    scores = scores * (query.shape[-1] ** -0.5 if request.scale is None else request.scale)
    if bias is not None:
        scores = scores + bias
    # exp(lowest - max) is exactly 0, so masked keys have no weight at all.
    scores = jnp.where(attention_mask(segment_ids, request, key_segment_ids, offset), scores, jnp.finfo(jnp.float32).min)
    probabilities = jax.nn.softmax(scores, axis=-1)
    weights = probabilities.astype(value.dtype)
    if dropout_key is not None:
        weights = dropout(dropout_key, weights, request.dropout_rate)
    # [batch, heads, queries, keys] x [batch, keys, heads, head_dim] -> [batch, queries, heads, head_dim]
    mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, value)
    return mixed, probabilities if request.return_weights else None


REFERENCE = Backend("reference", run, dropout=True, return_weights=True, packed=True, bias=True, window=True)
