"""Smallest change that makes a run fit its devices, and the most rows that fit, both by compiling."""

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax

from bertfam.errors import UserError
from bertfam.planning.changes import changes, with_remat
from bertfam.planning.estimate import estimate
from bertfam.planning.programs import TRAINING, compile_programs, largest_bytes
from bertfam.plurals import plural
from bertfam.sharding.mesh import MeshShape, slices_of
from bertfam.sharding.rules import AXES
from bertfam.training.run import Run
from bertfam.training.run_plan import duration

# Fraction of a device's memory that programs may use; the rest is for arrays outside any program, such as prefetched batches.
_SHARE = 0.97
# A run is not compiled if its estimate exceeds the memory by this factor; estimates were too high by up to this factor.
_SLACK = 1.15
# Largest number of programs that are compiled for one piece of advice.
_TRIES = 8
_REPORT_SECONDS = 30
_GIB = 2**30

Builder = Callable[[Sequence[str]], Run]
Report = Callable[[str], None]


def no_report(line: str) -> None:
    """Discard a line."""


@dataclass(frozen=True)
class Advice:
    """Change with which a run fits.

    Attributes:
      lines: lines of gin, for a file that is given after the others.
      costs: cost of each change, as text.
      bytes: memory of the compiled program on each device.
    """

    lines: tuple[str, ...]
    costs: tuple[str, ...]
    bytes: int


class AdviceSearch(NamedTuple):
    """Result of a search for advice.

    Attributes:
      advice: the change that fits; None if none was found.
      complete: False if the time was over before all likely changes were tried.
    """

    advice: Advice | None
    complete: bool


def advise(
    build: Builder, devices: Sequence[jax.Device], memory: int, report: Report = no_report, seconds: float = math.inf
) -> AdviceSearch:
    """Search for the first of `changes` with which all training steps of a run fit.

    Args:
      build: returns the sized run with lines of gin added to its files.
      devices: devices of the slice.
      memory: bytes that a device has.
      report: is called with a line for each change that is compiled, and every half minute while changes are estimated.
      seconds: time after which no further change is estimated or compiled.
    """
    run, start = build(()), time.monotonic()
    tries, estimated, reported, seen = 0, 0, start, [run]
    for chosen in changes(run, len(devices), slices_of(devices)):
        now = time.monotonic()
        if now - start > seconds:
            return AdviceSearch(None, complete=False)
        if now - reported > _REPORT_SECONDS:
            report(f"{estimated:,} changes estimated, {tries} of at most {_TRIES} compiled, in {duration(now - start)}")
            reported = now
        estimated += 1
        changed = functools.reduce(lambda run, change: change.apply(run), chosen, run)
        lines = tuple(line for change in chosen for line in change.lines)
        try:
            if changed in seen or not _may_fit(changed, len(devices), slices_of(devices), _SLACK * usable(memory)):
                continue
            if build(lines) != changed:  # the run's files bind the value elsewhere, such as in a scope
                continue
            seen.append(changed)
            report(f"compiling {tries + 1} of at most {_TRIES}: {', '.join(lines)}")
            required = required_bytes(changed, devices)
        except UserError:  # sizes do not divide, or the run's files do not have this name
            continue
        if required <= usable(memory):
            return AdviceSearch(Advice(lines, tuple(change.cost for change in chosen), required), complete=True)
        tries += 1
        if tries == _TRIES:
            break
    return AdviceSearch(None, complete=True)


def usable(memory: int) -> int:
    """Return the bytes that a program may use on a device with the given memory."""
    return int(_SHARE * memory)


def required_bytes(run: Run, devices: Sequence[jax.Device]) -> int:
    """Compile the training steps and return the bytes that the largest one requires on each device.

    Raises:
      UserError: if sizes do not divide over the mesh.
    """
    return largest_bytes(compile_programs(run, run.mesh.build(devices), TRAINING))


def most_rows(run: Run, devices: Sequence[jax.Device], memory: int, report: Report = no_report) -> int:
    """Return the most rows per device, in one microbatch of the last stage, with which its step fits; 0 if one row does not.

    The result is exact to an eighth. The search starts at the estimate and continues with the memory of the compiled programs.

    Args:
      run: sized run.
      devices: devices of the slice.
      memory: bytes that a device has.
      report: is called with a line for each number of rows that is compiled.

    Raises:
      UserError: if sizes do not divide over the mesh.
    """
    count, slices = len(devices), slices_of(devices)
    sizes = dict(zip(AXES, run.mesh.sizes(count, slices), strict=True))
    parts = math.prod(sizes[axis] for axis in run.mesh.rules.axes("batch"))

    def with_rows(rows: int) -> Run:
        stage = dataclasses.replace(run.stages[-1], batch_size=rows * parts)
        return dataclasses.replace(run, stages=(stage,), microbatches=1)

    one_row, two_rows = (estimate(with_rows(rows), count, slices=slices).total for rows in (1, 2))
    constant, room = 2 * one_row - two_rows, usable(memory)
    rows = max((room - constant) // (two_rows - one_row), 1)
    fitting, too_many = 0, None
    while True:
        report(f"trying {plural(rows, 'row')} per device")
        required = required_bytes(with_rows(rows), devices)
        if required <= room:
            fitting = rows
        else:
            too_many = rows
        step = max((too_many or fitting) // 8, 1)
        if too_many is not None and too_many - fitting <= step:
            return fitting
        likely = (room - constant) * rows // max(required - constant, 1)
        rows = max(min(likely, 8 * rows), fitting + step)
        if too_many is not None:
            rows = min(rows, too_many - step)


def least_devices(run: Run, memory: int) -> int | None:
    """Estimate the least number of devices that fit one row each, with everything sharded and recomputed; None if none does."""
    mesh = MeshShape(data=1, fsdp=-1, rules=run.mesh.rules)
    least = dataclasses.replace(with_remat(run, "full"), mesh=mesh, microbatches=1)
    for devices in (2**power for power in range(14)):
        stages = tuple(dataclasses.replace(stage, batch_size=devices) for stage in run.stages)
        try:
            if _may_fit(dataclasses.replace(least, stages=stages), devices, 1, usable(memory)):
                return devices
        except UserError:
            return None
    return None


def _may_fit(run: Run, devices: int, slices: int, memory: float) -> bool:
    """Return whether the estimates of all stages fit the memory."""
    return all(estimate(run, devices, slices=slices, stage=stage).total <= memory for stage in range(len(run.stages)))


def advice_text(found: AdviceSearch, slice: str, devices: int, memory: int, least: int | None) -> str:
    """Format the advice for a slice, with lines of gin to paste.

    Args:
      found: result of the search.
      slice: name of the slice.
      devices: number of its devices.
      memory: bytes that a device has.
      least: estimated number of devices that are enough if no change fits; None if it is unknown.
    """
    advice = found.advice
    if advice is None and not found.complete:
        return f"{slice}: no change that fits was found in the time; give --advice_minutes=N to search longer, or try --search"
    if advice is None:
        if least is None:
            alternative = "by estimate it fits no slice"
        elif least > devices:
            alternative = f"by estimate it requires {least:,} or more of these devices"
        else:
            alternative = "by estimate another mesh or a smaller batch may fit: try --search"
        return f"{slice}: the run fits with none of the changes that were tried; {alternative}"
    memory_text = f"{advice.bytes / _GIB:.2f} of {memory / _GIB:.2f} GiB"
    lines = [*(f"  # {cost}" for cost in advice.costs), *(f"  {line}" for line in advice.lines)]
    return "\n".join([f"{slice}: {memory_text} as compiled, with these lines in a file given as the last --gin_file:", *lines])
