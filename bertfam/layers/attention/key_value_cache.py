"""Key-value cache of a decoder as explicit arrays, so that a decoding step is a pure function."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike


class LayerCache(NamedTuple):
    """Key-value cache of one layer: the arrays of a `Cache` without their first axis."""

    keys: jax.Array
    values: jax.Array
    cross_keys: jax.Array | None = None
    cross_values: jax.Array | None = None


class Cache(NamedTuple):
    """Keys and values of the tokens so far.

    The same slots are filled in all rows, so prompts of different lengths are padded on the left.

    Attributes:
      keys, values: [layers, batch, slots, key_heads, head_dim].
      segment_ids: int32[batch, slots]; 0 = padding or an unwritten slot.
      filled: int32[], number of slots that have been written.
      cross_keys, cross_values: keys and values [layers, batch, encoded length, heads, head_dim] of the encoder's output; None
        before the first call, which receives that output, and in models without an encoder.
    """

    keys: jax.Array
    values: jax.Array
    segment_ids: jax.Array
    filled: jax.Array
    cross_keys: jax.Array | None = None
    cross_values: jax.Array | None = None

    @property
    def layers(self) -> LayerCache:
        """Arrays of the layers: [layers, ...] each."""
        return LayerCache(self.keys, self.values, self.cross_keys, self.cross_values)

    def updated_segment_ids(self, segment_ids: jax.Array) -> jax.Array:
        """Return the segment ids int32[batch, slots] after writing those of the next tokens, int32[batch, n]."""
        return jax.lax.dynamic_update_slice_in_dim(self.segment_ids, segment_ids.astype(jnp.int32), self.filled, axis=1)

    def after(self, segment_ids: jax.Array, layers: LayerCache) -> "Cache":
        """Return the cache after a call on tokens with segment ids int32[batch, n], which returned `layers` [layers, ...]."""
        return Cache(
            layers.keys,
            layers.values,
            self.updated_segment_ids(segment_ids),
            self.filled + segment_ids.shape[1],
            layers.cross_keys,
            layers.cross_values,
        )


def empty(layers: int, batch: int, slots: int, key_heads: int, head_dim: int, dtype: DTypeLike) -> Cache:
    """Return a cache without any tokens."""
    shape = (layers, batch, slots, key_heads, head_dim)
    return Cache(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype), jnp.zeros((batch, slots), jnp.int32), jnp.zeros((), jnp.int32))


def put(old: jax.Array, new: jax.Array, filled: jax.Array) -> jax.Array:
    """Write new [batch, n, ...] into old [batch, slots, ...] from the slot `filled` on."""
    return jax.lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), filled, axis=1)
