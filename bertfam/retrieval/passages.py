"""Passages on the devices of a run: their vectors and tokens, a part of its `aux`, and the search among them within a step.

The arrays are sharded over the logical axis "passages", which the rules of the mesh divide over all devices by default. Their
rows are padded to a number that depends on the passages alone, so the state of a run has the same shapes on every mesh.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from tqdm import tqdm

from bertfam.errors import UserError
from bertfam.retrieval.index import Index
from bertfam.retrieval.search import Found, nearest

VECTORS, TOKENS = "vectors", "tokens"
Encode = Callable[[Sequence[str]], Sequence[np.ndarray]]

_AXES = ("passages", None)
_REPLICATED = PartitionSpec()
_UNIT = 960  # rows are a multiple: many numbers of devices divide it, those with factors of 3 and 5 too
_CHUNK = 1 << 16  # passages whose scores are in memory at a time, of each device
_TEXTS = 4096  # texts that are tokenised at a time


class Retrieved(NamedTuple):
    """Best passages of queries, the best first.

    Attributes:
      scores: float32[queries, count], inner products with the vectors of the search.
      passages: int32[queries, count], their numbers.
      tokens: int32[queries, count, length], their pieces without control tokens; 0 after their end.
      lengths: int32[queries, count], numbers of these pieces.
    """

    scores: jax.Array
    passages: jax.Array
    tokens: jax.Array
    lengths: jax.Array


@dataclass(frozen=True, eq=False)
class StoredRows:
    """Rows of an array that are read, or computed, when a device asks for them; rows beyond are 0.

    Attributes:
      shape: shape of the array.
      dtype: its dtype.
      count: number of rows that there are.
      read: returns the rows from a first one up to another.
    """

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    count: int
    read: Callable[[int, int], np.ndarray]

    def __getitem__(self, place: tuple[slice, ...]) -> np.ndarray:
        begin, end, _ = place[0].indices(self.shape[0])
        part = np.zeros((end - begin, self.shape[1]), self.dtype)
        if begin < (stop := min(end, self.count)):
            part[: stop - begin] = self.read(begin, stop)
        return part[:, *place[1:]]


def row_count(passages: int) -> int:
    """Return the number of rows of the arrays of so many passages, at most 6 % or 959 rows more."""
    unit = _UNIT
    while 32 * unit <= passages:
        unit *= 2
    return -(-passages // unit) * unit


def zero_passages(passages: int, width: int, length: int, vocabulary_size: int) -> dict[str, Any]:
    """Make arrays of zeros in place of passages, boxed with logical axis names; see `read_passages`.

    Args:
      passages: number of passages.
      width: numbers of a vector.
      length: pieces of a passage.
      vocabulary_size: number of ids of the vocabulary.
    """
    rows = row_count(passages)
    return {
        VECTORS: nn.LogicallyPartitioned(jnp.zeros((rows, width), jnp.float32), _AXES),
        TOKENS: nn.LogicallyPartitioned(jnp.zeros((rows, length), np.min_scalar_type(vocabulary_size)), _AXES),
    }


def read_passages(index: Index, encode: Encode, length: int, vocabulary_size: int) -> dict[str, StoredRows]:
    """Return the arrays of an index, whose rows are read and tokenised by the hosts of the devices that hold them.

    Args:
      index: the index.
      encode: encodes texts as pieces without control tokens, such as `Vocabulary.encode_batch` of the run.
      length: pieces of a passage, beyond which it is cut.
      vocabulary_size: number of ids of the vocabulary.

    Returns:
      "vectors" float32[rows, width], and "tokens" [rows, length] of the smallest unsigned dtype that fits: 1 + the id of each
      piece, and 0 after the last. The number of rows is `row_count`.

    Raises:
      UserError: the index is incomplete or damaged.
    """
    index.check_complete()
    rows, dtype = row_count(index.passages), np.min_scalar_type(vocabulary_size)

    def tokens(begin: int, end: int) -> np.ndarray:
        return _tokens(index.texts(begin, end), end - begin, encode, length, dtype)

    return {
        VECTORS: StoredRows((rows, index.width), np.dtype(np.float32), index.passages, index.vectors),
        TOKENS: StoredRows((rows, length), dtype, index.passages, tokens),
    }


def _tokens(texts: Iterator[str], count: int, encode: Encode, length: int, dtype: np.dtype[Any]) -> np.ndarray:
    """Tokenise passages: 1 + ids [count, length]."""
    tokens, done = np.zeros((count, length), dtype), 0
    with tqdm(total=count, desc="tokenizing passages", unit=" passages", disable=None, leave=False) as progress:
        while block := list(islice(texts, _TEXTS)):
            for ids in encode(block):
                tokens[done, : len(ids)] = 1 + ids[:length].astype(np.int64)
                done += 1
            progress.update(len(block))
    return tokens


def retrieve(
    queries: jax.Array, arrays: Mapping[str, jax.Array], passages: int, count: int, *, approximate: bool = False
) -> Retrieved:
    """Find the passages with the largest inner products, and gather their tokens; within a program on any mesh.

    The result is the same on every mesh, and has no gradient.

    Args:
      queries: float32[queries, width], all those of the global batch.
      arrays: "vectors" and "tokens" of `read_passages`; see `search` and `gather_tokens` for those apart.
      passages: number of passages.
      count: number of passages to find for each query.
      approximate: see `nearest`.

    Raises:
      UserError: there are fewer passages than that.
    """
    found = search(queries, arrays[VECTORS], passages, count, approximate=approximate)
    return Retrieved(*found, *gather_tokens(arrays[TOKENS], found.passages))


def search(queries: jax.Array, vectors: jax.Array, passages: int, count: int, *, approximate: bool = False) -> Found:
    """Find the passages with the largest inner products; see `retrieve`."""
    if count > passages:
        raise UserError(f"{count} passages of each query are to be found, and the index has {passages}: lower the number")
    axes, devices = _mesh_axes()
    rows = vectors.shape[0] // devices
    chunk = next(size for size in range(min(rows, _CHUNK), 0, -1) if rows % size == 0)
    axis = axes if devices > 1 else None

    def find(queries: jax.Array, vectors: jax.Array) -> Found:
        return nearest(queries, vectors, passages, count, chunk=chunk, axis=axis, approximate=approximate)

    return Found(*map(_of_batch, _on_devices(find, axes, devices)(*jax.lax.stop_gradient((queries, vectors)))))


def gather_tokens(tokens: jax.Array, passages: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Gather the tokens of passages from all devices; see `Retrieved`.

    Args:
      tokens: [rows, length] of `read_passages`.
      passages: int32[queries, count].

    Returns:
      int32[queries, count, length] and int32[queries, count].
    """
    found = _gathered(tokens, passages)
    return jnp.maximum(found - 1, 0), jnp.sum(found > 0, axis=-1, dtype=jnp.int32)


def gather_vectors(vectors: jax.Array, passages: jax.Array) -> jax.Array:
    """Gather the vectors of passages from all devices, without gradient.

    Args:
      vectors: float32[rows, width] of `read_passages`.
      passages: int32[queries, count].

    Returns:
      float32[queries, count, width].
    """
    return jax.lax.stop_gradient(_gathered(vectors, passages))


def put_vectors(vectors: jax.Array, block: jax.Array, begin: jax.Array, end: jax.Array) -> jax.Array:
    """Write the vectors of some passages; within a program on any mesh.

    Args:
      vectors: float32[rows, width] of `read_passages`.
      block: float32[count, width], the new vectors of the passages from `begin` on.
      begin: int32[], the first passage to write.
      end: int32[], the passage after the last.

    Returns:
      The vectors float32[rows, width].
    """
    axes, devices = _mesh_axes()

    def put(new: tuple[jax.Array, jax.Array, jax.Array], own: jax.Array) -> jax.Array:
        block, begin, end = new
        first = jax.lax.axis_index(axes) * own.shape[0] if devices > 1 else 0
        numbers = first + jnp.arange(own.shape[0], dtype=jnp.int32)
        is_new = (numbers >= begin) & (numbers < end)
        return jnp.where(is_new[:, None], block[jnp.clip(numbers - begin, 0, len(block) - 1)], own)

    return _on_devices(put, axes, devices, PartitionSpec(axes))((block, begin, end), vectors)


def _mesh_axes() -> tuple[tuple[str, ...], int]:
    """Return the axes of the current mesh over which passages are sharded, and the number of their devices."""
    mesh, (names, _) = jax.sharding.get_abstract_mesh(), nn.logical_to_mesh_axes(_AXES) or _AXES
    if mesh.empty or mesh.size == 1 or not nn.get_logical_axis_rules():
        return (), 1
    axes = (names,) if isinstance(names, str) else tuple(names or ())
    return axes, int(np.prod([mesh.shape[axis] for axis in axes], dtype=int))


def _gathered(array: jax.Array, passages: jax.Array) -> jax.Array:
    """Gather rows of an array [rows, width] from all devices: [queries, count, width]."""
    axes, devices = _mesh_axes()
    dtype = array.dtype if jnp.issubdtype(array.dtype, jnp.floating) else jnp.int32  # small integers are not summed everywhere

    def gather(passages: jax.Array, own: jax.Array) -> jax.Array:
        places = passages - (jax.lax.axis_index(axes) * own.shape[0] if devices > 1 else 0)
        is_here = (places >= 0) & (places < own.shape[0])
        found = jnp.where(is_here[..., None], own[jnp.clip(places, 0, own.shape[0] - 1)], 0).astype(dtype)
        return jax.lax.psum(found, axes) if devices > 1 else found

    return _of_batch(_on_devices(gather, axes, devices)(passages, array))


def _on_devices(
    compute: Callable[..., Any], axes: tuple[str, ...], devices: int, result: PartitionSpec = _REPLICATED
) -> Callable[..., Any]:
    """Return a function of replicated arrays and of one of passages that computes on each device with its own passages."""
    if devices == 1:
        return compute
    return jax.shard_map(compute, in_specs=(_REPLICATED, PartitionSpec(axes)), out_specs=result, check_vma=False)


def _of_batch(value: jax.Array) -> jax.Array:
    """Shard an array [queries, ...] as the rows of a batch are."""
    return nn.with_logical_constraint(value, ("batch", *[None] * (value.ndim - 1)))
