"""A program on a slice as numbers for JSON, and many of them as tables for people."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from bertfam.planning.bounds import bound, moved_bytes, sent_bytes
from bertfam.planning.hlo.collectives import by_axes, collectives
from bertfam.planning.programs import Program
from bertfam.planning.slices import Slice
from bertfam.sharding.chips import chip_of, memory_bytes
from bertfam.training.summary import describe_attention, si

_GIB = 2**30
Row = Mapping[str, Any]


def row(program: Program, slice: Slice) -> dict[str, Any]:
    """All that is known of a program on a slice; bytes and bounds are of one device, FLOPs of all of them together."""
    job, mesh = program.job, program.job.trainer.mesh
    device = mesh.devices.flat[0]
    chip, limit, needs = chip_of(device), memory_bytes(device), program.memory
    found = collectives(program.text, mesh) if program.compiled else []
    least = None
    if chip is not None and program.compiled:
        flops = job.flops / mesh.size
        least = bound(chip, flops=flops, moved=moved_bytes(needs, job.again), sent=sent_bytes(found, mesh))
    attention = None
    if job.kind == "train":
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):  # what it computes for a trace is computed here
            attention = describe_attention(job.trainer.run.objective, job.trainer.run.shape(job.stage))
    return {
        "slice": slice.name,
        "topology": slice.topology,
        "device": device.device_kind,
        "chips": mesh.size // (chip.devices if chip else 1),
        "devices": mesh.size,
        "mesh": dict(mesh.shape),
        "program": job.name,
        "kind": job.kind,
        "rows": job.rows,
        "length": job.length,
        "rows_per_device": job.rows / _parts(job.trainer.run.mesh.rules.axes("batch"), mesh),
        "microbatches": job.trainer.run.microbatches if job.kind == "train" else 1,
        "attention": attention,
        "fits": program.fits(limit),
        "memory": dataclasses.asdict(needs) | {"total": needs.total},
        "memory_limit": limit,
        "collectives": [
            {"kind": kind, "axes": list(axes), "bytes": size}
            for kind, sizes in by_axes(found).items()
            for axes, size in sizes.items()
        ],
        # Bytes of those in loops that run until the data says so, which are counted once above.
        "collectives_counted_once": sum(each.total for each in found if each.times is None),
        "flops": job.flops,
        "bound": None if least is None else dataclasses.asdict(least) | {"seconds": least.seconds, "binds": least.binds},
        "largest": [dataclasses.asdict(each) for each in program.largest],
        "compile_seconds": round(program.seconds, 1),
    }


def tables(rows: Sequence[Row]) -> str:
    """Memory and work of programs, a line each."""
    return f"{_memory_table(rows)}\n\n{_work_table(rows)}\n\n{_NOTES}"


_NOTES = """\
program: rows of the whole batch x tokens; rows, GiB, MB: of one device, as compiled; gradients*: an estimate, as the parameters.
at least*: a lower bound of the time, from FLOPs, bytes and published speeds, and what binds; an estimate, not a measurement."""


def largest_text(row: Row, count: int = 6) -> str:
    """The largest arrays of a program, and whose they are."""
    lines = [f"{row['slice']}, {row['program']}: the largest arrays"]
    for each in row["largest"][:count]:
        lines.append(f"  {each['bytes'] / _GIB:8.2f} GiB  {each['shape']:<28} {each['where']}")
    return "\n".join(lines)


def _memory_table(rows: Sequence[Row]) -> str:
    head = ("slice", "chips", "mesh", "program", "rows", "params", "optimizer", "gradients*", "temporary", "total", "of", "fits")
    body = []
    for each in rows:
        memory, limit = each["memory"], each["memory_limit"]
        rest = memory["temporaries"] + memory["batch"] + memory["code"] + memory["other"]
        parts = [memory["parameters"], memory["optimizer"], memory["gradients"], rest, memory["total"]]
        body.append(
            (
                each["slice"],
                str(each["chips"]),
                mesh_text(each["mesh"]),
                each["program"],
                f"{each['rows_per_device']:g}",
                *(f"{size / _GIB:.2f}" for size in parts),
                "?" if limit is None else f"{limit / _GIB:.2f}",
                "yes" if each["fits"] else "NO",
            )
        )
    return "GiB of each device\n" + columns(head, body, left=(0, 2, 3))


def _work_table(rows: Sequence[Row]) -> str:
    head = ("slice", "program", "FLOP", "at least*", "binds", "MB sent and received, by kind and mesh axes")
    body = []
    for each in rows:
        found = sorted(each["collectives"], key=lambda one: -one["bytes"])
        talk = [f"{one['kind']} {'+'.join(one['axes'])} {one['bytes'] / 1e6:,.0f}" for one in found if one["bytes"] >= 5e5]
        if each["collectives_counted_once"]:
            talk.append(f"{_three_digits(each['collectives_counted_once'] / 1e6)} of them a turn of a loop of unknown length")
        least = each["bound"]
        body.append(
            (
                each["slice"],
                each["program"],
                si(each["flops"]).strip(),
                milliseconds(least["seconds"]) if least else "?",
                least["binds"] if least else "?",
                ", ".join(talk) or "-",
            )
        )
    return columns(head, body, left=(0, 1, 4, 5))


def milliseconds(seconds: float) -> str:
    """A time as the tables have it: 5.68 ms, 13,600 ms."""
    return f"{_three_digits(seconds * 1e3)} ms"


def _three_digits(number: float) -> str:
    return f"{float(f'{number:.3g}'):,g}"  # 1,230, where .3g alone gives 1.23e+03


def mesh_text(mesh: Mapping[str, int]) -> str:
    """The axes of more than one device: fsdp 8 x tensor 4."""
    return " x ".join(f"{axis} {size}" for axis, size in mesh.items() if size > 1) or "1 device"


def columns(head: Sequence[str], body: Sequence[Sequence[str]], left: Sequence[int]) -> str:
    """A table; the columns `left` are flush left."""
    widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if place in left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in (head, *body)
    )


def _parts(axes: Sequence[str], mesh: jax.sharding.Mesh) -> int:
    return math.prod(mesh.shape[axis] for axis in axes)
