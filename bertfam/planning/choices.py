"""Choice of each "auto" of a run for its devices.

Precision, the loop over layers and random bits depend on their kind and on the model's depth, recomputation and microbatches on
their memory.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
from jax.sharding import AbstractMesh

from bertfam.errors import UserError
from bertfam.layers.execution import AUTO, REFERENCE, Execution
from bertfam.objectives.objective import Objective
from bertfam.planning.advice import required_bytes, usable
from bertfam.planning.changes import REMATS, with_execution
from bertfam.planning.estimate import estimate
from bertfam.planning.programs import stages_of
from bertfam.planning.tracing import traces_for
from bertfam.plurals import plural
from bertfam.sharding.mesh import slices_of
from bertfam.sharding.named_shardings import check_batch
from bertfam.sharding.rules import AXES
from bertfam.training.run import Run

EXECUTION = "Execution."
MICROBATCHES = "Run.microbatches"
REMAT = f"{EXECUTION}remat"
# Values of a run in which nothing was chosen, by name.
REFERENCES: Mapping[str, Any] = {f"{EXECUTION}{name}": value for name, value in REFERENCE.items()} | {MICROBATCHES: 1}

# Most layers that are unrolled on GPUs; each takes about 2.5 seconds to compile (BERT-large on an H100: 64 s).
_MOST_UNROLLED = 48
# Estimates that differ from the memory by less than this factor are confirmed by compiling; see docs/planning.md.
_MARGIN = 4 / 3
# Time of a step by what it recomputes, and the tokens whose time each microbatch costs on a device; measured on BERT-base with
# rows of 512 tokens on an H200, 2026-11-29 (docs/planning.md).
_REMAT_TIMES = {"none": 1.0, "dots": 1.14, "full": 1.30}
_MICROBATCH_TOKENS = 1800
_GIB = 2**30


class Choice(NamedTuple):
    """Value in place of an "auto", and its reason in a few words."""

    value: Any
    reason: str


Choices = Mapping[str, Choice]  # by the name in gin files: "Execution.dtype"


def value_of(run: Run, name: str) -> Any:
    """Return the value of one of `REFERENCES` in a run; an objective without options of execution has those values."""
    if name == MICROBATCHES:
        return run.microbatches
    execution = run.objective.execution if _has_execution(run) else Execution().concrete
    return getattr(execution, name.removeprefix(EXECUTION))


def _has_execution(run: Run) -> bool:
    objective: Any = run.objective
    return any(field.name == "execution" for field in dataclasses.fields(objective))


def with_choices(run: Run, choices: Choices) -> Run:
    """Return the run with the choices in place of each "auto"."""
    values = {name: choice.value for name, choice in choices.items() if value_of(run, name) == AUTO}
    if MICROBATCHES in values:
        run = dataclasses.replace(run, microbatches=values.pop(MICROBATCHES))
    if not values:
        return run
    objective: Any = run.objective
    execution = dataclasses.replace(
        objective.execution, **{name.removeprefix(EXECUTION): value for name, value in values.items()}
    )
    return dataclasses.replace(run, objective=dataclasses.replace(objective, execution=execution))


def choose(
    run: Run, devices: Sequence[jax.Device], memory: int | None, required: Callable[[Run], int] | None = None
) -> dict[str, Choice]:
    """Choose every "auto" of a sized run for its devices.

    Args:
      run: sized run.
      devices: devices of its mesh, or of a slice to compile for.
      memory: bytes that a device has; None if they are unknown.
      required: returns the bytes that the compiled steps of a run require on each device, to confirm an estimate; None
        compiles them here.

    Raises:
      UserError: if sizes do not divide over the mesh.
    """
    if not _has_execution(run):
        return {MICROBATCHES: Choice(1, "memory unknown")} if run.microbatches == AUTO else {}
    by_kind = choose_execution(run.objective, devices[0].platform)
    is_here = devices[0] in jax.devices()
    with traces_for(None if is_here else devices[0].platform):
        required = required or partial(required_bytes, devices=devices)
        by_memory = choose_memory(with_choices(run, by_kind), len(devices), slices_of(devices), memory, required)
    return by_kind | by_memory


def choose_execution(objective: Objective, platform: str) -> dict[str, Choice]:
    """Choose what depends on the kind of devices alone, "cpu", "gpu" or "tpu", and on the model's depth."""
    layers = layer_count(objective)
    is_fast = platform in ("gpu", "tpu")
    loop = Choice("scan", platform)
    if platform == "gpu":
        is_deep = layers > _MOST_UNROLLED
        loop = Choice("scan" if is_deep else "unroll", f"{plural(layers, 'layer')} on gpu")
    dtype = Choice("bfloat16" if is_fast else "float32", platform)
    has_fast_forms = is_fast and objective.execution.dtype in (AUTO, "bfloat16")
    bits = Choice("hash", f"bfloat16 on {platform}") if has_fast_forms else Choice("threefry", platform)
    chosen = {"dtype": dtype, "layers": loop, "dropout_bits": bits}
    return {f"{EXECUTION}{name}": choice for name, choice in chosen.items() if getattr(objective.execution, name) == AUTO}


def layer_count(objective: Objective) -> int:
    """Return the number of layers of all networks of an objective, its teachers included."""
    configs = [*objective.networks.values(), *(teacher.model for teacher in objective.teachers.values() if teacher)]
    return sum(config.num_layers + getattr(config, "encoder_layers", 0) for config in configs)


def choose_memory(run: Run, devices: int, slices: int, memory: int | None, required: Callable[[Run], int]) -> dict[str, Choice]:
    """Choose the cheapest recomputation and number of microbatches that fit.

    Args:
      run: sized run, with all other choices made.
      devices: number of devices.
      slices: number of slices that they belong to.
      memory: bytes that a device has; None if they are unknown, and nothing is recomputed or split.
      required: returns the bytes that the compiled steps of a run require on each device; called where an estimate is not
        certain.

    Raises:
      UserError: if sizes do not divide over the mesh.
    """
    names = [name for name in (REMAT, MICROBATCHES) if value_of(run, name) == AUTO]
    if not names:
        return {}
    if memory is None:
        return {name: Choice(REFERENCES[name], "memory unknown") for name in names}
    room, correction, estimates = usable(memory), 1.0, dict[Run, int]()
    for candidate in _candidates(run, devices, slices):
        estimates[candidate] = _estimated(_scanned(candidate), devices, slices)
        size, origin = int(estimates[candidate] * correction), "estimated"
        if size * _MARGIN > room:
            # Unrolled programs keep less than scanned ones, and more than the estimate of an unrolled one.
            least = size if correction != 1 else _estimated(candidate, devices, slices) / _MARGIN
            if least > room:
                continue
            size, origin = required(candidate), "compiled"
            correction = size / estimates[candidate]
        if size <= room:
            break
    else:
        candidate = min(estimates, key=lambda one: estimates[one])
        size, origin = int(estimates[candidate] * correction), "too large, estimated"
    reason = f"{origin} {size / _GIB:.2f} of {memory / _GIB:.2f} GiB"
    return {name: Choice(value_of(candidate, name), reason) for name in names}


def _candidates(run: Run, devices: int, slices: int) -> Iterator[Run]:
    """Yield the runs to choose from, the cheapest first, with as many microbatches as divide the batch of every stage."""
    mesh = AbstractMesh(run.mesh.sizes(devices, slices), AXES)
    remat = run.objective.execution.remat
    counts = [run.microbatch_count] if run.microbatches != AUTO else [2**power for power in range(32)]
    fitting = list(itertools.takewhile(lambda count: _divides(run, mesh, count), counts))
    if not fitting:  # as the run itself would be refused
        for stage in run.stages:
            check_batch(stage.batch_size, counts[0], mesh, run.mesh.rules)
    parts = 1
    for axis in run.mesh.rules.axes("batch"):
        parts *= mesh.shape[axis]
    tokens = max(stage.batch_size * stage.length for stage in run.stages) / parts

    def time(candidate: tuple[str, int]) -> float:
        level, count = candidate
        return _REMAT_TIMES[level] * (1 + _MICROBATCH_TOKENS * count / tokens)

    for level, count in sorted(itertools.product(REMATS if remat == AUTO else [remat], fitting), key=time):
        yield with_choices(run, {REMAT: Choice(level, ""), MICROBATCHES: Choice(count, "")})


def _divides(run: Run, mesh: AbstractMesh, count: int) -> bool:
    try:
        for index, stage in enumerate(run.stages):
            check_batch(stage.batch_size, count, mesh, run.mesh.rules)
            run.objective_of(index).check_rows(stage.batch_size // count, "a microbatch")
    except UserError:
        return False
    return True


def _scanned(run: Run) -> Run:
    return with_execution(run, layers="scan")


def _estimated(run: Run, devices: int, slices: int) -> int:
    """Estimate the bytes of the largest training step on each device."""
    return max(estimate(run, devices, slices=slices, stage=stage).total for stage in stages_of(run))
