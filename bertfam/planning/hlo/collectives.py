"""Communication of a compiled program: its collectives, by kind and mesh axis, and what is scheduled beside them."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import jax
import numpy as np

from bertfam.planning.hlo.flops import product_flops
from bertfam.planning.hlo.replica_groups import replica_groups
from bertfam.planning.hlo.text import Computation, Instruction, Program, called, parse, parts, size, trip_count

_COLLECTIVE = re.compile(
    r"(all-reduce|all-gather|reduce-scatter|all-to-all|ragged-all-to-all|collective-permute|collective-broadcast)(-start)?"
)
_TRANSFER = re.compile(r'_xla_megascale_transfer_type="(\w+)"')
_PERMUTES = "ONE_TO_ONE"
# A TPU program repeats an asynchronous collective in every fusion that runs beside it, and in the one where it ends. In the first
# one this field is -1.
_CONTINUED = re.compile(r'"flag_start":"\d')
_FUSED_START = '"async_collective_fusion_config"'


@dataclass(frozen=True)
class Collective:
    """One collective of a program.

    Attributes:
      kind: "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all", "collective-permute" or
        "collective-broadcast".
      axes: mesh axes over which devices communicate, in the mesh's order.
      devices: number of devices in a group; the largest if the groups have several sizes.
      bytes: bytes per device and execution: of the results for an all-gather or ragged-all-to-all, of the operands for the other
        kinds. Factors of an algorithm, such as (n - 1) / n of a ring, are not included.
      times: executions in one run of the program; None inside a loop whose length is decided at run time.
      shape: shape of the counted arrays, such as "bf16[768,3072]".
      op_name: position in the Python program.
      beside: FLOPs of the matrix products that are scheduled between its start and its end; None if it is synchronous.
    """

    kind: str
    axes: tuple[str, ...]
    devices: int
    bytes: int
    times: int | None
    shape: str
    op_name: str
    beside: int | None = None

    @property
    def total(self) -> int:
        """Bytes in one run of the program, or in one iteration of a loop of unknown length."""
        return self.bytes * (1 if self.times is None else self.times)


def collectives(text: str, mesh: jax.sharding.Mesh) -> list[Collective]:
    """Return all collectives of a program compiled for a mesh.

    Every branch of a conditional is counted.

    Args:
      text: `compiled.as_text()`: optimized HLO of any platform.
      mesh: the mesh, whose devices in the order of `mesh.devices.flat` are the program's partitions.
    """
    program = parse(text)
    return list(_run(program, program.computations[program.entry], 1, mesh))


def by_axes(collectives: Iterable[Collective]) -> dict[str, dict[tuple[str, ...], int]]:
    """Return the bytes of one run by kind and mesh axes."""
    result: dict[str, dict[tuple[str, ...], int]] = {}
    for collective in collectives:
        sizes = result.setdefault(collective.kind, {})
        sizes[collective.axes] = sizes.get(collective.axes, 0) + collective.total
    return result


def _run(program: Program, computation: Computation, times: int | None, mesh: jax.sharding.Mesh) -> Iterator[Collective]:
    """Yield the collectives of a computation that runs the given number of times, and of the computations that it calls."""
    channels = [_asynchronous_channels(program, instruction) for instruction in computation]
    for place, instruction in enumerate(computation):
        if instruction.opcode == "while":
            trips = trip_count(program, computation, instruction)
            for part, extra in (("body", 0), ("condition", 1)):  # the condition runs once more, to end the loop
                inner = None if times is None or trips is None else times * (trips + extra)
                yield from _run(program, program.computations[instruction.attribute(part) or ""], inner, mesh)
            continue
        if instruction.opcode == "fusion":
            found = _fused(program, instruction, times, mesh)
        elif instruction.opcode in ("call", "conditional", "async-start"):
            found = (one for name in called(instruction) for one in _run(program, program.computations[name], times, mesh))
        else:
            found = _collective(instruction, times, mesh)
        for one in found:
            yield one if one.beside is not None else replace(one, beside=_beside(program, computation, channels, place))


def _beside(program: Program, computation: Computation, channels: Sequence[set[str]], place: int) -> int | None:
    """Return the FLOPs scheduled from the start of a collective, at a place, to its end; None if it is one instruction.

    `channels` holds the `_asynchronous_channels` of each instruction.
    """
    order = [*computation]
    instruction = order[place]
    if instruction.opcode == "fusion":
        ends = [end for end in range(place + 1, len(order)) if channels[place] & channels[end]]
        if not ends:
            return None
        between = order[place : ends[-1] + 1]  # the fusions have products of their own
    else:
        done = f"{instruction.opcode.removesuffix('-start')}-done"
        end = next((end for end, one in enumerate(order) if one.opcode == done and instruction.name in one.operands), None)
        if end is None:
            return None
        between = order[place + 1 : end]
    return sum(product_flops(program, computation, one) for one in between)


def _asynchronous_channels(program: Program, instruction: Instruction) -> set[str]:
    """Return the channels of the collectives that a fusion of the TPU compiler starts, continues or ends."""
    if instruction.opcode != "fusion":
        return set()
    fused = [one for name in called(instruction) for one in program.computations[name]]
    own = {one.attribute("channel_id") or "" for one in fused if _FUSED_START in one.attributes} - {""}
    return own.union(*(_asynchronous_channels(program, one) for one in fused))


def _fused(program: Program, fusion: Instruction, times: int | None, mesh: jax.sharding.Mesh) -> Iterator[Collective]:
    """Yield the collectives that a fusion runs or starts."""
    for name in called(fusion):
        for instruction in program.computations[name]:
            if instruction.opcode == "fusion":
                yield from _fused(program, instruction, times, mesh)
            if _CONTINUED.search(instruction.attributes):
                continue
            for collective in _collective(instruction, times, mesh):
                # The TPU compiler's reduce-scatter: an all-reduce from which each device takes its slice.
                scatters = collective.kind == "all-reduce" and name.startswith("all-reduce-scatter")
                kind = "reduce-scatter" if scatters else collective.kind
                yield replace(collective, kind=kind, op_name=collective.op_name or fusion.op_name)


def _collective(instruction: Instruction, times: int | None, mesh: jax.sharding.Mesh) -> Iterator[Collective]:
    """Yield the collective of an instruction; nothing if it is another operation, or no device sends to another one."""
    yield from _between_slices(instruction, times, mesh)
    match = _COLLECTIVE.fullmatch(instruction.opcode)
    if match is None:
        return
    kind, starts = match.groups()
    groups = replica_groups(instruction.attributes, mesh.size)
    coordinates = np.stack(np.unravel_index(groups, mesh.devices.shape))
    differs = (coordinates != coordinates[:, :, :1]).any(axis=(1, 2))
    axes = tuple(name for name, is_used in zip(mesh.axis_names, differs, strict=True) if is_used)
    if not axes:
        return
    shape = instruction.shape
    if starts and kind != "all-reduce":
        shape = parts(shape)[1]  # (operands, results, ...)
    scale = groups.shape[1] if kind == "reduce-scatter" else 1
    yield Collective(kind, axes, groups.shape[1], scale * size(shape), times, _without_layouts(shape), instruction.op_name)


def _between_slices(instruction: Instruction, times: int | None, mesh: jax.sharding.Mesh) -> Iterator[Collective]:
    """Yield the communication with other slices, which the TPU compiler expresses as send to and recv from a network runtime."""
    match = _TRANSFER.search(instruction.attributes)
    if match is None:
        return
    kind = "collective-permute" if match[1] == _PERMUTES else match[1].lower().replace("_", "-")
    if instruction.opcode != ("recv" if kind == "all-gather" else "send"):
        return
    slices = np.vectorize(lambda device: device.slice_index)(mesh.devices)
    crossing = [np.diff(slices, axis=axis).any() for axis in range(slices.ndim)]
    axes = tuple(name for name, crosses in zip(mesh.axis_names, crossing, strict=True) if crosses)
    shape = parts(instruction.shape)[0]
    yield Collective(kind, axes, len(np.unique(slices)), size(shape), times, _without_layouts(shape), instruction.op_name)


def _without_layouts(shape: str) -> str:
    """Remove the layouts from a shape."""
    return re.sub(r"\{[^}]*\}", "", shape)
