"""Attention by cuDNN's fused kernel, through `jax.nn.dot_product_attention`."""

import jax
import jax.numpy as jnp

from bertfam.kernels.attention_backend import Backend, Request


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
    """Unpacked rows: [batch, length, heads, head_dim] each -> the same; see `attention_backend.Attend`."""
    # Padding goes in as lengths: a boolean mask would become a bias of [batch, heads, length, length] in memory.
    # A row of padding only attends to its first token, since a length of 0 has no softmax.
    lengths = jnp.maximum(jnp.sum(segment_ids > 0, axis=-1, dtype=jnp.int32), 1)
    mixed = jax.nn.dot_product_attention(query, key, value, key_value_seq_lengths=lengths, implementation="cudnn")
    return mixed, None


CUDNN = Backend("cudnn", run, platforms=("gpu",), dtypes=("bfloat16", "float16"), max_head_dim=128, min_compute_capability=8.0)
