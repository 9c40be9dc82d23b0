"""Maximum inner product search on devices, exact or approximate."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

_CHUNK = 1 << 16  # passages whose scores are in memory at a time, of each device
_QUERIES_AT_ONCE = 256
_AXIS = "passages"


class Found(NamedTuple):
    """Best passages of queries, the best first; of equal scores the first passages.

    Attributes:
      scores: float32[queries, count], inner products.
      passages: int32[queries, count], their numbers.
    """

    scores: Any
    passages: Any


def nearest(
    queries: jax.Array,
    vectors: jax.Array,
    passages: int,
    count: int,
    *,
    chunk: int,
    axis: str | tuple[str, ...] | None = None,
    approximate: bool = False,
) -> Found:
    """Find the passages with the largest inner products, in chunks of the passages; a pure function of its arguments.

    Args:
      queries: float32[queries, width].
      vectors: float32[rows, width], where `chunk` divides the rows; on one device the rows of its shard.
      passages: number of passages of all devices; rows beyond are padding.
      count: number of passages to find, at most `passages`.
      chunk: rows whose scores are in memory at a time.
      axis: axis or axes of the mesh over which vectors are sharded, within `jax.shard_map`; None: they are on one device.
      approximate: use `jax.lax.approx_max_k` in each chunk, whose expected recall is 0.95 on TPUs; other devices sort exactly.
    """
    device = 0 if axis is None else jax.lax.axis_index(axis)
    rows, here = vectors.shape[0], min(count, chunk)

    def body(best: Found, start: jax.Array) -> tuple[Found, None]:
        block = jax.lax.dynamic_slice_in_dim(vectors, start, chunk)
        places = device * rows + start + jnp.arange(chunk, dtype=jnp.int32)
        scores = jnp.matmul(queries, block.T, precision="highest", preferred_element_type=jnp.float32)
        scores = jnp.where(places < passages, scores, -jnp.inf)
        top, indices = jax.lax.approx_max_k(scores, here) if approximate else jax.lax.top_k(scores, here)
        return _best(count, jnp.concatenate([best.scores, top], 1), jnp.concatenate([best.passages, places[indices]], 1)), None

    shape = (queries.shape[0], count)
    best = Found(jnp.full(shape, -jnp.inf, jnp.float32), jnp.full(shape, -1, jnp.int32))
    best, _ = jax.lax.scan(body, best, jnp.arange(0, rows, chunk, dtype=jnp.int32))
    if axis is None:
        return best
    # [devices * count] candidates a query, in the order of the passages
    return _best(count, *(jax.lax.all_gather(part, axis, axis=1, tiled=True) for part in best))


def _best(count: int, scores: jax.Array, passages: jax.Array) -> Found:
    """Return the best of candidates [queries, n]; `top_k` puts the first of equal ones first."""
    top, order = jax.lax.top_k(scores, count)
    return Found(top, jnp.take_along_axis(passages, order, axis=1))


class DeviceIndex:
    """Vectors on the devices of this process, which hold equal shares of them."""

    def __init__(self, vectors: np.ndarray, *, chunk: int = _CHUNK, devices: Sequence[jax.Device] | None = None) -> None:
        """Put vectors float32[passages, width] on devices; None: all of this process."""
        self._mesh = Mesh(np.array(devices or jax.local_devices()), (_AXIS,))
        self._passages, share = len(vectors), -(-len(vectors) // self._mesh.size)
        self._chunk = min(chunk, share)
        rows = -(-share // self._chunk) * self._chunk * self._mesh.size
        self._vectors = jax.make_array_from_callback(
            (rows, vectors.shape[1]), NamedSharding(self._mesh, PartitionSpec(_AXIS)), functools.partial(_padded, vectors, rows)
        )

    def search(self, queries: np.ndarray, count: int, *, approximate: bool = False) -> Found:
        """Find the passages with the largest inner products; NumPy arrays.

        Args:
          queries: float32[queries, width].
          count: number of passages to find, or all if there are fewer.
          approximate: see `nearest`.
        """
        count = min(count, self._passages)
        find = functools.partial(
            _find, mesh=self._mesh, passages=self._passages, count=count, chunk=self._chunk, approximate=approximate
        )
        size = min(_QUERIES_AT_ONCE, 1 << max(0, len(queries) - 1).bit_length())
        parts = []
        for begin in range(0, len(queries), size):
            part = queries[begin : begin + size].astype(np.float32)
            found = find(np.pad(part, ((0, size - len(part)), (0, 0))), self._vectors)
            parts.append(Found(*(np.asarray(values)[: len(part)] for values in found)))
        if not parts:
            return Found(np.zeros((0, count), np.float32), np.zeros((0, count), np.int32))
        return Found(*map(np.concatenate, zip(*parts, strict=True)))


@functools.partial(jax.jit, static_argnames=("mesh", "passages", "count", "chunk", "approximate"))
def _find(queries: Any, vectors: Any, *, mesh: Mesh, passages: int, count: int, chunk: int, approximate: bool) -> Found:
    search = functools.partial(nearest, passages=passages, count=count, chunk=chunk, axis=_AXIS, approximate=approximate)
    specs, replicated = (PartitionSpec(), PartitionSpec(_AXIS)), PartitionSpec()
    found: Found = jax.shard_map(search, mesh=mesh, in_specs=specs, out_specs=replicated, check_vma=False)(queries, vectors)
    return found


def _padded(vectors: np.ndarray, rows: int, place: tuple[slice, ...]) -> np.ndarray:
    """Return the rows of one device, with zeros beyond the last vector."""
    begin, end, _ = place[0].indices(rows)
    part = vectors[begin:end]
    return np.pad(part, ((0, end - begin - len(part)), (0, 0)))
