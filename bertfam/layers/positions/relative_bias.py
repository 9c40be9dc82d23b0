"""Relative positions as terms of attention scores (Raffel et al. 2020, section 2.1): one table of distances for a whole stack."""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from bertfam.layers.initializers import Initializer, logical
from bertfam.layers.lookup import lookup_few


def buckets_of(distances: np.ndarray, *, bidirectional: bool, buckets: int = 32, max_distance: int = 128) -> np.ndarray:
    """Assign distances to buckets: one for each short distance, logarithmically wider ones up to `max_distance`.

    With N buckets on a side and E = N / 2, a distance of a tokens is in bucket a where a < E, and else in

        min(N - 1, E + floor(ln(a / E) / ln(max_distance / E) (N - E)))

    computed in float32 and cut off as the published code does: at powers of two the exact value is a whole number, and what
    rounding makes of it decides.

    Args:
      distances: int[...], the place of the key minus that of the query.
      bidirectional: whether half of the buckets are for keys after the query; otherwise these are all in bucket 0.
      buckets: how many.
      max_distance: from which on all distances are in the last bucket of their side.

    Returns:
      int32[...].
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
    """A term of each head for each bucket of distances, added to the scores of every layer of a stack.

    Attributes:
      num_heads: of the attention.
      bidirectional: whether keys after a query have buckets of their own: in encoders.
      buckets, max_distance: see `buckets_of`.
      table_init: initial values of `table` [buckets, heads].
    """

    num_heads: int
    bidirectional: bool
    buckets: int = 32
    max_distance: int = 128
    table_init: Initializer = nn.initializers.normal(1.0)

    @nn.compact
    def __call__(self, queries: int, keys: int, offset: jax.Array | None = None) -> jax.Array:
        """Return the terms of all pairs of places in a row.

        Places are those in the row, or of a cache its slots: within one example these differ as positions do, wherever in the row
        it lies.

        Args:
          queries, keys: how many.
          offset: int32[], the place of the first query among the keys; None: 0.

        Returns:
          float32[1, heads, queries, keys].
        """
        shape = (self.buckets, self.num_heads)
        table = self.param("table", logical(self.table_init, ("relative_bucket", "heads")), shape, jnp.float32)
        # Beyond the largest distance all are alike, so one small list has them all, computed on the host.
        sides = _bucket_list(self.bidirectional, self.buckets, self.max_distance)
        # A pair's term depends on key - query alone, which has queries + keys - 1 values: 1 - queries, ..., keys - 1.
        distances = jnp.arange(1 - queries, keys) - (0 if offset is None else offset)
        of_distances = jnp.asarray(sides)[jnp.clip(distances, -self.max_distance, self.max_distance) + self.max_distance]
        # [distances, heads] -> [heads, distances]
        terms = lookup_few(table, of_distances, jnp.float32).T
        return nn.with_logical_constraint(_diagonals(terms, queries, keys)[None], (None, "heads", None, None))


@functools.cache
def _bucket_list(bidirectional: bool, buckets: int, max_distance: int) -> np.ndarray:
    """Return the buckets of -max_distance, ..., max_distance."""
    distances = np.arange(-max_distance, max_distance + 1)
    return buckets_of(distances, bidirectional=bidirectional, buckets=buckets, max_distance=max_distance)


def _diagonals(terms: jax.Array, queries: int, keys: int) -> jax.Array:
    """[heads, queries + keys - 1] -> [heads, queries, keys], where the term d stands wherever key - query = d - (queries - 1).

    By repeating and cutting, whose gradients are sums: a gather's would be a scatter over all pairs.
    """
    heads, width = terms.shape[0], queries + keys
    # Term of distance 0 first, then those up, one that is not used, and those below 0.
    ring = jnp.roll(jnp.pad(terms, [(0, 0), (0, 1)]), 1 - queries, axis=1)
    # Rows one shorter than the ring: each begins one place earlier on it.
    flat = jnp.broadcast_to(ring[:, None], (heads, queries, width)).reshape(heads, queries * width)
    return flat[:, : queries * (width - 1)].reshape(heads, queries, width - 1)[:, :, :keys]
