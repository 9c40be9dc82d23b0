"""The device mesh: five axes, whatever the number of devices and slices."""

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

import jax
import numpy as np
from jax.experimental import mesh_utils

from bertfam.errors import UserError
from bertfam.sharding.rules import AXES, Rules


@dataclass(frozen=True)
class MeshShape:
    """Devices by axis, and what is split over them. One axis may be -1, all devices that the others leave.

    Attributes:
      data: batches are split, parameters are whole.
      fsdp: batches and parameters are split; parameters are gathered where they are used.
      tensor: heads, feed-forward and vocabulary are split.
      sequence: the tokens of a row are split; keys and values are gathered for attention.
      replica: slices: batches are split, and only gradients cross the network between them; -1: as many as the devices are of.
      rules: which logical axis is split over which of these.
      zero1: whether the optimizer's state, and the moving average, are split over data where their parameters are not (ZeRO
        stage 1, Rajbhandari et al. 2020).
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
            raise ValueError(f"the mesh axes {' and '.join(free)} are both -1, which one alone may be: give a size to the other")

    def build(self, devices: Sequence[jax.Device] | None = None) -> jax.sharding.Mesh:
        """The mesh over `devices`, by default all; raises UserError where they do not fill it."""
        devices = list(jax.devices() if devices is None else devices)
        slices = slices_of(devices)
        return jax.sharding.Mesh(_laid_out(self.sizes(len(devices), slices), devices, slices), AXES)

    def sizes(self, devices: int, slices: int = 1) -> tuple[int, ...]:
        """The sizes of the mesh's axes over so many devices of so many slices; raises UserError where they do not fill it."""
        sizes = {axis: getattr(self, axis) for axis in AXES}
        if sizes["replica"] == -1:
            sizes["replica"] = slices
        if sizes["replica"] % slices:
            raise UserError(f"MeshShape.replica={self.replica} does not divide over the {slices} slices: use {slices}, or -1")
        given = math.prod(size for size in sizes.values() if size > 0)
        shape = tuple(max(devices // given, 1) if size == -1 else size for size in sizes.values())
        if math.prod(shape) != devices:
            told = ", ".join(f"{axis}={size}" for axis, size in zip(AXES, shape, strict=True) if size > 1) or "data=1"
            free = next((axis for axis in AXES if sizes[axis] == -1), None)
            rule = f"besides {free}=-1 must divide" if free else "must be"
            raise UserError(
                f"a mesh of {told} does not fit {devices} device{'' if devices == 1 else 's'}; the product of MeshShape's axes "
                f"{rule} {devices}{'' if free else ', or one be -1, all that the others leave'}"
            )
        return shape


def slices_of(devices: Sequence[jax.Device]) -> int:
    """How many slices the devices are of: 1 where they are no TPUs, and where they are only compiled for and of one slice."""
    return len({getattr(device, "slice_index", 0) for device in devices}) if _are_tpus(devices) else 1


def _laid_out(shape: tuple[int, ...], devices: Sequence[jax.Device], slices: int) -> np.ndarray:
    """The devices in the mesh's order: along the wires of a TPU slice, elsewhere as they are numbered."""
    if not _are_tpus(devices):
        return np.asarray(devices).reshape(shape)
    if slices == 1:
        return mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
    within, between = (shape[0] // slices, *shape[1:]), (slices, *[1] * (len(shape) - 1))
    return mesh_utils.create_hybrid_device_mesh(within, between, devices, allow_split_physical_axes=True)


def _are_tpus(devices: Sequence[jax.Device]) -> bool:
    # Of GPUs, hosts are "slices" too; those may be joined by any axis.
    return getattr(devices[0], "platform", None) == "tpu"
