"""Layouts of a training step on a number of devices, with estimates of memory and time."""

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
from bertfam.plurals import plural
from bertfam.sharding.chips import Chip
from bertfam.sharding.mesh import MeshShape
from bertfam.sharding.named_shardings import check_batch
from bertfam.sharding.rules import AXES
from bertfam.training.run import Run

# Shorter rows are not sharded over sequence.
_MIN_LENGTH = 2048
# Largest size of the axis tensor, which communicates in every layer: the number of chips of a host.
_MAX_TENSOR = 8


@dataclass(frozen=True)
class Layout:
    """Mesh, recomputation and microbatches of a training step.

    Attributes:
      run: run with these settings.
      estimated: estimate of a step.
      bound: lower bound on the time of a step, estimated or from the compiled program.
      program: compiled program; None before it is compiled.
    """

    run: Run
    estimated: Estimate
    bound: Bound
    program: Program | None = None

    @property
    def bytes(self) -> int:
        """Memory on each device, as compiled or else estimated."""
        return self.estimated.total if self.program is None else self.program.memory.total

    @property
    def order(self) -> tuple[float, float]:
        """Sort key, the fastest first: the bound, then the sum over all resources."""
        return self.bound.seconds, sum(vars(self.bound).values())


def layouts(run: Run, devices: int, slices: int, chip: Chip, memory: int) -> list[Layout]:
    """Return all layouts that divide and are estimated to fit in all stages, the lowest estimated bound first.

    Args:
      run: sized run; the bounds are for its `heaviest` stage.
      devices: number of devices.
      slices: number of slices that they belong to.
      chip: chip that the devices are, or are part of.
      memory: bytes that a device has.
    """
    fitting = []
    stage = heaviest(run)
    for mesh, remat in itertools.product(_meshes(run, devices, slices), REMATS):
        parts = AbstractMesh(mesh.sizes(devices, slices), AXES)
        for count in (2**power for power in range(run.stages[stage].batch_size.bit_length())):
            changed = dataclasses.replace(with_remat(run, remat), mesh=mesh, microbatches=count)
            try:
                for batch_size in (stage.batch_size for stage in run.stages):
                    check_batch(batch_size, count, parts, mesh.rules)
                estimates = {index: estimate(changed, devices, slices=slices, stage=index) for index in stages_of(run)}
            except UserError:  # the batch does not divide, nor does it into more microbatches
                break
            if all(estimated.total <= memory for estimated in estimates.values()):
                fitting.append(Layout(changed, estimates[stage], estimates[stage].bound(chip)))
    return sorted(fitting, key=lambda layout: layout.order)


def describe_layout(run: Run) -> str:
    """Describe a layout: fsdp 8 x tensor 4, remat full, 4 microbatches."""
    axes = [f"{axis} {size}" for axis in AXES if (size := getattr(run.mesh, axis)) > 1]
    zero1 = ", zero1" if run.mesh.zero1 else ""
    return (
        f"{' x '.join(axes) or '1 device'}{zero1}, remat {run.objective.execution.concrete.remat}, "
        f"{plural(run.microbatch_count, 'microbatch', 'microbatches')}"
    )


def heaviest(run: Run) -> int:
    """Return the index of the stage whose step has the most FLOPs."""
    return max(stages_of(run), key=lambda stage: run.stages[stage].batch_size * run.row_flops(stage))


def _meshes(run: Run, devices: int, slices: int) -> Iterator[MeshShape]:
    """Yield all mesh shapes that are worth estimating, with the run's rules."""
    within = devices // slices
    for sequence, tensor in itertools.product(_divisors(within), _divisors(within)):
        is_long = max(stage.length for stage in run.stages) >= _MIN_LENGTH
        if tensor > _MAX_TENSOR or (sequence > 1 and not is_long) or within % (sequence * tensor):
            continue
        for fsdp in _divisors(within // (sequence * tensor)):
            data = within // (sequence * tensor * fsdp)
            for zero1 in (False, True) if data > 1 else (False,):
                yield MeshShape(
                    data=data, fsdp=fsdp, tensor=tensor, sequence=sequence, replica=slices, rules=run.mesh.rules, zero1=zero1
                )


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]
