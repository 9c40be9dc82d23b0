"""Reference attention in jax.numpy, with every option; the other backends are tested against it."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
from typing_extensions import override

from bertfam.kernels.attention.interface import Backend, Inputs, Request, attention_bias, attention_mask
from bertfam.kernels.dropout import dropout


class Reference(Backend):
    """Attention in jax.numpy."""

    name = "reference"
    applies_dropout = True

    @override
    def refusals(self, request: Request) -> Iterator[str]:
        return iter(())

    @override
    def cost(self, request: Request) -> float:
        # The scores are kept for the backward pass in two dtypes, so it comes after XLA's own.
        return 0.5 + 0.006 * request.keys

    @override
    def run(self, inputs: Inputs, request: Request) -> tuple[jax.Array, jax.Array | None]:
        query, key, value = inputs.query, inputs.key, inputs.value
        if key.shape[2] != query.shape[2]:
            key, value = (jnp.repeat(array, query.shape[2] // key.shape[2], axis=2) for array in (key, value))
        # [batch, length, heads, head_dim] x the same -> float32[batch, heads, queries, keys]
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key, preferred_element_type=jnp.float32)
        scores = scores * request.score_scale
        if (bias := attention_bias(inputs, request)) is not None:
            scores = scores + bias
        # exp(lowest - max) is exactly 0, so masked keys have no weight at all.
        scores = jnp.where(attention_mask(inputs, request), scores, jnp.finfo(jnp.float32).min)
        probabilities = jax.nn.softmax(scores, axis=-1)
        weights = probabilities.astype(value.dtype)
        if inputs.dropout_key is not None:
            weights = dropout(inputs.dropout_key, weights, request.dropout_rate)
        # [batch, heads, queries, keys] x [batch, keys, heads, head_dim] -> [batch, queries, heads, head_dim]
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, value)
        return mixed, probabilities if request.return_weights else None
