"""Updates recomputed from a checkpoint on permuted devices; `mismatches` compares the results."""

import dataclasses
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from bertfam.data.rows.batches import BatchSource
from bertfam.kernels.attention.choice import choices
from bertfam.training.integrity.digest import Digest
from bertfam.training.run import Run
from bertfam.training.stages import locate
from bertfam.training.state import TrainState
from bertfam.training.step import Metrics
from bertfam.training.trainer import Trainer


@dataclass
class Replayed:
    """Results of one arrangement of the devices, by the step that an update leads to.

    Attributes:
      devices: names of the devices, in the mesh's order.
      platform: platform of the devices: "cpu", "gpu" or "tpu".
      metrics: metrics of every update since the checkpoint.
      digests: digests of the first update, which shows the restored values, of the last one, and of those that the run recorded.
      again: digest of the last update, computed a second time.
      alone: digest of the last update where each group of devices computes the same rows; None if it was not computed.
      attention: names of the attention backends of the updates.
    """

    devices: list[str]
    platform: str
    metrics: dict[int, Metrics] = field(default_factory=dict)
    digests: dict[int, Digest] = field(default_factory=dict)
    again: Digest | None = None
    alone: Digest | None = None
    attention: set[str] = field(default_factory=set)


def rotated(mesh: jax.sharding.Mesh, places: int) -> jax.sharding.Mesh:
    """Return the mesh with its devices rotated by `places` positions."""
    return jax.sharding.Mesh(np.roll(mesh.devices.reshape(-1), -places).reshape(mesh.devices.shape), mesh.axis_names)


def single_group_run(run: Run, mesh: jax.sharding.Mesh) -> Run | None:
    """Return the run in which all device groups compute the share of one group; None if there is only one group."""
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
    on_step: Callable[[int], None],
) -> Replayed:
    """Recompute the updates after a state, up to the one that leads to step `update`.

    Args:
      trainer: trainer of the run, on one arrangement of the devices.
      state: state of a checkpoint; it is donated.
      source: batches of the run.
      update: step that the last update leads to.
      recorded: steps whose digests are computed, besides the first and the last.
      alone: trainer of `single_group_run` on the same arrangement; None if there is only one group.
      on_step: called with each step that is reached.
    """
    devices = list(trainer.mesh.devices.flat)
    result = Replayed([str(device) for device in devices], devices[0].platform)
    start, compiled = int(state.step), dict[tuple[int, int | None], Callable[..., Any]]()
    for step in range(start, update):
        stage, _ = locate(trainer.run.stages, step)
        length = source.row_length(step)
        if (stage, length) not in compiled:
            with choices() as chosen:
                compiled[stage, length], _ = trainer.compile_step(stage, length)
            result.attention.update(reason.partition(":")[0] for _, reason in chosen)
        batch = trainer.program(stage, length).batch(source, step)
        last = step + 1 == update
        if step == start or last or step + 1 in recorded:
            result.digests[step + 1] = trainer.digest(state, batch, stage)
        if last:
            result.again = trainer.digest(state, batch, stage)
            result.alone = alone.digest(state, alone.program(stage, length).batch(source, step), stage) if alone else None
        state, metrics = compiled[stage, length](state, batch, step)
        result.metrics[step + 1] = jax.device_get(metrics)
        on_step(step + 1)
    return result
