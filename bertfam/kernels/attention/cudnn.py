"""Attention by cuDNN's fused kernel, through `jax.nn.dot_product_attention`."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
from typing_extensions import override

from bertfam.kernels.attention.interface import Backend, Inputs, Request, beyond_unpacked_rows, computed_keys
from bertfam.kernels.attention.patterns import CAUSAL

_MAX_HEAD_DIM = 128
_MIN_COMPUTE_CAPABILITY = 8.0
# On an H200, at length 128 cuDNN takes half the time of XLA. Shorter rows have not been measured.
MIN_LENGTH = 128


class Cudnn(Backend):
    """Attention of unpacked rows, over all or all previous tokens."""

    name = "cudnn"
    platforms = ("gpu",)
    reproducible = False  # the gradients of queries, in rows of 512 tokens and more

    @override
    def refusals(self, request: Request) -> Iterator[str]:
        # A window to the right raises in jax.nn, and one to the left alone sees all later tokens.
        yield from beyond_unpacked_rows(request)
        if request.head_dim > _MAX_HEAD_DIM or request.head_dim % 8:
            yield f"heads are {request.head_dim} wide, not a multiple of 8 up to {_MAX_HEAD_DIM}"
        if request.compute_capability is not None and request.compute_capability < _MIN_COMPUTE_CAPABILITY:
            yield f"the GPU has compute capability {request.compute_capability}, not {_MIN_COMPUTE_CAPABILITY} or more"

    @override
    def cost(self, request: Request) -> float:
        # Measured: 0.45 ms for rows of 128, 0.69 for 512, 1.08 for 1,024, 3.56 for 4,096, 13.7 for 16,384; causal 2.08 for 4,096.
        return 0.4 + 0.00081 * computed_keys(request) if request.length >= MIN_LENGTH else float("inf")

    @override
    def run(self, inputs: Inputs, request: Request) -> tuple[jax.Array, None]:
        # Padding is passed as lengths: a boolean mask would become a bias [batch, heads, length, length] in memory.
        # A row that is all padding attends to its first token, since a length of 0 has no softmax.
        keys = inputs.segment_ids if inputs.key_segment_ids is None else inputs.key_segment_ids
        lengths = jnp.maximum(jnp.sum(keys > 0, axis=-1, dtype=jnp.int32), 1)
        mixed = jax.nn.dot_product_attention(
            inputs.query,
            inputs.key,
            inputs.value,
            inputs.bias if inputs.bias is None else inputs.bias.astype(inputs.query.dtype),
            is_causal=request.pattern == CAUSAL,
            key_value_seq_lengths=lengths,
            scale=request.scale,
            implementation="cudnn",
        )
        return mixed, None
