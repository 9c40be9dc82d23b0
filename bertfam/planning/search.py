"""The fastest layout of a run on a slice: the best by estimate are compiled."""

import dataclasses
from collections.abc import Sequence
from datetime import date
from typing import Any

import jax

from bertfam.errors import UserError
from bertfam.planning.advice import Make, Tell, silently, usable
from bertfam.planning.bounds import Bound, bound, moved_bytes, sent_bytes
from bertfam.planning.changes import mesh_lines
from bertfam.planning.hlo.collectives import collectives
from bertfam.planning.layouts import Layout, described, heaviest, layouts
from bertfam.planning.programs import TRAINING, Program, jobs
from bertfam.planning.report import columns
from bertfam.sharding.chips import Chip
from bertfam.sharding.mesh import slices_of
from bertfam.sharding.rules import AXES
from bertfam.training.run import Run

# How many layouts are compiled.
COMPILED = 5
_GIB = 2**30


def search(make: Make, devices: Sequence[jax.Device], chip: Chip, memory: int, tell: Tell = silently) -> list[Layout]:
    """The best layouts by estimate, one of a mesh, compiled: those that fit first, the one with the lowest bound foremost.

    Args:
      make: gives the sized run with lines of gin added to its files.
      devices: of the slice.
      chip: what they are, or are parts of.
      memory: bytes of one.
      tell: is given a line for each that is compiled.

    Raises:
      UserError: where none divides, or is estimated to fit, or where lines of gin do not make it of the run.
    """
    run = make(())
    tell(f"estimating the layouts of {len(devices)} devices")
    left = layouts(run, len(devices), slices_of(devices), chip, usable(memory))
    if not left:
        raise UserError(
            f"no mesh of {len(devices)} devices is estimated to hold this run, however much is recomputed: take more chips"
        )
    done: list[Layout] = []
    while left and len(done) < COMPILED:
        layout = left[0]
        tell(f"[{len(done) + 1}/{COMPILED}] {described(layout.run)}")
        made = _made(make, layout.run)
        (job,) = (job for job in jobs(made, made.mesh.build(devices), TRAINING) if job.stage == heaviest(run))
        program = job.compile()
        done.append(dataclasses.replace(layout, run=made, program=program, at_least=_bound_of(program, layout, chip)))
        if fits(done[-1], memory):  # others of this mesh are no better
            left = [each for each in left if _sizes(each) != _sizes(layout)]
        else:  # those that are estimated to need as much will not either
            too_much = program.memory.total / layout.estimated.total
            left = [each for each in left[1:] if each.estimated.total * too_much <= usable(memory)]
    return sorted(done, key=lambda layout: (not fits(layout, memory), layout.order))


def fits(layout: Layout, memory: int) -> bool:
    """Whether it fits devices that have so many bytes."""
    return layout.program is not None and layout.program.fits(usable(memory))


def rows(found: Sequence[Layout], chip: Chip, memory: int) -> list[dict[str, Any]]:
    """The compiled layouts with their estimates beside them, as JSON: bytes of a device, and bounds in seconds."""
    return [
        {
            "layout": described(each.run),
            "mesh": {name: getattr(each.run.mesh, name) for name in (*AXES, "zero1")},
            "remat": each.run.objective.execution.remat,
            "microbatches": each.run.microbatches,
            "estimated_bytes": each.estimated.total,
            "bytes": each.bytes,
            "fits": fits(each, memory),
            "estimated_bound": dataclasses.asdict(each.estimated.bound(chip)),
            "bound": dataclasses.asdict(each.at_least) if each.program and each.program.compiled else None,
        }
        for each in found
    ]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The same for people."""
    head = ("layout", "GiB est.*", "GiB", "fits", "at least est.*", "at least*", "binds", "network est.*", "network*")
    body = []
    for row in rows:
        guess, bounds = row["estimated_bound"], row["bound"]
        body.append(
            (
                row["layout"],
                f"{row['estimated_bytes'] / _GIB:.2f}",
                f"{row['bytes'] / _GIB:.2f}",
                "yes" if row["fits"] else "NO",
                _time(max(guess.values())),
                _time(max(bounds.values())) if bounds else "-",
                max(bounds, key=bounds.get) if bounds else "-",
                _time(guess["ici"] + guess["dcn"], 3),
                _time(bounds["ici"] + bounds["dcn"], 3) if bounds else "-",
            )
        )
    return f"{columns(head, body, left=(0, 6))}\n\n{_NOTES}"


def _time(seconds: float, digits: int = 4) -> str:
    return f"{seconds:.{digits}g} s" if seconds >= 0.1 else f"{seconds * 1e3:.{digits}g} ms"


_NOTES = """\
GiB of each device, as compiled; est.*: estimated before compiling, from a trace of the gradient.
at least*: a lower bound of a step, from FLOPs (with what is computed twice), bytes and published speeds; not measured.
network*: of sending alone, as a part of that bound; of two with the same bound the one with less in all comes first."""


def gin_text(layout: Layout, slice: str, memory: int, command: str) -> str:
    """A gin file that makes this layout of the run, whatever mesh it had, and says where it comes from.

    Args:
      layout: compiled.
      slice: the name of the slice.
      memory: bytes of one of its devices.
      command: that found it, in one line.
    """
    run, least = layout.run, layout.at_least
    lines = [
        f"# {type(run.objective.model).__name__} on {slice}: {described(run)}.",
        "#",
        f"#   {command}",
        "#",
        f"# Compiled on {date.today()}, not measured: {layout.bytes / _GIB:.2f} of {memory / _GIB:.2f} GiB of each device.",
        f"# By published speeds a step takes at least {_time(least.seconds)} ({least.binds} binds), an estimate.",
        "",
        *_lines(run),
    ]
    return "\n".join(lines) + "\n"


def _lines(run: Run) -> tuple[str, ...]:
    remat = run.objective.execution.remat
    return (*mesh_lines(run.mesh), f"Run.microbatches = {run.microbatches}", f'Execution.remat = "{remat}"')


def _made(make: Make, wanted: Run) -> Run:
    """The run that a layout's lines make; raises UserError where that is another layout."""
    made = make(_lines(wanted))
    bound = {
        "MeshShape": made.mesh == wanted.mesh,
        "Run.microbatches": made.microbatches == wanted.microbatches,
        "Execution.remat": made.objective.execution.remat == wanted.objective.execution.remat,
    }
    if kept := [name for name, is_wanted in bound.items() if not is_wanted]:
        raise UserError(
            f"the search would write {' and '.join(kept)} into its file, which the run binds by --gin flags or in a scope, over "
            "any file: leave these out"
        )
    return made


def _bound_of(program: Program, layout: Layout, chip: Chip) -> Bound:
    """From what was compiled, but for the FLOPs, which count what is computed twice."""
    mesh = program.job.trainer.mesh
    found = collectives(program.text, mesh) if program.compiled else []
    return bound(chip, flops=layout.estimated.flops, moved=moved_bytes(program.memory), sent=sent_bytes(found, mesh))


def _sizes(layout: Layout) -> tuple[int, ...]:
    return tuple(getattr(layout.run.mesh, axis) for axis in AXES)
