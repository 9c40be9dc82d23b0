"""The device mesh: three axes, whatever the number of devices."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np

from bertfam.errors import UserError

AXES = ("data", "fsdp", "tensor")


@dataclass(frozen=True)
class MeshShape:
    """Devices by axis.

    Attributes:
      data: batches are split, parameters are whole; -1 takes all devices that the others leave.
      fsdp: batches and parameters are split; parameters are gathered where they are used.
      tensor: heads, feed-forward and vocabulary are split.
    """

    data: int = -1
    fsdp: int = 1
    tensor: int = 1

    def __post_init__(self) -> None:
        if self.data != -1 and self.data < 1 or min(self.fsdp, self.tensor) < 1:
            raise ValueError(f"mesh axes must be at least 1 (data may be -1), not {self.data} x {self.fsdp} x {self.tensor}")

    def build(self, devices: Sequence[jax.Device] | None = None) -> jax.sharding.Mesh:
        """The mesh over `devices`, by default all; raises UserError where they do not fill it."""
        devices = jax.devices() if devices is None else devices
        inner = self.fsdp * self.tensor
        data = len(devices) // inner if self.data == -1 else self.data
        if data * inner != len(devices):
            raise UserError(
                f"a mesh of data={self.data}, fsdp={self.fsdp}, tensor={self.tensor} does not fit {len(devices)} "
                f"device{'' if len(devices) == 1 else 's'}; "
                "the product of its axes must be their number"
            )
        return jax.sharding.Mesh(np.asarray(devices).reshape(data, self.fsdp, self.tensor), AXES)
