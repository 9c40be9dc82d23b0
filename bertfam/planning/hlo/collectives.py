"""What a compiled program sends between devices: its collectives, by kind and mesh axis."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import jax
import numpy as np

from bertfam.planning.hlo.replica_groups import replica_groups
from bertfam.planning.hlo.text import Computation, Instruction, Program, parse, parts, size, trip_count

_COLLECTIVE = re.compile(
    r"(all-reduce|all-gather|reduce-scatter|all-to-all|ragged-all-to-all|collective-permute|collective-broadcast)(-start)?"
)
_TRANSFER = re.compile(r'_xla_megascale_transfer_type="(\w+)"')
_PERMUTES = "ONE_TO_ONE"
# Of a TPU program's asynchronous collective, which is written again in every fusion that it runs beside and where it ends; where
# it begins, this is -1.
_GOES_ON = re.compile(r'"flag_start":"\d')
# Computations that an instruction runs.
_CALLED = re.compile(r"\b(?:calls|to_apply|true_computation|false_computation)=%?([\w.-]+)|branch_computations=\{([^}]*)\}")


@dataclass(frozen=True)
class Collective:
    """One collective of a program.

    Attributes:
      kind: "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all", "collective-permute" or
        "collective-broadcast".
      axes: the mesh axes over which devices talk, in the mesh's order.
      devices: how many talk to one another; of groups of several sizes, those of the largest.
      bytes: of one device at one execution: of what an all-gather or a ragged-all-to-all gives, and of what the others read. An
        algorithm's factor, as (n - 1) / n of a ring, is not in it.
      times: executions of one run of the program; None where they are in a loop whose length the program decides while it runs.
      shape: of the arrays counted, as "bf16[768,3072]".
      op_name: where in the Python program it comes from.
    """

    kind: str
    axes: tuple[str, ...]
    devices: int
    bytes: int
    times: int | None
    shape: str
    op_name: str

    @property
    def total(self) -> int:
        """Bytes of one run of the program; of one turn of a loop of unknown length."""
        return self.bytes * (1 if self.times is None else self.times)


def collectives(text: str, mesh: jax.sharding.Mesh) -> list[Collective]:
    """All collectives of a program compiled for a mesh.

    Of a conditional every branch is counted.

    Args:
      text: `compiled.as_text()`: optimised HLO of any platform.
      mesh: whose devices, in the order of `mesh.devices.flat`, are the program's partitions.
    """
    program = parse(text)
    return list(_run(program, program.computations[program.entry], 1, mesh))


def by_axes(found: Iterable[Collective]) -> dict[str, dict[tuple[str, ...], int]]:
    """Bytes of one run by kind and mesh axes."""
    result: dict[str, dict[tuple[str, ...], int]] = {}
    for each in found:
        of_kind = result.setdefault(each.kind, {})
        of_kind[each.axes] = of_kind.get(each.axes, 0) + each.total
    return result


def _run(program: Program, computation: Computation, times: int | None, mesh: jax.sharding.Mesh) -> Iterator[Collective]:
    """The collectives of a computation that runs so often, and of what it calls."""
    for instruction in computation:
        if instruction.opcode == "while":
            turns = trip_count(program, computation, instruction)
            for part, more in (("body", 0), ("condition", 1)):  # which says at last that there is no further turn
                inner = None if times is None or turns is None else times * (turns + more)
                yield from _run(program, program.computations[instruction.attribute(part) or ""], inner, mesh)
        elif instruction.opcode == "fusion":
            yield from _fused(program, instruction, times, mesh)
        elif instruction.opcode in ("call", "conditional", "async-start"):
            for name in _called(instruction):
                yield from _run(program, program.computations[name], times, mesh)
        else:
            yield from _collective(instruction, times, mesh)


def _fused(program: Program, fusion: Instruction, times: int | None, mesh: jax.sharding.Mesh) -> Iterator[Collective]:
    """The collectives that a fusion does or begins."""
    for name in _called(fusion):
        for instruction in program.computations[name]:
            if instruction.opcode == "fusion":
                yield from _fused(program, instruction, times, mesh)
            if _GOES_ON.search(instruction.attributes):
                continue
            for each in _collective(instruction, times, mesh):
                # The TPU compiler's reduce-scatter: an all-reduce of which a device takes its slice.
                scatters = each.kind == "all-reduce" and name.startswith("all-reduce-scatter")
                yield replace(each, kind="reduce-scatter" if scatters else each.kind, op_name=each.op_name or fusion.op_name)


def _called(instruction: Instruction) -> list[str]:
    found = _CALLED.findall(instruction.attributes)
    return [name for one, several in found for name in ([one] if one else re.findall(r"[\w.-]+", several))]


def _collective(instruction: Instruction, times: int | None, mesh: jax.sharding.Mesh) -> Iterator[Collective]:
    """The instruction's collective; nothing where it is none, or where every device talks to itself alone."""
    yield from _between_slices(instruction, times, mesh)
    found = _COLLECTIVE.fullmatch(instruction.opcode)
    if found is None:
        return
    kind, starts = found.groups()
    groups = replica_groups(instruction.attributes, mesh.size)
    coordinates = np.stack(np.unravel_index(groups, mesh.devices.shape))
    moves = (coordinates != coordinates[:, :, :1]).any(axis=(1, 2))
    axes = tuple(name for name, moved in zip(mesh.axis_names, moves, strict=True) if moved)
    if not axes:
        return
    shape = instruction.shape
    if starts and kind != "all-reduce":
        shape = parts(shape)[1]  # (operands, results, ...)
    scale = groups.shape[1] if kind == "reduce-scatter" else 1
    yield Collective(kind, axes, groups.shape[1], scale * size(shape), times, _told(shape), instruction.op_name)


def _between_slices(instruction: Instruction, times: int | None, mesh: jax.sharding.Mesh) -> Iterator[Collective]:
    """What a device has to do with other slices: the TPU compiler has a send to the network's runtime and a receive from it."""
    found = _TRANSFER.search(instruction.attributes)
    if found is None:
        return
    kind = "collective-permute" if found[1] == _PERMUTES else found[1].lower().replace("_", "-")
    if instruction.opcode != ("recv" if kind == "all-gather" else "send"):
        return
    slices = np.vectorize(lambda device: device.slice_index)(mesh.devices)
    others = [np.diff(slices, axis=axis).any() for axis in range(slices.ndim)]
    axes = tuple(name for name, other in zip(mesh.axis_names, others, strict=True) if other)
    shape = parts(instruction.shape)[0]
    yield Collective(kind, axes, len(np.unique(slices)), size(shape), times, _told(shape), instruction.op_name)


def _told(shape: str) -> str:
    """A shape without its layouts."""
    return re.sub(r"\{[^}]*\}", "", shape)
