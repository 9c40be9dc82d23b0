"""Relative attention of Transformer-XL and XLNet (Dai et al. 2019, section 3.3; Yang et al. 2019, section 2.3 and appendix A.2).

The score of the query at place i and the key at place j, counted from the first token of the memory, is

    [(q_i + u) k_j + (q_i + v) W_r R(i - j) + (q_i + w) s_ij] / sqrt(head_dim)

with learned u, v and w, sinusoids R of the distance, and s_ij one of two learned vectors: for a key of the query's own segment,
or of another one. Any attention backend that takes a bias computes it: the queries are q_i + u, and the other two terms are the
bias, which also holds the mask.

Queries are those of two streams, one after the other: the content stream, one query for each token of the row, and the query
stream, one for each token to predict. The keys and values of both are the memory and the content stream.
"""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from bertfam.layers.attention.dot_product import Attended, Attention, Row
from bertfam.layers.initializers import Initializer, logical, normal, param
from bertfam.layers.unsharded import unshard

# Added to masked scores. In float32 it absorbs any score, so that a masked key has no weight at all.
_MASKED = -1e30


class RelativeRow(NamedTuple):
    """Arrays that describe a batch's rows to relative attention, in the place of `bertfam.layers.attention.dot_product.Row`.

    Attributes:
      distances: dtype[batch or 1, keys + length, embed], R of the distances keys, keys - 1, ..., 1 - length.
      positions: int32[batch, predictions], the place in the row of each query of the query stream; None: there is no query
        stream.
      visible: bool[batch, queries, keys], whether a query attends to a key.
      is_same_segment: bool[batch, queries, keys].
      arrays: "memory" [batch, memory, embed], the inputs of this layer at earlier tokens; None: there are none.
    """

    distances: jax.Array
    positions: jax.Array | None
    visible: jax.Array
    is_same_segment: jax.Array
    arrays: Mapping[str, jax.Array] | None = None


class RelativeAttention(Attention):
    """Relative multi-head attention of two streams of queries."""

    kernel_init: Initializer = normal(0.02)
    use_bias: bool = False

    @nn.compact
    def __call__(
        self,
        inputs: jax.Array,
        row: RelativeRow,
        *,
        packed: bool,
        train: bool,
        return_weights: bool = False,
        cached: None = None,
    ) -> Attended:
        """Attend from the queries of both streams to the memory and the content stream.

        Args:
          inputs: [batch, length + predictions, embed], the content stream and then the query stream.
          row: distances, masks and segments of the rows.
          packed: not used; the mask is part of the bias.
          train: True to apply dropout.
          return_weights: True to return the attention weights.
          cached: not used.
        """
        predictions = 0 if row.positions is None else row.positions.shape[1]
        length = inputs.shape[1] - predictions
        content = inputs[:, :length]
        seen = content
        if row.arrays is not None:
            seen = jnp.concatenate([row.arrays["memory"].astype(content.dtype), content], axis=1)
        query = self._projected("query", inputs, "length")
        key, value = self._projected("key", seen), self._projected("value", seen)
        scale = self.head_dim**-0.5 if self.scale is None else self.scale
        bias = self._by_distance(query, row, length) + self._by_segment(query, row)
        bias = jnp.where(row.visible[:, None], bias * scale, _MASKED)
        bias = nn.with_logical_constraint(bias, ("batch", self._axis, "length", None))
        segments, key_segments = (jnp.ones(array.shape[:2], jnp.int32) for array in (query, key))  # the bias holds the mask
        whole = Row(segments, bias=bias, key_segment_ids=key_segments)
        query = query + self._vector("content_bias")
        mixed, probabilities = self._mixed(query, key, value, whole, False, train, return_weights)
        # Of keys that are all masked, softmax makes a mean, in which a token to predict would see itself.
        mixed = jnp.where(jnp.any(row.visible, axis=-1)[..., None, None], mixed, 0)
        return Attended(self._output(mixed, inputs.shape[-1]), probabilities, key, value, query)

    def _projected(self, name: str, inputs: jax.Array, length_axis: str | None = None) -> jax.Array:
        """Project inputs [batch, places, embed] to dtype[batch, places, heads, head_dim]."""
        heads = self._projection(name, self.num_heads)(inputs)
        return nn.with_logical_constraint(heads, ("batch", length_axis, self._axis, None))

    def _vector(self, name: str, *shape: int) -> jax.Array:
        """Return the parameter dtype[*shape, heads, head_dim]."""
        axes = (*(None for _ in shape), self._axis, "head_dim")
        vector = param(self, name, logical(self.kernel_init, axes), (*shape, self.num_heads, self.head_dim))
        return unshard(vector.astype(self.execution.compute_dtype), axes)

    def _by_distance(self, query: jax.Array, row: RelativeRow, length: int) -> jax.Array:
        """Compute (q + v) W_r R: float32[batch, heads, queries, keys]."""
        keys = row.visible.shape[-1]
        distances = self._projected("distance", row.distances)
        distances = jnp.broadcast_to(distances, (query.shape[0], *distances.shape[1:]))
        # [batch, queries, heads, head_dim] x [batch, distances, heads, head_dim] -> [batch, heads, queries, distances]
        query = query + self._vector("distance_bias")
        scores = jnp.einsum("bqhd,brhd->bhqr", query, distances, preferred_element_type=jnp.float32)
        content = shift_rows(scores[:, :, :length], keys)
        if row.positions is None:
            return content
        return jnp.concatenate([content, slices(scores[:, :, length:], length - row.positions, keys)], axis=2)

    def _by_segment(self, query: jax.Array, row: RelativeRow) -> jax.Array:
        """Compute (q + w) s: float32[batch, heads, queries, keys]."""
        segments = self._vector("segments", 2)  # of the same segment, and of another
        query = query + self._vector("segment_bias")
        # [batch, queries, heads, head_dim] x [2, heads, head_dim] -> [2, batch, heads, queries]
        same, other = jnp.einsum("bqhd,shd->sbhq", query, segments, preferred_element_type=jnp.float32)
        return jnp.where(row.is_same_segment[:, None], same[..., None], other[..., None])


def sinusoids(length: int, keys: int, size: int) -> np.ndarray:
    """Return R of the distances keys, keys - 1, ..., 1 - length: float32[keys + length, size].

    R(p) = [sin(p f), cos(p f)] with the frequencies f = 10000 ** (-2 k / size): first all sines, then all cosines.
    """
    frequencies = 1 / 10000 ** (np.arange(0, size, 2, dtype=np.float32) / np.float32(size))
    angles = np.arange(keys, -length, -1, dtype=np.float32)[:, None] * frequencies
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


def negated(distances: jax.Array) -> jax.Array:
    """Return R(-p) given R(p) [..., embed]: the sines change their sign."""
    sines = distances.shape[-1] // 2
    return jnp.concatenate([-distances[..., :sines], distances[..., sines:]], axis=-1)


def shift_rows(scores: jax.Array, keys: int) -> jax.Array:
    """Return [..., queries, keys] with element (i, j) = scores[..., i, queries - i + j], given [..., queries, distances].

    It reshapes and slices, as in Transformer-XL's code, whose gradients are pads; that of a gather would be a scatter.
    """
    *outer, queries, distances = scores.shape
    flat = scores.reshape(*outer, queries * distances)[..., queries:]
    # Rows that are one shorter begin one element earlier each.
    return flat.reshape(*outer, queries, distances - 1)[..., :keys]


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def slices(scores: jax.Array, starts: jax.Array, size: int) -> jax.Array:
    """Return slices [batch, heads, queries, size] of scores [batch, heads, queries, distances] from int32[batch, queries] on.

    Its gradient is slices too, of the padded gradient, rather than a scatter.
    """

    def cut(scores: jax.Array, start: jax.Array) -> jax.Array:
        return jax.lax.dynamic_slice_in_dim(scores, start, size, axis=-1)

    return jax.vmap(jax.vmap(cut, in_axes=(1, 0), out_axes=1))(scores, starts)


def _slices_forward(scores: jax.Array, starts: jax.Array, size: int) -> tuple[jax.Array, tuple[jax.Array, int]]:
    return slices(scores, starts, size), (starts, scores.shape[-1])


def _slices_backward(size: int, saved: tuple[jax.Array, int], gradient: jax.Array) -> tuple[jax.Array, None]:
    starts, distances = saved
    outside = distances - size
    padded = jnp.pad(gradient, [(0, 0)] * 3 + [(outside, outside)])
    return slices(padded, outside - starts, distances), None


slices.defvjp(_slices_forward, _slices_backward)
