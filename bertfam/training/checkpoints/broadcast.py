"""What several processes hold is read by one of them, and comes to the others between the devices, which is faster than disks.

Orbax has the like, for one mesh axis, where all is whole along it; one replica reads for all, and what is added up there as
floats loses the sign of a zero. Here each array is looked at for itself, the processes share the reading, and bits stay.
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
    """An array of which several processes hold the same.

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
        """On a device."""
        return math.prod(self.reader.shard_shape(self.like.shape)) * self.like.dtype.itemsize

    def part(self) -> Any:
        """What this process reads: the shards of that copy that it holds, or nothing, which Orbax writes as an ellipsis."""
        here = bool(self.reader.addressable_devices)
        return jax.ShapeDtypeStruct(self.like.shape, self.like.dtype, sharding=self.reader) if here else ...

    def copies(self, read: Any) -> jax.Array:
        """[copies, *shape], zero but for what was read as `part` says."""
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
    """Whether `restore` is faster than that every process reads what it holds: those of one host have the disk's cache in common.

    Args:
      trees: of `jax.ShapeDtypeStruct`s with shardings.
      hosts: of every process.
    """
    return len(set(hosts)) > 1 and sum(_bytes(one.like) for one in _share(jax.tree.leaves(list(trees))).values()) >= _LEAST


def restore(directory: epath.Path, like: Any) -> Any:
    """A tree that Orbax has saved; all processes call it.

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
    """By index those that not all read, so that the processes read about equally much."""
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
    """The only one that is not zero, bit for bit: they are added up as whole numbers."""
    if copies.dtype == bool:
        return jnp.any(copies, axis=0)
    size = 8 * copies.dtype.itemsize
    bits = jax.lax.bitcast_convert_type(copies, f"uint{size}")
    added = jnp.sum(bits, axis=0, dtype=f"uint{max(size, 32)}")  # not all networks add less than 32 bits
    return jax.lax.bitcast_convert_type(added.astype(bits.dtype), copies.dtype)
