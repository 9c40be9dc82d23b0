"""Search for the fastest layout of a run on a slice: the best layouts by estimate are compiled."""

import dataclasses
from collections.abc import Sequence
from datetime import date
from typing import Any

import jax

from bertfam.errors import UserError
from bertfam.planning.advice import Builder, Report, no_report, usable
from bertfam.planning.bounds import Bound, bound, moved_bytes, sent_bytes
from bertfam.planning.changes import mesh_lines
from bertfam.planning.choices import choose_execution, with_choices
from bertfam.planning.hlo.collectives import collectives
from bertfam.planning.layouts import Layout, describe_layout, heaviest, layouts
from bertfam.planning.programs import TRAINING, Program, jobs
from bertfam.planning.report import columns
from bertfam.planning.tracing import traces_for
from bertfam.plurals import plural
from bertfam.sharding.chips import Chip
from bertfam.sharding.mesh import slices_of
from bertfam.sharding.rules import AXES
from bertfam.training.run import Run

# Number of layouts that are compiled.
COMPILED = 5
_GIB = 2**30


def search(build: Builder, devices: Sequence[jax.Device], chip: Chip, memory: int, report: Report = no_report) -> list[Layout]:
    """Compile the best layouts by estimate, one per mesh.

    Args:
      build: returns the sized run with lines of gin added to its files.
      devices: devices of the slice.
      chip: chip that the devices are, or are part of.
      memory: bytes that a device has.
      report: is called with a line for each layout that is compiled.

    Returns:
      The compiled layouts, those that fit first, each group in order of the bound.

    Raises:
      UserError: if no layout divides or is estimated to fit, or if lines of gin cannot change the run to a layout.
    """
    platform = devices[0].platform

    def build_chosen(lines: Sequence[str]) -> Run:
        """Build the run with the choices that the search does not make."""
        run = build(lines)
        return with_choices(run, choose_execution(run.objective, platform))

    run = build_chosen(())
    report(f"estimating the layouts of {plural(len(devices), 'device')}")
    with traces_for(platform):
        left = layouts(run, len(devices), slices_of(devices), chip, usable(memory))
    if not left:
        raise UserError(
            f"by estimate no mesh of {plural(len(devices), 'device')} fits this run, even with full recomputation: use more chips"
        )
    done: list[Layout] = []
    while left and len(done) < COMPILED:
        layout = left[0]
        report(f"[{len(done) + 1}/{COMPILED}] {describe_layout(layout.run)}")
        laid_out = _build_layout(build_chosen, layout.run)
        (job,) = (job for job in jobs(laid_out, laid_out.mesh.build(devices), TRAINING) if job.stage == heaviest(run))
        program = job.compile()
        done.append(dataclasses.replace(layout, run=laid_out, program=program, bound=_bound_of(program, layout, chip)))
        if fits(done[-1], memory):  # other layouts of this mesh are no better
            left = [other for other in left if _sizes(other) != _sizes(layout)]
        else:  # layouts with an estimate as large do not fit either
            factor = program.memory.total / layout.estimated.total
            left = [other for other in left[1:] if other.estimated.total * factor <= usable(memory)]
    return sorted(done, key=lambda layout: (not fits(layout, memory), layout.order))


def fits(layout: Layout, memory: int) -> bool:
    """Return whether a compiled layout fits devices with the given bytes of memory."""
    return layout.program is not None and layout.program.fits(usable(memory))


def rows(layouts: Sequence[Layout], chip: Chip, memory: int) -> list[dict[str, Any]]:
    """Return the compiled layouts and their estimates as JSON: bytes per device, and bounds in seconds."""
    return [
        {
            "layout": describe_layout(layout.run),
            "mesh": {name: getattr(layout.run.mesh, name) for name in (*AXES, "zero1")},
            "remat": layout.run.objective.execution.concrete.remat,
            "microbatches": layout.run.microbatch_count,
            "estimated_bytes": layout.estimated.total,
            "bytes": layout.bytes,
            "fits": fits(layout, memory),
            "estimated_bound": dataclasses.asdict(layout.estimated.bound(chip)),
            "bound": dataclasses.asdict(layout.bound) if layout.program and layout.program.compiled else None,
        }
        for layout in layouts
    ]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Format the rows as a table."""
    head = ("layout", "GiB est.*", "GiB", "fits", "at least est.*", "at least*", "binds", "network est.*", "network*")
    body = []
    for row in rows:
        estimated, bounds = row["estimated_bound"], row["bound"]
        body.append(
            (
                row["layout"],
                f"{row['estimated_bytes'] / _GIB:.2f}",
                f"{row['bytes'] / _GIB:.2f}",
                "yes" if row["fits"] else "NO",
                _time(max(estimated.values())),
                _time(max(bounds.values())) if bounds else "-",
                max(bounds, key=bounds.get) if bounds else "-",
                _time(estimated["ici"] + estimated["dcn"], 3),
                _time(bounds["ici"] + bounds["dcn"], 3) if bounds else "-",
            )
        )
    return f"{columns(head, body, left=(0, 6))}\n\n{_NOTES}"


def _time(seconds: float, digits: int = 4) -> str:
    return f"{seconds:.{digits}g} s" if seconds >= 0.1 else f"{seconds * 1e3:.{digits}g} ms"


_NOTES = """\
GiB of each device, as compiled; est.*: estimated before compiling, from a trace of the gradient.
at least*: lower bound on the time of a step, from FLOPs (including recomputation), bytes and published speeds; not measured.
network*: the same for communication alone. Layouts with the same bound are ordered by the sum over all resources."""


def gin_text(layout: Layout, slice: str, memory: int, command: str) -> str:
    """Format a gin file that changes the run to this layout, with its origin in the header.

    Args:
      layout: compiled layout.
      slice: name of the slice.
      memory: bytes that a device of it has.
      command: command line of the search, in one line.
    """
    run, least = layout.run, layout.bound
    lines = [
        f"# {type(run.objective.model).__name__} on {slice}: {describe_layout(run)}.",
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
    remat = run.objective.execution.concrete.remat
    return (*mesh_lines(run.mesh), f"Run.microbatches = {run.microbatch_count}", f'Execution.remat = "{remat}"')


def _build_layout(build: Builder, wanted: Run) -> Run:
    """Build the run with the gin lines of a layout; raises UserError if it has another layout."""
    built = build(_lines(wanted))
    matches = {
        "MeshShape": built.mesh == wanted.mesh,
        "Run.microbatches": built.microbatches == wanted.microbatches,
        "Execution.remat": built.objective.execution.concrete.remat == wanted.objective.execution.remat,
    }
    if kept := [name for name, is_equal in matches.items() if not is_equal]:
        raise UserError(
            f"the search cannot set {' and '.join(kept)} in its file, because --gin flags or a scope of the run override "
            "every file; remove these bindings"
        )
    return built


def _bound_of(program: Program, layout: Layout, chip: Chip) -> Bound:
    """Return the bound from the compiled program, except for the FLOPs, which include recomputation."""
    mesh = program.job.trainer.mesh
    communication = collectives(program.text, mesh) if program.compiled else []
    return bound(chip, flops=layout.estimated.flops, moved=moved_bytes(program.memory), sent=sent_bytes(communication, mesh))


def _sizes(layout: Layout) -> tuple[int, ...]:
    return tuple(getattr(layout.run.mesh, axis) for axis in AXES)
