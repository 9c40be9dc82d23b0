"""Replicated arrays, read by one process each and broadcast over the interconnect, which is faster than disks.

Orbax's `SingleReplicaArrayHandler` (orbax-checkpoint 0.12.8) was considered. It needs every host entirely inside or outside one
primary replica, which reads for all, and it adds floats, which loses the sign of a zero. Here the choice is made for each array,
the processes share the reading, and bits are kept.
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

_LEAST = 2**28  # bytes that several hold; for less the program that spreads them takes longer to compile (an estimate)
_SMALL = 2**16  # bytes of an array that is read by all
_AT_ONCE = 2**28  # bytes on a device that travel at once


@dataclass(frozen=True)
class _Shared:
    """Array replicated on several processes.

    Attributes:
      like: as it is wanted.
      axes: of the mesh, along which its copies lie.
      reader: the sharding of the one copy that is read.
    """

    like: jax.ShapeDtypeStruct
    axes: tuple[str, ...]
    reader: NamedSharding

    @property
    def bytes(self) -> int:
        """Size on a device."""
        return math.prod(self.reader.shard_shape(self.like.shape)) * self.like.dtype.itemsize

    def part(self) -> Any:
        """Return the shards of that copy that this process holds, to read; an ellipsis, as Orbax writes it, for none."""
        here = bool(self.reader.addressable_devices)
        return jax.ShapeDtypeStruct(self.like.shape, self.like.dtype, sharding=self.reader) if here else ...

    def copies(self, read: Any) -> jax.Array:
        """Return [copies, *shape], zero except for the copy that was read."""
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
    """Return whether `restore` beats reading on every process; processes of one host share the disk cache.

    Args:
      trees: of `jax.ShapeDtypeStruct`s with shardings.
      hosts: of every process.
    """
    return len(set(hosts)) > 1 and sum(_bytes(one.like) for one in _share(jax.tree.leaves(list(trees))).values()) >= _LEAST


def restore(directory: epath.Path, like: Any) -> Any:
    """Restore a tree saved by Orbax; all processes call it.

    Args:
      directory: of the item.
      like: `jax.ShapeDtypeStruct`s with the shardings wanted.
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
    """Assign each replicated leaf, by index, to a reader, so that the processes read about equally much."""
    shared, load = {}, defaultdict[int, int](int)
    for index, leaf in enumerate(leaves):
        sharding = leaf.sharding
        used = {name for entry in sharding.spec if entry for name in ((entry,) if isinstance(entry, str) else entry)}
        axes = tuple(axis for axis in sharding.mesh.axis_names if axis not in used and sharding.mesh.shape[axis] > 1)
        # [copies, devices of one]
        places = [sharding.mesh.axis_names.index(axis) for axis in axes]
        devices = np.moveaxis(sharding.mesh.devices, places, range(len(axes)))
        copies = devices.reshape(math.prod(devices.shape[: len(axes)]), -1)
        processes = np.vectorize(lambda device: device.process_index, otypes=[int])(copies)
        if _bytes(leaf) < _SMALL or (processes == processes[0]).all():
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
        if batch and sum(other.bytes for other in (*batch.values(), one)) > _AT_ONCE:
            yield batch
            batch = {}
        batch[index] = one
    if batch:
        yield batch


def _bytes(leaf: jax.ShapeDtypeStruct) -> int:
    return leaf.size * leaf.dtype.itemsize


def _merged(copies: jax.Array) -> jax.Array:
    """Return the only copy that is not zero, bit for bit, by adding the copies as integers."""
    if copies.dtype == bool:
        return jnp.any(copies, axis=0)
    size = 8 * copies.dtype.itemsize
    bits = jax.lax.bitcast_convert_type(copies, f"uint{size}")
    added = jnp.sum(bits, axis=0, dtype=f"uint{max(size, 32)}")  # not all networks add less than 32 bits
    return jax.lax.bitcast_convert_type(added.astype(bits.dtype), copies.dtype)
