"""A lower bound of a program's time: no program does its work faster than its chips calculate, read, write and send."""

from collections.abc import Iterable
from dataclasses import dataclass

import jax

from bertfam.partitioning.chips import Chip
from bertfam.planning.hlo import Collective
from bertfam.planning.memory import Memory

# Of the bytes of a collective among n devices, those that one of them must send at the least, as a function of n.
_SENT = {
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "all-gather": lambda n: (n - 1) / n,
    "reduce-scatter": lambda n: (n - 1) / n,
    "all-to-all": lambda n: (n - 1) / n,
    "collective-permute": lambda n: 1.0,
}
_BETWEEN_SLICES = "replica"


@dataclass(frozen=True)
class Bound:
    """Seconds that one run of a program takes at least, by what it needs; each is an estimate from sizes and published speeds.

    Attributes:
      compute: matrix products, at the peak.
      memory: what must be read and written once.
      ici: what goes over the links of a slice, all of them busy in both directions.
      dcn: what goes from slice to slice.
    """

    compute: float
    memory: float
    ici: float
    dcn: float

    @property
    def seconds(self) -> float:
        """Of all, as if they ran beside one another."""
        return max(vars(self).values())

    @property
    def binds(self) -> str:
        """What takes longest."""
        return max(vars(self), key=lambda name: vars(self)[name])


def bound(chip: Chip, *, flops: float, moved: float, sent: tuple[float, float]) -> Bound:
    """The bound of a program.

    Args:
      chip: what the devices are, or are parts of.
      flops: matrix-product FLOPs of a device.
      moved: bytes that a device reads and writes at least; see `moved_bytes`.
      sent: bytes that a device sends at least; see `sent_bytes`.
    """
    within, between = sent
    return Bound(
        compute=flops * chip.devices / chip.flops,
        memory=moved * chip.devices / chip.hbm_bandwidth,
        ici=within * chip.devices / chip.ici_bandwidth if chip.ici_bandwidth else 0.0,
        dcn=between * chip.devices / chip.dcn_bandwidth if chip.dcn_bandwidth else 0.0,
    )


def moved_bytes(memory: Memory, turns: int = 1) -> int:
    """What a device reads and writes at least: parameters at each turn, and all that a step changes in and out.

    A step looks whether the whole gradient is finite before it uses it, so gradients are written and read too.
    """
    changed = memory.parameters + memory.optimizer if memory.gradients else 0
    return turns * memory.parameters + memory.batch + memory.optimizer + changed + 2 * memory.gradients


def sent_bytes(found: Iterable[Collective], mesh: jax.sharding.Mesh) -> tuple[float, float]:
    """Bytes that a device sends at least in one run: to others of its slice, and to other slices.

    What goes over both is first brought together in each slice, so that a device sends its share of it to other slices.

    Args:
      found: the program's collectives; those in loops of unknown length count once.
      mesh: their devices.
    """
    within = between = 0.0
    for each in found:
        factor = _SENT.get(each.kind, lambda n: 1.0)
        slices = mesh.shape[_BETWEEN_SLICES] if _BETWEEN_SLICES in each.axes else 1
        inside = max(each.devices // slices, 1)
        if inside > 1:
            within += factor(inside) * each.total
        if slices > 1:
            between += factor(slices) * each.total / inside
    return within, between
