"""Longformer's self-attention: a window for all tokens, and full attention for a few global ones (Beltagy et al. 2020)."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from bertfam.kernels.attention.patterns import FULL, GlobalTokens, Window, first_global
from bertfam.layers.attention.dot_product import Attended, Attention, Row

PROJECTIONS = ("query", "key", "value")


class GlobalAttention(Attention):
    """Self-attention within a window, and from and to global tokens (section 3.1).

    A token attends to those in its window and to all global tokens. A global token attends to all tokens, by projections of its
    own: "query_global", "key_global" and "value_global".

    Attributes:
      window: the places around a token that it attends to.
      most: the largest number of global tokens in a row; further ones are ignored.
      has_global: True if there are projections for global tokens.
    """

    window: Window = FULL
    most: int = 0
    has_global: bool = True

    @nn.compact
    def __call__(
        self,
        inputs: jax.Array,
        row: Row,
        *,
        packed: bool,
        train: bool,
        return_weights: bool = False,
        cached: None = None,
    ) -> Attended:
        """Attend from each token to tokens of its own segment.

        Args:
          inputs: [batch, length, embed].
          row: segments, and in `arrays` the flags "global_tokens" bool[batch, length]; without them no token is global.
          packed: False promises that a row holds one example (ids 0 and 1) with its padding at the end.
          train: True to apply dropout.
          return_weights: True to return the attention weights.
          cached: None; there is no decoding.
        """
        query, key, value = self._heads(inputs, self.num_heads, *PROJECTIONS)
        flags = None if row.arrays is None else row.arrays["global_tokens"]
        pattern = self.window if flags is None else GlobalTokens(self.window, self.most)
        mixed, weights = self._mixed(query, key, value, row, packed, train, return_weights, pattern)
        if self.has_global and (flags is not None or self.is_initializing()):
            flags = jnp.zeros(inputs.shape[:2], bool) if flags is None else flags
            places, found = first_global(flags, max(self.most, 1))
            own, own_weights = self._global(inputs, row.segment_ids, places, train, return_weights)
            rows = jnp.arange(len(places))[:, None]
            # [batch, length, heads, head_dim]
            mixed = mixed.at[rows, places].set(jnp.where(found[:, :, None, None], own, mixed[rows, places]))
            if weights is not None and own_weights is not None:
                # float32[batch, heads, length, keys] -> [batch, length, heads, keys], and back
                by_query = jnp.swapaxes(weights, 1, 2)
                own_weights = jnp.where(found[:, :, None, None], jnp.swapaxes(own_weights, 1, 2), by_query[rows, places])
                weights = jnp.swapaxes(by_query.at[rows, places].set(own_weights), 1, 2)
        return Attended(self._output(mixed, inputs.shape[-1]), weights, key, value, query)

    def _global(
        self, inputs: jax.Array, segment_ids: jax.Array, places: jax.Array, train: bool, return_weights: bool
    ) -> tuple[jax.Array, jax.Array | None]:
        """Return the mixed values [batch, most, heads, head_dim] of the tokens at these places, and their attention weights."""
        chosen = jnp.take_along_axis(inputs, places[:, :, None], axis=1)
        (query,) = self._heads(chosen, self.num_heads, "query_global")
        key, value = self._heads(inputs, self.num_heads, "key_global", "value_global")
        segments = jnp.take_along_axis(segment_ids, places, axis=1)
        row = Row(segments, key_segment_ids=segment_ids)
        return self._mixed(query, key, value, row, True, train, return_weights)
