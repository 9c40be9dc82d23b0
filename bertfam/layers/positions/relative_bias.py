"""Relative position bias of attention scores (Raffel et al. 2020, section 2.1), with one table for a whole stack."""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from bertfam.layers.initializers import Initializer, logical, param
from bertfam.layers.lookup import lookup_few


def assign_buckets(distances: np.ndarray, *, bidirectional: bool, buckets: int = 32, max_distance: int = 128) -> np.ndarray:
    """Assign distances to buckets: one for each short distance, logarithmically wider ones up to `max_distance`.

    With N buckets on a side and E = N / 2, a distance of a tokens is in bucket a where a < E, and else in

        min(N - 1, E + floor(ln(a / E) / ln(max_distance / E) (N - E)))

    computed in float32 and truncated as in the published code: at powers of two the exact value is a whole number, so rounding
    decides the bucket.

    Args:
      distances: int[...], index of the key minus index of the query.
      bidirectional: True if half of the buckets are for keys after the query; otherwise those are all in bucket 0.
      buckets: number of buckets.
      max_distance: distance from which on all distances are in the last bucket of their side.

    Returns:
      The buckets int32[...].
    """
    first = np.zeros_like(distances)
    if bidirectional:
        buckets //= 2
        first = np.where(distances > 0, buckets, 0)
        far = np.abs(distances)
    else:
        far = np.maximum(-distances, 0)
    exact = buckets // 2
    share = np.log(np.maximum(far, 1).astype(np.float32) / np.float32(exact)) / np.float32(math.log(max_distance / exact))
    wide = np.minimum(exact + (share * np.float32(buckets - exact)).astype(np.int32), buckets - 1)
    return (first + np.where(far < exact, far, wide)).astype(np.int32)


class RelativeBias(nn.Module):
    """Relative position bias: one learned term per head and bucket of distances, added to the scores of every layer.

    Attributes:
      num_heads: heads of the attention.
      bidirectional: True if keys after a query have separate buckets, as in encoders.
      buckets, max_distance: arguments of `assign_buckets`.
      table_init: initializer of `table` [buckets, heads].
    """

    num_heads: int
    bidirectional: bool
    buckets: int = 32
    max_distance: int = 128
    table_init: Initializer = nn.initializers.normal(1.0)

    @nn.compact
    def __call__(self, queries: int, keys: int, offset: jax.Array | None = None) -> jax.Array:
        """Return the bias of all pairs of queries and keys in a row.

        Distances are those of indices in the row, or of slots in a cache. Within one example they equal the differences of
        positions, wherever in the row the example is.

        Args:
          queries: number of queries.
          keys: number of keys.
          offset: int32[], the index of the first query among the keys; None: 0.

        Returns:
          The bias float32[1, heads, queries, keys].
        """
        shape = (self.buckets, self.num_heads)
        table = param(self, "table", logical(self.table_init, ("relative_bucket", "heads")), shape)
        # Distances beyond the largest share a bucket, so a small list, computed on the host, covers them all.
        bucket_list = _bucket_list(self.bidirectional, self.buckets, self.max_distance)
        # A pair's term depends on key - query alone, which has queries + keys - 1 values: 1 - queries, ..., keys - 1.
        distances = jnp.arange(1 - queries, keys) - (0 if offset is None else offset)
        assigned = jnp.asarray(bucket_list)[jnp.clip(distances, -self.max_distance, self.max_distance) + self.max_distance]
        # [distances, heads] -> [heads, distances]
        terms = lookup_few(table, assigned, jnp.float32).T
        return nn.with_logical_constraint(_diagonals(terms, queries, keys)[None], (None, "heads", None, None))


@functools.cache
def _bucket_list(bidirectional: bool, buckets: int, max_distance: int) -> np.ndarray:
    """Return the buckets of -max_distance, ..., max_distance."""
    distances = np.arange(-max_distance, max_distance + 1)
    return assign_buckets(distances, bidirectional=bidirectional, buckets=buckets, max_distance=max_distance)


def _diagonals(terms: jax.Array, queries: int, keys: int) -> jax.Array:
    """Spread terms [heads, queries + keys - 1] to [heads, queries, keys], with term d wherever key - query = d - (queries - 1).

    It repeats and slices, whose gradients are sums; the gradient of a gather would be a scatter over all pairs.
    """
    heads, width = terms.shape[0], queries + keys
    # The term of distance 0 first, then those of positive distances, an unused one, and those of negative distances.
    ring = jnp.roll(jnp.pad(terms, [(0, 0), (0, 1)]), 1 - queries, axis=1)
    # Rows are one shorter than the ring, so each begins one element earlier on it.
    flat = jnp.broadcast_to(ring[:, None], (heads, queries, width)).reshape(heads, queries * width)
    return flat[:, : queries * (width - 1)].reshape(heads, queries, width - 1)[:, :, :keys]
