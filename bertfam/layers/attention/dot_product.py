"""Multi-head attention (Vaswani et al. 2017, equation 1 and section 3.2.2): self-attention and cross-attention."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from bertfam.kernels import rows, split_heads
from bertfam.kernels.attention.choice import choose
from bertfam.kernels.attention.interface import Inputs, Request
from bertfam.kernels.attention.patterns import FULL, Pattern
from bertfam.layers.attention.key_value_cache import put
from bertfam.layers.dense import Dense, project, project_jointly, unstack
from bertfam.layers.execution import Execution
from bertfam.layers.gates import gated
from bertfam.layers.initializers import Initializer, truncated_normal
from bertfam.layers.positions.rotary import angles_at, rotate

_ROTATED = ("query", "key")  # the projections that rotary positions turn, before the others


class Row(NamedTuple):
    """Arrays that describe a batch's rows to attention, the same in every layer.

    Attributes:
      segment_ids: int32[batch, length], number of the packed example; 0 = padding. A token attends to its own segment.
      positions: int32[batch, length], from 0 in each example, for rotary positions; None: 0, 1, 2, ...
      bias: float32[batch or 1, heads, length, keys], added to the scores.
      key_segment_ids: int32[batch, slots], segment ids of a cache that includes these tokens.
      offset: int32[], the slot of the first of these tokens.
      arrays: arrays that the attention pattern depends on, by name.
    """

    segment_ids: jax.Array
    positions: jax.Array | None = None
    bias: jax.Array | None = None
    key_segment_ids: jax.Array | None = None
    offset: jax.Array | None = None
    arrays: Mapping[str, jax.Array] | None = None


class Encoded(NamedTuple):
    """An encoder's output, which a decoder attends to.

    Attributes:
      hidden: [batch, encoded length, embed]; None if its keys and values are in a cache.
      segment_ids: int32[batch, encoded length]; 0 = padding. A token attends to its own segment.
    """

    hidden: jax.Array | None
    segment_ids: jax.Array


class Attended(NamedTuple):
    """Result of attention.

    Attributes:
      output: dtype[batch, length, embed].
      probabilities: attention weights float32[batch, heads, length, keys] before dropout, if requested.
      keys, values: [batch, keys, key_heads, head_dim], for a cache.
      queries: [batch, length, heads, head_dim], whose products with the keys are the scores before scale and bias.
    """

    output: jax.Array
    probabilities: jax.Array | None
    keys: jax.Array
    values: jax.Array
    queries: jax.Array


class Attention(nn.Module):
    """Base of self-attention, cross-attention and relative attention.

    Attributes:
      num_heads, head_dim: number of heads and their width.
      dropout_rate: dropout rate of the attention weights, applied in training by backends that support it.
      execution: dtype and backend.
      kernel_init: initializer of all four kernels.
      output_init: initializer of the kernel of `output`; None: `kernel_init`.
      query_init: initializer of the kernel of `query`; None: `kernel_init`.
      use_bias: True if the four projections have biases.
      scale: factor of the scores; None: 1 / sqrt(head_dim).
    """

    num_heads: int
    head_dim: int
    dropout_rate: float = 0.0
    execution: Execution = Execution()
    kernel_init: Initializer = truncated_normal(0.02)
    output_init: Initializer | None = None
    query_init: Initializer | None = None
    use_bias: bool = True
    scale: float | None = None

    @property
    def _axis(self) -> str | None:
        """Logical axis of the heads."""
        return _heads_axis(self.num_heads)

    def _projection(self, name: str, num_heads: int) -> Dense:
        """Return the named projection of [..., embed] to [..., heads, head_dim]."""
        axes = ("embed", _heads_axis(num_heads), "head_dim")
        kernel_init = (self.query_init if name == "query" else None) or self.kernel_init
        return Dense((num_heads, self.head_dim), axes, self.execution.compute_dtype, self.use_bias, kernel_init, name=name)

    def _heads(self, inputs: jax.Array, num_heads: int, *names: str, angles: jax.Array | None = None) -> list[jax.Array]:
        """Project inputs [batch, length, embed] to dtype[batch, length, heads, head_dim] for each name.

        `angles` turn queries and keys (see `bertfam.layers.positions.rotary`).
        """
        parameters = [self._projection(name, num_heads).parameters(inputs) for name in names]
        kernels, biases, adapters = zip(*parameters, strict=True)
        inputs = inputs.astype(self.execution.compute_dtype)
        heads = self._axis if num_heads == self.num_heads else None
        axes = ("batch", "length", heads, "head_dim")
        if not rows.join_products(inputs.dtype):
            apart = [project(inputs, *own) for own in parameters]
            return _turned([nn.with_logical_constraint(array, axes) for array in apart], names, angles)
        # The kernels are stacked on a new axis, so that one product has all heads and their sharding is kept.
        # [batch, length, embed] -> [batch, length, projections, heads, head_dim]
        # with n x [embed, heads, head_dim] -> [embed, n, heads, head_dim]; n x [heads, head_dim] -> [n, ...], n projections
        joint = project_jointly(inputs, kernels, adapters)
        bias = jnp.stack(biases) if self.use_bias else None
        if split_heads.supports(joint, heads):
            turned = 0
            if angles is not None:
                angles = jnp.broadcast_to(angles, (*joint.shape[:2], angles.shape[-1]))
                turned = sum(name in _ROTATED for name in names)
            return split_heads.split(joint, bias, angles, split_heads.Settings(heads, turned))
        joint = joint if bias is None else joint + bias
        return _turned(unstack(nn.with_logical_constraint(joint, (*axes[:2], None, *axes[2:]))), names, angles)

    def _mixed(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        row: Row,
        packed: bool,
        train: bool,
        return_weights: bool,
        pattern: Pattern = FULL,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Return the mixed values [batch, length, heads, head_dim] and, if requested, the attention weights."""
        request = Request(
            str(query.dtype),
            query.shape[1],
            self.head_dim,
            pattern,
            packed=packed,
            dropout_rate=self.dropout_rate if train else 0.0,
            return_weights=return_weights,
            bias=row.bias is not None,
            key_length=key.shape[1] if row.key_segment_ids is not None else None,
            scale=self.scale,
            heads=self.num_heads,
        ).here()
        backend, _ = choose(request, self.execution.attention)
        heads = self._axis if key.shape[2] == self.num_heads else None
        length = None if backend.gathers_keys(request) else "length"
        key, value = (nn.with_logical_constraint(array, ("batch", length, heads, None)) for array in (key, value))
        inputs = Inputs(
            query,
            key.astype(query.dtype),
            value.astype(query.dtype),
            row.segment_ids,
            row.key_segment_ids,
            row.offset,
            row.bias,
            dropout_key=self.make_rng("dropout") if request.dropout_rate and backend.applies_dropout else None,
            arrays=row.arrays,
        )
        return backend.run(inputs, request)

    def _output(self, mixed: jax.Array, embed: int) -> jax.Array:
        """Project mixed values [batch, length, heads, head_dim] to [batch, length, embed]; `gated` multiplies the heads."""
        axes = (self._axis, "head_dim", "embed")
        dtype, output_init = self.execution.compute_dtype, self.output_init or self.kernel_init
        return Dense((embed,), axes, dtype, self.use_bias, output_init, name="output")(gated(self, mixed, -2))


class SelfAttention(Attention):
    """Self-attention; the kernels of queries, keys and values are separate parameters [embed, heads, head_dim].

    Attributes:
      num_kv_heads: number of key and value heads, a divisor of `num_heads`; 1 is multi-query attention (Shazeer 2019);
        None: `num_heads`.
      pattern: the tokens that a token attends to, within its segment.
      rotary_theta: base of the rotary positions of queries and keys (see `bertfam.layers.positions.rotary`); None: no rotary
        positions.
    """

    num_kv_heads: int | None = None
    pattern: Pattern = FULL
    rotary_theta: float | None = None

    @nn.compact
    def __call__(
        self,
        inputs: jax.Array,
        row: Row,
        *,
        packed: bool,
        train: bool,
        return_weights: bool = False,
        cached: tuple[jax.Array, jax.Array] | None = None,
    ) -> Attended:
        """Attend from each token to the tokens of its own segment.

        Args:
          inputs: [batch, length, embed].
          row: segments, positions and bias of the rows.
          packed: False promises that a row holds one example (ids 0 and 1) with its padding at the end, and no cache.
          train: True to apply dropout.
          return_weights: True to return the attention weights.
          cached: keys and values [batch, slots, key_heads, head_dim] of a cache, in which these tokens fill the slots from
            `row.offset` on.
        """
        angles = None
        if self.rotary_theta is not None:
            angles = angles_at(row.positions, inputs.shape[1], self.head_dim, self.rotary_theta)
        if self.num_kv_heads in (None, self.num_heads):
            query, key, value = self._heads(inputs, self.num_heads, "query", "key", "value", angles=angles)
        else:
            (query,) = self._heads(inputs, self.num_heads, "query", angles=angles)
            key, value = self._heads(inputs, self.num_kv_heads or 1, "key", "value", angles=angles)
        if cached is not None:
            assert row.offset is not None, "a cache without the slot to write to"
            key, value = (put(old, new, row.offset) for old, new in zip(cached, (key, value), strict=True))
        mixed, probabilities = self._mixed(query, key, value, row, packed, train, return_weights, self.pattern)
        return Attended(self._output(mixed, inputs.shape[-1]), probabilities, key, value, query)


class CrossAttention(Attention):
    """Cross-attention: queries from one sequence, keys and values from another, an encoder's output."""

    @nn.compact
    def __call__(
        self,
        inputs: jax.Array,
        row: Row,
        encoded: Encoded,
        *,
        packed: bool,
        train: bool,
        return_weights: bool = False,
        cached: tuple[jax.Array, jax.Array] | None = None,
    ) -> Attended:
        """Attend from each token to the encoded tokens of its own segment.

        Args:
          inputs: [batch, length, embed].
          row: the rows of the inputs, of which only the segment ids are used.
          encoded: the encoder's output, which the tokens attend to.
          packed: False promises that each row holds one example (ids 0 and 1) with its padding at the end.
          train: True to apply dropout.
          return_weights: True to return the attention weights.
          cached: keys and values [batch, encoded length, heads, head_dim], if `encoded` has no hidden states.
        """
        (query,) = self._heads(inputs, self.num_heads, "query")
        if encoded.hidden is not None:
            key, value = self._heads(encoded.hidden, self.num_heads, "key", "value")
        else:
            assert cached is not None, "neither an encoder's output nor its keys and values"
            key, value = cached
        seen = Row(row.segment_ids, key_segment_ids=encoded.segment_ids)
        mixed, probabilities = self._mixed(query, key, value, seen, packed, train, return_weights)
        return Attended(self._output(mixed, inputs.shape[-1]), probabilities, key, value, query)


def _turned(arrays: Sequence[jax.Array], names: Sequence[str], angles: jax.Array | None) -> list[jax.Array]:
    """Turn the projections among [batch, length, heads, head_dim] that have rotary positions, if there are any."""
    if angles is None:
        return [*arrays]
    return [rotate(array, angles) if name in _ROTATED else array for name, array in zip(names, arrays, strict=True)]


def _heads_axis(num_heads: int) -> str | None:
    """Return the logical axis of heads; None for one head, which is not sharded (multi-query, a small ELECTRA generator)."""
    return "heads" if num_heads > 1 else None
