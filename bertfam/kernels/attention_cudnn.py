"""Attention by cuDNN's fused kernel, through `jax.nn.dot_product_attention`."""

import jax
import jax.numpy as jnp

from bertfam.kernels.attention_interface import Backend, Request


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
    """Compute attention of unpacked rows; see `attention_interface.Attend` for shapes."""
    # Padding is passed as lengths: a boolean mask would become a bias [batch, heads, length, length] in memory.
    # A row that is all padding attends to its first token, since a length of 0 has no softmax.
    keys = segment_ids if key_segment_ids is None else key_segment_ids
    lengths = jnp.maximum(jnp.sum(keys > 0, axis=-1, dtype=jnp.int32), 1)
    mixed = jax.nn.dot_product_attention(
        query,
        key,
        value,
        bias if bias is None else bias.astype(query.dtype),
        is_causal=request.causal,
        key_value_seq_lengths=lengths,
        scale=request.scale,
        implementation="cudnn",
    )
    return mixed, None


CUDNN = Backend(
    "cudnn",
    run,
    platforms=("gpu",),
    dtypes=("bfloat16", "float16"),
    bias=True,
    split=False,
    max_head_dim=128,
    min_compute_capability=8.0,
)
