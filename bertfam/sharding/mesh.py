"""Device mesh with five axes, for any number of devices and slices.

The order of devices comes from `jax.experimental.mesh_utils`. `jax.make_mesh` (jax 0.10.2) was considered: it raises ValueError
for several slices, its axes are of type Explicit by default, and with fewer entries than devices it drops the rest silently.
"""

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

import jax
import numpy as np
from jax.experimental import mesh_utils

from bertfam.errors import UserError
from bertfam.plurals import plural
from bertfam.sharding.rules import AXES, Rules


@dataclass(frozen=True)
class MeshShape:
    """Number of devices along each axis of the mesh; one axis may be -1, which means all devices that the others leave.

    Attributes:
      data: shards batches; parameters are replicated.
      fsdp: shards batches and parameters; parameters are gathered where they are used.
      tensor: shards heads, feed-forward and vocabulary.
      sequence: shards the tokens of a row; for attention, keys and values are gathered, or those within a window exchanged.
      replica: number of slices. Batches are sharded, and only gradients are sent between slices; -1: the number of slices of the
        devices.
      rules: the mesh axes that shard each logical axis.
      zero1: True to shard the optimizer state, and the moving average, over data if their parameters are not (ZeRO stage 1,
        Rajbhandari et al. 2020).
    """

    data: int = -1
    fsdp: int = 1
    tensor: int = 1
    _: KW_ONLY
    sequence: int = 1
    replica: int = -1
    rules: Rules = Rules()
    zero1: bool = False

    def __post_init__(self) -> None:
        for axis in AXES:
            if getattr(self, axis) < 1 and getattr(self, axis) != -1:
                raise ValueError(f"the mesh axis {axis} must be at least 1, or -1, not {getattr(self, axis)}")
        if len(free := [axis for axis in AXES[1:] if getattr(self, axis) == -1]) > 1:
            raise ValueError(f"the mesh axes {' and '.join(free)} are both -1; give one of them a size")

    def build(self, devices: Sequence[jax.Device] | None = None) -> jax.sharding.Mesh:
        """Build the mesh over `devices`, by default all; raises UserError if their number does not match."""
        devices = list(jax.devices() if devices is None else devices)
        slices = slices_of(devices)
        return jax.sharding.Mesh(_order_devices(self.sizes(len(devices), slices), devices, slices), AXES)

    def sizes(self, devices: int, slices: int = 1) -> tuple[int, ...]:
        """Return the size of each mesh axis for the given number of devices and slices; raises UserError if they do not match."""
        sizes = {axis: getattr(self, axis) for axis in AXES}
        if sizes["replica"] == -1:
            sizes["replica"] = slices
        if sizes["replica"] % slices:
            raise UserError(f"MeshShape.replica={self.replica} does not divide over the {slices} slices: use {slices}, or -1")
        given = math.prod(size for size in sizes.values() if size > 0)
        shape = tuple(max(devices // given, 1) if size == -1 else size for size in sizes.values())
        if math.prod(shape) != devices:
            described = ", ".join(f"{axis}={size}" for axis, size in zip(AXES, shape, strict=True) if size > 1) or "data=1"
            free = next((axis for axis in AXES if sizes[axis] == -1), None)
            rule = f"besides {free}=-1 must divide" if free else "must be"
            alternative = "" if free else ", or one of them -1 (all devices that the others leave)"
            raise UserError(
                f"a mesh of {described} does not fit {plural(devices, 'device')}; "
                f"the product of MeshShape's axes {rule} {devices}{alternative}"
            )
        return shape


def slices_of(devices: Sequence[jax.Device]) -> int:
    """Return the number of slices of the devices; 1 if they are not TPUs, or have no slice index."""
    return len({getattr(device, "slice_index", 0) for device in devices}) if _are_tpus(devices) else 1


def _order_devices(shape: tuple[int, ...], devices: Sequence[jax.Device], slices: int) -> np.ndarray:
    """Order the devices along the links of a TPU slice; on other platforms keep their order."""
    if not _are_tpus(devices):
        return np.asarray(devices).reshape(shape)
    if slices == 1:
        return mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
    within, between = (shape[0] // slices, *shape[1:]), (slices, *[1] * (len(shape) - 1))
    return mesh_utils.create_hybrid_device_mesh(within, between, devices, allow_split_physical_axes=True)


def _are_tpus(devices: Sequence[jax.Device]) -> bool:
    # GPUs have a slice index for each host too, but hosts may be connected along any axis.
    return getattr(devices[0], "platform", None) == "tpu"
