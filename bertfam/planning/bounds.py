"""A lower bound of a program's time: no program does its work faster than its chips calculate, read, write and send."""

from collections.abc import Iterable
from dataclasses import dataclass

import jax

from bertfam.planning.hlo.collectives import Collective
from bertfam.planning.hlo.memory import Memory
from bertfam.sharding.chips import Chip
from bertfam.sharding.mesh import slices_of

# The only axis along which devices may be of several slices.
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


def moved_bytes(memory: Memory, again: int = 0) -> int:
    """What a device reads and writes at least: parameters, and all that a step changes in and out.

    A step looks whether the whole gradient is finite before it uses it, so gradients are written and read too.

    Args:
      memory: of the program.
      again: bytes of parameters that are read more than once; see `Job`.
    """
    changed = memory.parameters + 2 * (memory.optimizer + memory.gradients) if memory.gradients else 0
    return memory.parameters + again + memory.batch + changed


def sent_bytes(found: Iterable[Collective], mesh: jax.sharding.Mesh) -> tuple[float, float]:
    """Bytes that a device sends at least in one run: to others of its slice, and to other slices.

    Args:
      found: the program's collectives; those in loops of unknown length count once.
      mesh: their devices.
    """
    within = between = 0.0
    several = slices_of(list(mesh.devices.flat))
    for each in found:
        slices = min(several, each.devices) if _BETWEEN_SLICES in each.axes else 1
        inner, outer = _sent(each.kind, each.devices // slices, slices)
        within += inner * each.total
        between += outer * each.total
    return within, between


def _sent(kind: str, inside: int, slices: int) -> tuple[float, float]:
    """Of a collective's bytes what each device must send at the least, within its slice and to others.

    Args:
      kind: of the collective.
      inside: how many devices of each slice talk.
      slices: of how many slices they are.
    """
    # To each place its own part, ...
    if kind in ("all-to-all", "ragged-all-to-all"):
        return (inside - 1) / (inside * slices), (slices - 1) / slices
    # ... all to one place, ...
    if kind == "collective-permute":
        return (0.0, 1.0) if slices > 1 else (1.0, 0.0)
    # ... or what is brought together in each slice, so that a device sends its share of it to others.
    ways = 2 if kind == "all-reduce" else 1
    return ways * (inside - 1) / inside, ways * (slices - 1) / slices / inside
