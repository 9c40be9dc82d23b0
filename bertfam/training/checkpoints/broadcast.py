"""Replicated arrays, restored by one process each and broadcast over the interconnect, which is faster than disks.

Orbax's `SingleReplicaArrayHandler` (orbax-checkpoint 0.12.8) was considered. It requires that all devices of a host are inside or
outside of one primary replica, whose hosts read everything, and it merges the replicas by `jnp.sum`, which turns -0.0 into 0.0.
Here each array has its own reader, the processes share the reading evenly, and the bits are kept.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax.sharding import Mesh, NamedSharding, PartitionSpec

# Total bytes of replicated arrays from which on a broadcast pays; for less, compiling it takes longer (an estimate).
_MIN_TOTAL_BYTES = 2**28
_MIN_ARRAY_BYTES = 2**16  # smaller arrays are read by all processes
_BATCH_BYTES = 2**28  # bytes per device that are broadcast at once


@dataclass(frozen=True)
class _Shared:
    """Array replicated on several processes.

    Attributes:
      like: its shape, dtype and sharding.
      axes: mesh axes over which it is replicated.
      reader: sharding of the copy that is read.
    """

    like: jax.ShapeDtypeStruct
    axes: tuple[str, ...]
    reader: NamedSharding

    @property
    def bytes(self) -> int:
        """Bytes on each device."""
        return math.prod(self.reader.shard_shape(self.like.shape)) * self.like.dtype.itemsize

    def part(self) -> Any:
        """Return what this process reads: the array with the reader's sharding, or Orbax's placeholder `...` for nothing."""
        here = bool(self.reader.addressable_devices)
        return jax.ShapeDtypeStruct(self.like.shape, self.like.dtype, sharding=self.reader) if here else ...

    def copies(self, read: Any) -> jax.Array:
        """Build an array [copies, *shape] that is zero except for the copy that was read."""
        mesh = self.like.sharding.mesh
        sharding = NamedSharding(mesh, PartitionSpec(self.axes, *self.like.sharding.spec))
        shape = (math.prod(mesh.shape[axis] for axis in self.axes), *self.like.shape)
        own = {} if read is ... else {shard.device: shard.data[None] for shard in read.addressable_shards}
        local = sharding.shard_shape(shape)
        parts = [
            own[device] if device in own else jnp.zeros(local, self.like.dtype, device=device)
            for device in sharding.addressable_devices
        ]
        return jax.make_array_from_single_device_arrays(shape, sharding, parts)


def is_worthwhile(trees: Iterable[Any], hosts: Sequence[str]) -> bool:
    """Return whether `restore` is faster than reading on every process; processes of one host share its disk cache.

    Args:
      trees: trees of `jax.ShapeDtypeStruct`s with shardings.
      hosts: host of each process.
    """
    return (
        len(set(hosts)) > 1 and sum(_bytes(one.like) for one in _share(jax.tree.leaves(list(trees))).values()) >= _MIN_TOTAL_BYTES
    )


def restore(directory: epath.Path, like: Any) -> Any:
    """Restore a tree that Orbax has saved. A collective: all processes must call it.

    Args:
      directory: folder of the checkpoint's item.
      like: tree of `jax.ShapeDtypeStruct`s with the shardings to restore to.
    """
    leaves, structure = jax.tree.flatten(like)
    shared = _share(leaves)
    wanted = [shared[index].part() if index in shared else leaf for index, leaf in enumerate(leaves)]
    args = [ocp.RestoreArgs() if leaf is ... else ocp.ArrayRestoreArgs(sharding=leaf.sharding) for leaf in wanted]
    tree, args = (jax.tree.unflatten(structure, found) for found in (wanted, args))
    with ocp.PyTreeCheckpointer() as orbax:
        found = jax.tree.leaves(orbax.restore(directory, args=ocp.args.PyTreeRestore(tree, restore_args=args)))
    for batch in _batches(shared):
        copies = [one.copies(found[index]) for index, one in batch.items()]
        merge = jax.jit(lambda arrays: list(map(_merged, arrays)), out_shardings=[one.like.sharding for one in batch.values()])
        for index, array in zip(batch, jax.block_until_ready(merge(copies)), strict=True):
            found[index] = array
    return jax.tree.unflatten(structure, found)


def _share(leaves: list[jax.ShapeDtypeStruct]) -> dict[int, _Shared]:
    """Assign a reader to each large replicated leaf, by index, so that all processes read about the same number of bytes."""
    shared, load = {}, defaultdict[int, int](int)
    for index, leaf in enumerate(leaves):
        sharding = leaf.sharding
        used = {name for entry in sharding.spec if entry for name in ((entry,) if isinstance(entry, str) else entry)}
        axes = tuple(axis for axis in sharding.mesh.axis_names if axis not in used and sharding.mesh.shape[axis] > 1)
        # [copies, devices of a copy]
        places = [sharding.mesh.axis_names.index(axis) for axis in axes]
        devices = np.moveaxis(sharding.mesh.devices, places, range(len(axes)))
        copies = devices.reshape(math.prod(devices.shape[: len(axes)]), -1)
        processes = np.vectorize(lambda device: device.process_index, otypes=[int])(copies)
        if _bytes(leaf) < _MIN_ARRAY_BYTES or (processes == processes[0]).all():
            continue
        readers = [set(row) for row in processes]
        copy = min(range(len(readers)), key=lambda copy: max(load[process] for process in readers[copy]))
        for process in readers[copy]:
            load[process] += _bytes(leaf) // len(readers[copy])
        place = np.unravel_index(copy, devices.shape[: len(axes)])
        own = np.expand_dims(devices[place], tuple(range(len(axes))))
        mesh = Mesh(np.moveaxis(own, range(len(axes)), places), sharding.mesh.axis_names)
        shared[index] = _Shared(leaf, axes, NamedSharding(mesh, sharding.spec))
    return shared


def _batches(shared: dict[int, _Shared]) -> Iterator[dict[int, _Shared]]:
    batch: dict[int, _Shared] = {}
    for index, one in shared.items():
        if batch and sum(other.bytes for other in (*batch.values(), one)) > _BATCH_BYTES:
            yield batch
            batch = {}
        batch[index] = one
    if batch:
        yield batch


def _bytes(leaf: jax.ShapeDtypeStruct) -> int:
    return leaf.size * leaf.dtype.itemsize


def _merged(copies: jax.Array) -> jax.Array:
    """Return the one copy that was read, bit for bit: the others are zero, and all are added as integers."""
    if copies.dtype == bool:
        return jnp.any(copies, axis=0)
    size = 8 * copies.dtype.itemsize
    bits = jax.lax.bitcast_convert_type(copies, f"uint{size}")
    added = jnp.sum(bits, axis=0, dtype=f"uint{max(size, 32)}")  # some interconnects cannot add fewer than 32 bits
    return jax.lax.bitcast_convert_type(added.astype(bits.dtype), copies.dtype)
