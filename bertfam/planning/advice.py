"""The smallest change with which a run fits its devices, found by compiling; and the most rows that fit."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax

from bertfam.errors import UserError
from bertfam.planning.changes import changes, with_remat
from bertfam.planning.estimate import estimate
from bertfam.planning.programs import TRAINING, compile_programs
from bertfam.sharding.mesh import MeshShape, slices_of
from bertfam.sharding.rules import AXES
from bertfam.training.run import Run

# Of a device's memory; the rest is for what is in no program, as the batches to come.
_SHARE = 0.97
# What is estimated to need more than so many times the memory is not compiled; estimates were up to so much too high.
_SLACK = 1.15
# The most programs that are compiled for one piece of advice.
_TRIES = 8
_GIB = 2**30

Make = Callable[[Sequence[str]], Run]
Tell = Callable[[str], None]


def silently(line: str) -> None:
    """Tells nothing."""


@dataclass(frozen=True)
class Advice:
    """A change that fits.

    Attributes:
      lines: of gin, for a file that is given after the others.
      costs: of each line or two, what it costs, in words.
      bytes: that the compiled program needs on each device.
    """

    lines: tuple[str, ...]
    costs: tuple[str, ...]
    bytes: int


def advise(make: Make, devices: Sequence[jax.Device], memory: int, tell: Tell = silently) -> Advice | None:
    """The first of `changes` with which all training steps of a run fit; None where none of the likely ones does.

    Args:
      make: gives the sized run with lines of gin added to its files.
      devices: of the slice.
      memory: bytes that a device has.
      tell: is given a line for each that is compiled.
    """
    run = make(())
    tries, seen = 0, [run]
    for chosen in changes(run, len(devices), slices_of(devices)):
        changed = functools.reduce(lambda run, change: change.apply(run), chosen, run)
        lines = tuple(line for change in chosen for line in change.lines)
        try:
            if changed in seen or not _may_fit(changed, len(devices), slices_of(devices), _SLACK * usable(memory)):
                continue
            if make(lines) != changed:  # the run's files bind it in another way, as in a scope
                continue
            seen.append(changed)
            tell(f"trying {', '.join(lines)}")
            needed = needed_bytes(changed, devices)
        except UserError:  # sizes do not divide, or the run's files have no such name
            continue
        if needed <= usable(memory):
            return Advice(lines, tuple(change.cost for change in chosen), needed)
        tries += 1
        if tries == _TRIES:
            break
    return None


def usable(memory: int) -> int:
    """The bytes that a program may need on a device that has so many."""
    return int(_SHARE * memory)


def needed_bytes(run: Run, devices: Sequence[jax.Device]) -> int:
    """What the largest training step needs on each device, as compiled.

    Raises:
      UserError: where sizes do not divide over the mesh.
    """
    found = compile_programs(run, run.mesh.build(devices), TRAINING)
    return max(program.memory.total for program in found.values())


def most_rows(run: Run, devices: Sequence[jax.Device], memory: int, tell: Tell = silently) -> int:
    """The most rows a device, in one microbatch of the last stage, with which its step fits, as compiled; 0: not even one.

    They are found to an eighth: from what is estimated to fit it goes to where what was compiled says that the memory ends.

    Args:
      run: sized.
      devices: of the slice.
      memory: bytes that a device has.
      tell: is given a line for each number that is compiled.

    Raises:
      UserError: where sizes do not divide over the mesh.
    """
    count, slices = len(devices), slices_of(devices)
    sizes = dict(zip(AXES, run.mesh.sizes(count, slices), strict=True))
    parts = math.prod(sizes[axis] for axis in run.mesh.rules.axes("batch"))

    def of(rows: int) -> Run:
        stage = dataclasses.replace(run.stages[-1], batch_size=rows * parts)
        return dataclasses.replace(run, stages=(stage,), microbatches=1)

    few, many = (estimate(of(rows), count, slices=slices).total for rows in (1, 2))
    without, room = 2 * few - many, usable(memory)
    rows = max((room - without) // (many - few), 1)
    fitting, too_many = 0, None
    while True:
        tell(f"trying {rows:,} row{'' if rows == 1 else 's'} a device")
        needed = needed_bytes(of(rows), devices)
        if needed <= room:
            fitting = rows
        else:
            too_many = rows
        step = max((too_many or fitting) // 8, 1)
        if too_many is not None and too_many - fitting <= step:
            return fitting
        likely = (room - without) * rows // max(needed - without, 1)
        rows = max(min(likely, 8 * rows), fitting + step)
        if too_many is not None:
            rows = min(rows, too_many - step)


def least_devices(run: Run, memory: int) -> int | None:
    """How many devices are enough by estimate, with all split and recomputed and a row a device at a time; None: no number is."""
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
    """Whether the estimates of all stages say so."""
    return all(estimate(run, devices, slices=slices, stage=stage).total <= memory for stage in range(len(run.stages)))


def advice_text(advice: Advice | None, slice: str, devices: int, memory: int, least: int | None) -> str:
    """What is advised for a slice, in words and lines to paste.

    Args:
      advice: what fits.
      slice: its name.
      devices: how many it has.
      memory: bytes that a device of it has.
      least: of how many devices the slice must be where nothing fits, by estimate; None where that is not known.
    """
    if advice is None:
        if least is None:
            hope = "no slice is estimated to hold it"
        elif least > devices:
            hope = f"estimated to need {least:,} devices or more like these"
        else:
            hope = "by estimate another mesh or a smaller batch may: try --search"
        return f"{slice}: none of the changes that were tried fits; {hope}"
    needs = f"{advice.bytes / _GIB:.2f} of {memory / _GIB:.2f} GiB"
    lines = [*(f"  # {cost}" for cost in advice.costs), *(f"  {line}" for line in advice.lines)]
    return "\n".join([f"{slice}: compiled, {needs}, with these lines in a file that is the last --gin_file:", *lines])
