"""Changes of a run that reduce its memory, with the lines of gin that make them."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from bertfam.sharding.mesh import MeshShape
from bertfam.sharding.rules import AXES
from bertfam.training.run import Run

# Levels of recomputation and their costs, the cheapest first.
REMATS = {
    "none": "recomputes nothing",
    "dots": "recomputes all but products with weights",
    "full": "recomputes every layer, about a third more FLOPs",
}


@dataclass(frozen=True)
class Change:
    """Change of a run.

    Attributes:
      apply: function that returns the changed run.
      lines: lines of gin that make the same change after the run's own files.
      cost: cost of the change, as text.
    """

    apply: Callable[[Run], Run]
    lines: tuple[str, ...]
    cost: str


def changes(run: Run, devices: int, slices: int = 1) -> Iterator[tuple[Change, ...]]:
    """Yield combinations of changes to try: single changes, then pairs and more, the cheapest first; some do not divide.

    Smaller chunks of logits, more recomputation and more microbatches come first, then sharding of the optimizer state, then of
    the parameters. None of them changes training. The last one does: a smaller batch.
    """
    sizes = dict(zip(AXES, run.mesh.sizes(devices, slices), strict=True))
    kinds = [_chunks(run), _remats(run), _microbatches(run), _meshes(run) if sizes["data"] > 1 else []]
    order = {change: place for place, change in enumerate(itertools.chain(*kinds))}
    combinations = [tuple(filter(None, chosen)) for chosen in itertools.product(*([None, *kind] for kind in kinds))]
    combinations.sort(key=lambda chosen: (len(chosen), sum(order[change] for change in chosen)))
    yield from combinations[1:]
    smallest = tuple(kind[-1] for kind in (kinds[0], kinds[1], kinds[3]) if kind)
    yield from ((*smallest, change) for change in _batches(run))


def with_remat(run: Run, remat: str) -> Run:
    """Return the run with another level of recomputation."""
    return with_execution(run, remat=remat)


def with_execution(run: Run, **changed: str) -> Run:
    """Return the run with other options of `Execution`."""
    objective: Any = run.objective
    return _with_objective(run, execution=dataclasses.replace(objective.execution, **changed))


def mesh_lines(shape: MeshShape, old: MeshShape | None = None) -> tuple[str, ...]:
    """Return gin lines for a mesh of this shape, without its rules: all axes, or those that differ from `old` or the defaults."""
    default = MeshShape()
    values = {
        name: value
        for name in (*AXES, "zero1")
        if (value := getattr(shape, name)) != getattr(default, name) or old is None or value != getattr(old, name)
    }
    return ("Run.mesh = @MeshShape()", *(f"MeshShape.{name} = {value}" for name, value in values.items()))


def _chunks(run: Run) -> list[Change]:
    chunk = getattr(run.objective, "chunk", 1) // 4
    line = f"{type(run.objective).__name__}.chunk = {chunk}"
    return [Change(partial(_with_objective, chunk=chunk), (line,), "computes logits in smaller pieces")] if chunk else []


def _remats(run: Run) -> list[Change]:
    levels = list(REMATS)
    return [
        Change(partial(with_remat, remat=level), (f'Execution.remat = "{level}"',), REMATS[level])
        for level in levels[levels.index(run.objective.execution.concrete.remat) + 1 :]
    ]


def _microbatches(run: Run) -> list[Change]:
    counts = [run.microbatch_count * 2**power for power in range(1, min(map(_batch_of, run.stages)).bit_length())]
    return [
        Change(
            partial(dataclasses.replace, microbatches=count),
            (f"Run.microbatches = {count}",),
            "computes the same batch in pieces, one after the other",
        )
        for count in counts
    ]


def _meshes(run: Run) -> list[Change]:
    """Return changes of a mesh with several devices along data."""
    splits = [
        (dataclasses.replace(run.mesh, zero1=True), "shards the optimizer state over data"),
        (dataclasses.replace(run.mesh, data=1, fsdp=-1, zero1=False), "shards parameters and gathers them where they are used"),
    ]
    return [
        Change(partial(dataclasses.replace, mesh=shape), mesh_lines(shape, run.mesh), cost)
        for shape, cost in splits
        if shape != run.mesh
    ]


def _batches(run: Run) -> Iterator[Change]:
    """Yield halved batch sizes if all stages have the same one; most run files bind it by a macro."""
    (batch, *others) = set(map(_batch_of, run.stages))
    while not others and (batch := batch // 2):
        stages = tuple(dataclasses.replace(stage, batch_size=batch) for stage in run.stages)
        for name in ("BATCH_SIZE", "Stage.batch_size"):
            yield Change(
                partial(dataclasses.replace, stages=stages),
                (f"{name} = {batch}",),
                "uses a smaller batch, which changes training",
            )


def _with_objective(run: Run, **changed: Any) -> Run:
    objective: Any = run.objective
    return dataclasses.replace(run, objective=dataclasses.replace(objective, **changed))


def _batch_of(stage: Any) -> int:
    return int(stage.batch_size)
