"""Report of programs on slices, as JSON and as tables."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from bertfam.planning.bounds import bound, moved_bytes, sent_bytes
from bertfam.planning.hlo.collectives import by_axes, collectives
from bertfam.planning.programs import Job, Program
from bertfam.planning.slices import Slice
from bertfam.sharding.chips import chip_of, memory_bytes
from bertfam.training.run_plan import describe_attention, si

_GIB = 2**30
Row = Mapping[str, Any]


def row(program: Program, slice: Slice) -> dict[str, Any]:
    """Return the figures of a program on a slice; bytes and bounds are for one device, FLOPs for all of them together."""
    job, mesh = program.job, program.job.trainer.mesh
    device = mesh.devices.flat[0]
    chip, limit, memory = chip_of(device), memory_bytes(device), program.memory
    communication = collectives(program.text, mesh) if program.compiled else []
    least = None
    if chip is not None and program.compiled:
        flops = job.flops / mesh.size
        least = bound(chip, flops=flops, moved=moved_bytes(memory, job.reread), sent=sent_bytes(communication, mesh))
    attention = None
    if job.kind == "train":
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):  # constants of the trace are computed on this machine
            attention = describe_attention(job.trainer.run.objective_of(job.stage), job.trainer.run.shape(job.stage))
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
        "microbatches": job.trainer.run.microbatch_count if job.kind == "train" else 1,
        "attention": attention,
        "fits": program.fits(limit),
        "memory": dataclasses.asdict(memory) | {"total": memory.total},
        "memory_limit": limit,
        "collectives": [
            {"kind": kind, "axes": list(axes), "bytes": size}
            for kind, sizes in by_axes(communication).items()
            for axes, size in sizes.items()
        ],
        # Bytes of collectives in loops of unknown length, which are counted once above.
        "collectives_counted_once": sum(collective.total for collective in communication if collective.times is None),
        "flops": job.flops,
        "bound": None if least is None else dataclasses.asdict(least) | {"seconds": least.seconds, "binds": least.binds},
        "predicted": predicted_times(job),
        "largest": [dataclasses.asdict(allocation) for allocation in program.largest],
        "compile_seconds": round(program.seconds, 1),
    }


def tables(rows: Sequence[Row]) -> str:
    """Format memory and work of programs as tables, one line per program."""
    times = [f"{row['slice']}: {predicted_text(row['program'], row['predicted'])}" for row in rows if row["predicted"]]
    parts = [_memory_table(rows), _work_table(rows), *(["\n".join(times)] if times else []), _NOTES]
    return "\n\n".join(parts) + (f"\n{_PREDICTED_NOTE}" if times else "")


_NOTES = """\
program: rows of the global batch x tokens; rows, GiB, MB: of one device, as compiled; gradients*: estimated, as many as
  parameters.
at least*: lower bound on the time from FLOPs, bytes and published speeds, and the resource that binds; not a measurement."""


_PREDICTED_NOTE = """\
predicted*: from rates measured on another such GPU; packed rows are counted as one example each."""


def predicted_times(job: Job) -> dict[str, float] | None:
    """Return the predicted seconds of a program and of its parts; None if there is no prediction."""
    predicted = job.predicted
    return None if predicted is None else dataclasses.asdict(predicted) | {"seconds": predicted.seconds}


def predicted_text(program: str, times: Mapping[str, float]) -> str:
    """Format the predicted time of a program and its parts: train 256 x 128 takes 44 ms (predicted*): products 24.5, ..."""
    parts = {name.replace("_", " "): seconds for name, seconds in times.items() if name != "seconds"}
    text = ", ".join(f"{name} {_three_digits(seconds * 1e3)}" for name, seconds in parts.items())
    return f"{program} takes {milliseconds(times['seconds'])} (predicted*): {text}"


def largest_text(row: Row, count: int = 6) -> str:
    """Format the largest arrays of a program, with the modules that compute them."""
    lines = [f"{row['slice']}, {row['program']}: the largest arrays"]
    for array in row["largest"][:count]:
        lines.append(f"  {array['bytes'] / _GIB:8.2f} GiB  {array['shape']:<28} {array['where']}")
    return "\n".join(lines)


def _memory_table(rows: Sequence[Row]) -> str:
    head = ("slice", "chips", "mesh", "program", "rows", "params", "optimizer", "gradients*", "temporary", "total", "of", "fits")
    body = []
    for row in rows:
        memory, limit = row["memory"], row["memory_limit"]
        rest = memory["temporaries"] + memory["batch"] + memory["code"] + memory["other"]
        parts = [memory["parameters"], memory["optimizer"], memory["gradients"], rest, memory["total"]]
        body.append(
            (
                row["slice"],
                str(row["chips"]),
                mesh_text(row["mesh"]),
                row["program"],
                f"{row['rows_per_device']:g}",
                *(f"{size / _GIB:.2f}" for size in parts),
                "?" if limit is None else f"{limit / _GIB:.2f}",
                "NO" if not row["fits"] else "?" if limit is None else "yes",
            )
        )
    return "GiB of each device\n" + columns(head, body, left=(0, 2, 3))


def _work_table(rows: Sequence[Row]) -> str:
    head = ("slice", "program", "FLOP", "at least*", "binds", "MB sent and received, by kind and mesh axes")
    body = []
    for row in rows:
        largest = sorted(row["collectives"], key=lambda entry: -entry["bytes"])
        sent = [f"{one['kind']} {'+'.join(one['axes'])} {one['bytes'] / 1e6:,.0f}" for one in largest if one["bytes"] >= 5e5]
        if row["collectives_counted_once"]:
            once = _three_digits(row["collectives_counted_once"] / 1e6)
            sent.append(f"{once} of them per iteration of a loop of unknown length")
        least = row["bound"]
        body.append(
            (
                row["slice"],
                row["program"],
                si(row["flops"]).strip(),
                milliseconds(least["seconds"]) if least else "?",
                least["binds"] if least else "?",
                ", ".join(sent) or "-",
            )
        )
    return columns(head, body, left=(0, 1, 4, 5))


def milliseconds(seconds: float) -> str:
    """Format a time for the tables: 5.68 ms, 13,600 ms."""
    return f"{_three_digits(seconds * 1e3)} ms"


def _three_digits(number: float) -> str:
    return f"{float(f'{number:.3g}'):,g}"  # 1,230; .3g alone gives 1.23e+03


def mesh_text(mesh: Mapping[str, int]) -> str:
    """Format the mesh axes with more than one device: fsdp 8 x tensor 4."""
    return " x ".join(f"{axis} {size}" for axis, size in mesh.items() if size > 1) or "1 device"


def columns(head: Sequence[str], body: Sequence[Sequence[str]], left: Sequence[int]) -> str:
    """Format a table; the columns `left` are left-aligned."""
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
