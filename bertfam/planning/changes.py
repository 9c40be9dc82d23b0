"""Changes of a run that need less memory: what they make of it, and the lines of gin that do the same."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from bertfam.sharding.mesh import MeshShape
from bertfam.sharding.rules import AXES
from bertfam.training.run import Run

# What is recomputed, the cheaper first.
REMATS = {
    "none": "recomputes nothing",
    "dots": "recomputes all but products with weights",
    "full": "recomputes every layer, about a third more FLOPs",
}


@dataclass(frozen=True)
class Change:
    """A change.

    Attributes:
      apply: makes it.
      lines: of gin, which make it when they come after a run's own.
      cost: what it costs, in words.
    """

    apply: Callable[[Run], Run]
    lines: tuple[str, ...]
    cost: str


def changes(run: Run, devices: int, slices: int = 1) -> Iterator[tuple[Change, ...]]:
    """What to try, one after another: single changes, pairs, and more; the cheaper first. Some do not divide.

    A smaller chunk of logits, more recomputation and more microbatches change nothing that is learned; then the optimizer's state
    is split, then parameters; last comes a smaller batch.
    """
    sizes = dict(zip(AXES, run.mesh.sizes(devices, slices), strict=True))
    kinds = [_chunks(run), _remats(run), _microbatches(run), _meshes(run) if sizes["data"] > 1 else []]
    order = {change: place for place, change in enumerate(itertools.chain(*kinds))}
    found = [tuple(filter(None, each)) for each in itertools.product(*([None, *kind] for kind in kinds))]
    found.sort(key=lambda each: (len(each), sum(order[change] for change in each)))
    yield from found[1:]
    least = tuple(kind[-1] for kind in (kinds[0], kinds[1], kinds[3]) if kind)
    yield from ((*least, change) for change in _batches(run))


def with_remat(run: Run, remat: str) -> Run:
    """The run with something else recomputed."""
    objective: Any = run.objective
    return _with_objective(run, execution=dataclasses.replace(objective.execution, remat=remat))


def mesh_lines(shape: MeshShape, old: MeshShape | None = None) -> tuple[str, ...]:
    """Lines that make a mesh of this shape: all of it, or what differs from another and from the defaults; but for its rules."""
    default = MeshShape()
    told = {
        name: value
        for name in (*AXES, "zero1")
        if (value := getattr(shape, name)) != getattr(default, name) or old is None or value != getattr(old, name)
    }
    return ("Run.mesh = @MeshShape()", *(f"MeshShape.{name} = {value}" for name, value in told.items()))


def _chunks(run: Run) -> list[Change]:
    chunk = getattr(run.objective, "chunk", 1) // 4
    line = f"{type(run.objective).__name__}.chunk = {chunk}"
    return [Change(partial(_with_objective, chunk=chunk), (line,), "computes logits in smaller pieces")] if chunk else []


def _remats(run: Run) -> list[Change]:
    levels = list(REMATS)
    return [
        Change(partial(with_remat, remat=level), (f'Execution.remat = "{level}"',), REMATS[level])
        for level in levels[levels.index(run.objective.execution.remat) + 1 :]
    ]


def _microbatches(run: Run) -> list[Change]:
    counts = [run.microbatches * 2**power for power in range(1, min(map(_batch_of, run.stages)).bit_length())]
    return [
        Change(
            partial(dataclasses.replace, microbatches=count),
            (f"Run.microbatches = {count}",),
            "computes the same batch in pieces, one after another",
        )
        for count in counts
    ]


def _meshes(run: Run) -> list[Change]:
    """Of a mesh with several devices along data."""
    splits = [
        (dataclasses.replace(run.mesh, zero1=True), "splits the optimizer's state over data"),
        (dataclasses.replace(run.mesh, data=1, fsdp=-1, zero1=False), "splits parameters, gathering them where they are used"),
    ]
    return [
        Change(partial(dataclasses.replace, mesh=shape), mesh_lines(shape, run.mesh), cost)
        for shape, cost in splits
        if shape != run.mesh
    ]


def _batches(run: Run) -> Iterator[Change]:
    """Halves, where all stages have one batch size, which most run files name by a macro."""
    (batch, *others) = set(map(_batch_of, run.stages))
    while not others and (batch := batch // 2):
        stages = tuple(dataclasses.replace(stage, batch_size=batch) for stage in run.stages)
        for name in ("BATCH_SIZE", "Stage.batch_size"):
            yield Change(
                partial(dataclasses.replace, stages=stages),
                (f"{name} = {batch}",),
                "takes a smaller batch, which changes what is learned",
            )


def _with_objective(run: Run, **changed: Any) -> Run:
    objective: Any = run.objective
    return dataclasses.replace(run, objective=dataclasses.replace(objective, **changed))


def _batch_of(stage: Any) -> int:
    return int(stage.batch_size)
