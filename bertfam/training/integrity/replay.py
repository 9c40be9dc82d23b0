"""Updates recomputed from a checkpoint, on several arrangements of the same devices; `mismatches` compares the results."""

import dataclasses
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import jax
import numpy as np

from bertfam.data.rows.batches import BatchSource
from bertfam.training.integrity.digest import Digest
from bertfam.training.run import Run
from bertfam.training.stages import locate
from bertfam.training.state import TrainState
from bertfam.training.step import Metrics
from bertfam.training.trainer import Trainer


@dataclass
class Replayed:
    """Results of one arrangement, by the step that an update leads to.

    Attributes:
      devices: in the mesh's order.
      platform: theirs: "cpu", "gpu", "tpu".
      metrics: of every update from the checkpoint on.
      digests: of the first update, where what was restored shows, of the last, and of those that the run recorded.
      again: the last one's, computed a second time.
      alone: of the last update, where every group of devices computes the same rows by itself; None where it was not computed.
    """

    devices: list[str]
    platform: str
    metrics: dict[int, Metrics] = field(default_factory=dict)
    digests: dict[int, Digest] = field(default_factory=dict)
    again: Digest | None = None
    alone: Digest | None = None


def rotated(mesh: jax.sharding.Mesh, places: int) -> jax.sharding.Mesh:
    """Return a mesh of the same devices, rotated by some places."""
    return jax.sharding.Mesh(np.roll(mesh.devices.reshape(-1), -places).reshape(mesh.devices.shape), mesh.axis_names)


def single_group_run(run: Run, mesh: jax.sharding.Mesh) -> Run | None:
    """Return the run with one device group's share of each batch, replicated on all groups; None if there is one group."""
    parts = math.prod(mesh.shape[axis] for axis in run.mesh.rules.axes("batch"))
    rules = dataclasses.replace(run.mesh.rules, batch=None)
    stages = tuple(dataclasses.replace(stage, batch_size=stage.batch_size // parts) for stage in run.stages)
    same = dataclasses.replace(run, mesh=dataclasses.replace(run.mesh, rules=rules), stages=stages)
    return same if parts > 1 else None


def replay(
    trainer: Trainer,
    state: TrainState,
    source: BatchSource,
    update: int,
    recorded: Collection[int],
    alone: Trainer | None,
    tell: Callable[[int], None],
) -> Replayed:
    """Recompute the updates from a state on, up to the one that leads to step `update`.

    Args:
      trainer: of the run, on one arrangement of the devices.
      state: of a checkpoint; it is used up.
      source: the run's batches.
      update: the last.
      recorded: the updates whose digests are computed, besides the first and the last.
      alone: of `single_group_run`, on the same arrangement.
      tell: is told every step that was reached.
    """
    devices = list(trainer.mesh.devices.flat)
    found = Replayed([str(device) for device in devices], devices[0].platform)
    start, compiled = int(state.step), -1
    for step in range(start, update):
        stage, _ = locate(trainer.run.stages, step)
        if stage != compiled:
            (train_step, _), compiled = trainer.compile_step(stage), stage
        batch = trainer.stages[stage].batch(source, step)
        last = step + 1 == update
        if step == start or last or step + 1 in recorded:
            found.digests[step + 1] = trainer.digest(state, batch)
        if last:
            found.again = trainer.digest(state, batch)
            found.alone = alone.digest(state, alone.stages[stage].batch(source, step)) if alone else None
        state, metrics = train_step(state, batch)
        found.metrics[step + 1] = jax.device_get(metrics)
        tell(step + 1)
    return found
