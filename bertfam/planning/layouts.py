"""All ways to run a step on some devices, with what they are estimated to need."""

import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from jax.sharding import AbstractMesh

from bertfam.errors import UserError
from bertfam.planning.bounds import Bound
from bertfam.planning.changes import REMATS, with_remat
from bertfam.planning.estimate import Estimate, estimate
from bertfam.planning.programs import Program, stages_of
from bertfam.sharding.chips import Chip
from bertfam.sharding.mesh import MeshShape
from bertfam.sharding.placement import check_batch
from bertfam.sharding.rules import AXES
from bertfam.training.run import Run

# The tokens of shorter rows are not split.
_LONG = 2048
# The axis that talks in every layer: no more devices than a host has chips, at the most.
_MOST_TENSOR = 8


@dataclass(frozen=True)
class Layout:
    """A way to run a step on some devices.

    Attributes:
      run: with its mesh, recomputation and microbatches.
      estimated: what it needs, by estimate.
      at_least: its bound, by estimate.
      program: compiled; None: not yet.
    """

    run: Run
    estimated: Estimate
    at_least: Bound
    program: Program | None = None

    @property
    def bytes(self) -> int:
        """What it needs of each device, as far as is known."""
        return self.estimated.total if self.program is None else self.program.memory.total

    @property
    def order(self) -> tuple[float, float]:
        """The fastest is the least: by the bound, then by all that it is the largest of."""
        return self.at_least.seconds, sum(vars(self.at_least).values())


def layouts(run: Run, devices: int, slices: int, chip: Chip, memory: int) -> list[Layout]:
    """All layouts that divide and are estimated to fit, in all stages, the one with the lowest estimated bound first.

    Args:
      run: sized; bounds are those of its `heaviest` stage.
      devices: how many there are.
      slices: how many they are of.
      chip: what they are, or are parts of.
      memory: bytes of one.
    """
    found = []
    stage = heaviest(run)
    for mesh, remat in itertools.product(_meshes(run, devices, slices), REMATS):
        parts = AbstractMesh(mesh.sizes(devices, slices), AXES)
        for count in (2**power for power in range(run.stages[stage].batch_size.bit_length())):
            changed = dataclasses.replace(with_remat(run, remat), mesh=mesh, microbatches=count)
            try:
                for each in run.stages:
                    check_batch(each.batch_size, count, parts, mesh.rules)
                estimates = {each: estimate(changed, devices, slices=slices, stage=each) for each in stages_of(run)}
            except UserError:  # does not divide, nor will more microbatches
                break
            if all(each.total <= memory for each in estimates.values()):
                found.append(Layout(changed, estimates[stage], estimates[stage].bound(chip)))
    return sorted(found, key=lambda layout: layout.order)


def described(run: Run) -> str:
    """A layout in words: fsdp 8 x tensor 4, remat full, 4 microbatches."""
    axes = [f"{axis} {size}" for axis in AXES if (size := getattr(run.mesh, axis)) > 1]
    zero1 = ", zero1" if run.mesh.zero1 else ""
    return (
        f"{' x '.join(axes) or '1 device'}{zero1}, remat {run.objective.execution.remat}, "
        f"{run.microbatches} microbatch{'' if run.microbatches == 1 else 'es'}"
    )


def heaviest(run: Run) -> int:
    """The stage whose step has most FLOPs."""
    return max(stages_of(run), key=lambda stage: run.stages[stage].batch_size * run.objective.flops(run.shape(stage)))


def _meshes(run: Run, devices: int, slices: int) -> Iterator[MeshShape]:
    """All shapes with the run's rules that are worth a look."""
    within = devices // slices
    for sequence, tensor in itertools.product(_divisors(within), _divisors(within)):
        is_long = max(stage.length for stage in run.stages) >= _LONG
        if tensor > _MOST_TENSOR or (sequence > 1 and not is_long) or within % (sequence * tensor):
            continue
        for fsdp in _divisors(within // (sequence * tensor)):
            data = within // (sequence * tensor * fsdp)
            for zero1 in (False, True) if data > 1 else (False,):
                yield MeshShape(
                    data=data, fsdp=fsdp, tensor=tensor, sequence=sequence, replica=slices, rules=run.mesh.rules, zero1=zero1
                )


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]
