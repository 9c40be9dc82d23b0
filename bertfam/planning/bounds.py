"""Lower bound on the time of a program, from the speed of its chips: compute, memory, and links within and between slices."""

from collections.abc import Iterable
from dataclasses import dataclass

import jax

from bertfam.planning.hlo.collectives import Collective
from bertfam.planning.hlo.memory import Memory
from bertfam.sharding.chips import Chip
from bertfam.sharding.mesh import slices_of

# The only axis along which devices may belong to different slices.
_BETWEEN_SLICES = "replica"


@dataclass(frozen=True)
class Bound:
    """Least seconds of one run of a program by resource, estimated from sizes and published speeds.

    Attributes:
      compute: matrix products at peak speed.
      memory: one pass over the bytes that must be read and written.
      ici: communication within a slice, with all links busy in both directions.
      dcn: communication between slices.
    """

    compute: float
    memory: float
    ici: float
    dcn: float

    @property
    def seconds(self) -> float:
        """Bound of the program if all resources are used at the same time."""
        return max(vars(self).values())

    @property
    def binds(self) -> str:
        """Name of the resource that takes longest."""
        return max(vars(self), key=lambda name: vars(self)[name])


def bound(chip: Chip, *, flops: float, moved: float, sent: tuple[float, float]) -> Bound:
    """Return the bound of a program.

    Args:
      chip: chip that the devices are, or are part of.
      flops: matrix-product FLOPs of a device.
      moved: least bytes that a device reads and writes, from `moved_bytes`.
      sent: least bytes that a device sends, from `sent_bytes`.
    """
    within, between = sent
    return Bound(
        compute=flops * chip.devices / chip.flops,
        memory=moved * chip.devices / chip.hbm_bandwidth,
        ici=within * chip.devices / chip.ici_bandwidth if chip.ici_bandwidth else 0.0,
        dcn=between * chip.devices / chip.dcn_bandwidth if chip.dcn_bandwidth else 0.0,
    )


def moved_bytes(memory: Memory, reread: int = 0) -> int:
    """Return the least bytes that a device reads and writes: parameters, batch, and everything that a step updates.

    A step checks that the whole gradient is finite before it uses it, so gradients are written and read too.

    Args:
      memory: memory of the program.
      reread: bytes of parameters that are read more than once; see `Job`.
    """
    changed = memory.parameters + 2 * (memory.optimizer + memory.gradients) if memory.gradients else 0
    return memory.parameters + reread + memory.batch + changed


def sent_bytes(collectives: Iterable[Collective], mesh: jax.sharding.Mesh) -> tuple[float, float]:
    """Return the least bytes that a device sends in one run, within its slice and to other slices.

    Args:
      collectives: collectives of the program; those in loops of unknown length count once.
      mesh: mesh of the program.
    """
    within = between = 0.0
    slice_count = slices_of(list(mesh.devices.flat))
    for collective in collectives:
        slices = min(slice_count, collective.devices) if _BETWEEN_SLICES in collective.axes else 1
        inner, outer = _sent_fractions(collective.kind, collective.devices // slices, slices)
        within += inner * collective.total
        between += outer * collective.total
    return within, between


def _sent_fractions(kind: str, inside: int, slices: int) -> tuple[float, float]:
    """Return the least fractions of a collective's bytes that a device sends, within its slice and to other slices.

    Args:
      kind: kind of the collective.
      inside: number of participating devices in each slice.
      slices: number of slices.
    """
    # A different part to each device.
    if kind in ("all-to-all", "ragged-all-to-all"):
        return (inside - 1) / (inside * slices), (slices - 1) / slices
    # Everything to one device.
    if kind == "collective-permute":
        return (0.0, 1.0) if slices > 1 else (1.0, 0.0)
    # Each slice combines its parts first, so that a device sends only its share to other slices.
    ways = 2 if kind == "all-reduce" else 1
    return ways * (inside - 1) / inside, ways * (slices - 1) / slices / inside
