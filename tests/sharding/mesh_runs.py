"""Run by test_meshes.py in a process of its own, with eight simulated devices: one JSON object on stdout."""

import dataclasses
import hashlib
import json
import sys
from pathlib import Path

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
import tiny  # noqa: E402

from bertfam.data.text_data import TextData  # noqa: E402
from bertfam.sharding.mesh import MeshShape  # noqa: E402
from bertfam.training.checkpoints import Checkpoints  # noqa: E402
from bertfam.training.logs.metrics import means  # noqa: E402
from bertfam.training.optimizers import AdamW  # noqa: E402
from bertfam.training.prefetch import global_batch  # noqa: E402
from bertfam.training.run import Run  # noqa: E402
from bertfam.training.schedules import LinearDecay  # noqa: E402
from bertfam.training.stages import Stage  # noqa: E402
from bertfam.training.trainer import Trainer  # noqa: E402

STEPS, BATCH, LENGTH = 50, 8, 16
MESHES = ((1, 1, 1), (1, 2, 2), (2, 2, 2))
SAVED_ON = (1, 4, 2)


class Source:
    """Source of rows that records its requests."""

    def __init__(self):
        self.requests = []

    def rows(self, step, start, stop):
        self.requests.append((step, start, stop))
        return {name: value[start:stop] for name, value in batch_of(step).items()}


def batch_of(step):
    # Four batches take turns, so that the loss falls.
    return tiny.batch(BATCH, RUN.shape(0), seed=step % 4)


RUN = Run(
    objective=tiny.objective(dropout=0.1),
    data=TextData(),
    stages=(Stage(STEPS, LENGTH, BATCH),),
    optimizer=AdamW(LinearDecay(peak=3e-3, warmup_steps=5)),
)


def trainer_on(shape):
    data, fsdp, tensor = shape
    return Trainer(RUN, MeshShape(data, fsdp, tensor).build(jax.devices()[: data * fsdp * tensor]))


def digest(tree):
    """Return a hash of all bits of all arrays."""
    result = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        result.update(np.ascontiguousarray(jax.device_get(leaf)).tobytes())
    return result.hexdigest()


def losses(shape):
    trainer, source = trainer_on(shape), Source()
    state = trainer.new_state()
    program, first = trainer.stages[0], digest(state.params)
    step, _ = trainer.compile_step(0)
    values, rows_match = [], True
    for number in range(STEPS):
        batch = global_batch(source, number, BATCH, program.features, program.shardings)
        if number < 2:
            rows = batch_of(number)
            rows_match &= all(np.array_equal(jax.device_get(batch[name]), rows[name]) for name in program.features)
            shards = [
                (rows[name][shard.index], shard.data) for name in program.features for shard in batch[name].addressable_shards
            ]
            rows_match &= all(np.array_equal(*pair) for pair in shards)
        state, metrics = step(state, batch)
        values.append(means([metrics])["loss"])
    kernel = state.params["encoder"]["layers"]["feed_forward"]["intermediate"]["kernel"]
    return {
        "losses": values,
        "first": first,
        "fed": bool(rows_match),
        "asked": source.requests[:2],
        "share": kernel.sharding.shard_shape(kernel.shape),
        "kernel": kernel.shape,
    }


def update(shape, microbatches):
    """Return parameters after one update without dropout, on rows with very different numbers of predictions, and the loss."""
    run = dataclasses.replace(RUN, objective=tiny.objective(), microbatches=microbatches)
    data, fsdp, tensor = shape
    trainer = Trainer(run, MeshShape(data, fsdp, tensor).build(jax.devices()[: data * fsdp * tensor]))
    batch = tiny.batch(BATCH, RUN.shape(0), predictions=[2, 0, 1, 0, 2, 0, 0, 2])
    step, _ = trainer.compile_step(0)
    state, metrics = step(trainer.new_state(), jax.device_put(batch, trainer.stages[0].shardings))
    return jax.device_get(state.params), means([metrics])["loss"]


def microbatched():
    """Compare updates in microbatches, also over devices, with that of the whole batch on one device."""
    expected, loss = update((1, 1, 1), 1)
    differences = {}
    for shape, microbatches in (((2, 1, 1), 2), ((2, 1, 2), 4)):
        params, microbatch_loss = update(shape, microbatches)
        leaves = zip(jax.tree.leaves(params), jax.tree.leaves(expected), strict=True)
        difference = max(float(np.abs(left - right).max()) for left, right in leaves)
        differences[f"{'x'.join(map(str, shape))} in {microbatches}"] = {"difference": difference, "loss": microbatch_loss - loss}
    return differences


def checkpoint(directory):
    """Save on eight devices, and restore on one, two, three and eight."""
    trainer = trainer_on(SAVED_ON)
    state = trainer.new_state()
    # Other values than zeros, also in the optimizer's state.
    state = jax.tree.map(lambda leaf: (leaf + 1).astype(leaf.dtype), state)._replace(step=jax.numpy.array(7, "int32"))
    saved = Checkpoints(directory)
    saved.save(state)
    saved.close()
    restored = {}
    for count in (1, 2, 3, 8):
        opened = Checkpoints(directory, read_only=True)
        shape = SAVED_ON if count == 8 else (count, 1, 1)
        # Three devices divide no batch of eight rows.
        run = RUN if count != 3 else dataclasses.replace(RUN, stages=(Stage(STEPS, LENGTH, 9),))
        mesh = MeshShape(*shape).build(jax.devices()[:count])
        state_there = Trainer(run, mesh).restored(opened, 7)
        devices = {device for leaf in jax.tree.leaves(state_there) for device in leaf.sharding.device_set}
        restored[count] = {"digest": digest(state_there), "devices": len(devices)}
        opened.close()
    return {"saved": digest(state), "params": digest(state.params), "restored": restored}


if __name__ == "__main__":
    result = {"meshes": {"x".join(map(str, shape)): losses(shape) for shape in MESHES}, "checkpoint": checkpoint(sys.argv[1])}
    print(json.dumps(result | {"microbatched": microbatched()}))
