"""Run by test_meshes.py in a process of its own, with eight simulated devices: one JSON object on stdout.

    mesh_runs.py FOLDER

A run of the encoder goes through the presets one after another, resumed from a checkpoint on each, and is compared with a run on
one device. The other objectives are compared in tests/objectives/objective_meshes.py.
"""

import dataclasses
import gc
import hashlib
import json
import math
import re
import sys
from pathlib import Path

import jax
import numpy as np
from flax import linen as nn
from jax.sharding import NamedSharding, PartitionSpec

sys.path.insert(0, str(Path(__file__).parents[1]))
import tiny  # noqa: E402
import xla  # noqa: E402

from bertfam.config import load  # noqa: E402
from bertfam.config.paths import packaged_folder  # noqa: E402
from bertfam.data.rows.sentence_pairs import SentencePairs  # noqa: E402
from bertfam.data.text_data import TextData  # noqa: E402
from bertfam.models.bert import BertConfig  # noqa: E402
from bertfam.objectives.bert import MlmNsp  # noqa: E402
from bertfam.sharding.mesh import MeshShape  # noqa: E402
from bertfam.training.checkpoints import Checkpoints  # noqa: E402
from bertfam.training.logs.metrics import means  # noqa: E402
from bertfam.training.optimizers import AdamW  # noqa: E402
from bertfam.training.prefetch import global_batch  # noqa: E402
from bertfam.training.run import Run  # noqa: E402
from bertfam.training.schedules import ConstantRate  # noqa: E402
from bertfam.training.stages import Stage  # noqa: E402
from bertfam.training.trainer import Trainer  # noqa: E402

BATCH, LENGTH = 8, 16
# Presets in turn, with the number of devices and the last step of each. Those without a turn are special cases of these, except
# "sequence", whose axis the meshes of tests/objectives/objective_meshes.py have.
TURNS = (("slices", 8, 7), ("fsdp_tensor", 8, 14), ("zero1", 2, 20))
STEPS = TURNS[-1][-1]
MODEL = BertConfig(
    vocab_size=tiny.VOCABULARY,
    num_layers=2,
    hidden_size=32,
    num_heads=8,
    feed_forward_size=32,
    max_length=LENGTH,
    dropout_rate=0.1,
)
RUN = Run(
    objective=MlmNsp(MODEL),
    data=TextData(rows=SentencePairs()),
    stages=(Stage(STEPS, LENGTH, BATCH),),
    optimizer=AdamW(ConstantRate(peak=3e-3, warmup_steps=5), clip_norm=None),
)


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


def preset(name):
    mesh = load([f"meshes/{name}.gin"]).build("MeshShape")
    return dataclasses.replace(mesh, replica=2) if name == "slices" else mesh


def trainer_on(mesh, count):
    return Trainer(dataclasses.replace(RUN, mesh=mesh), mesh.build(jax.devices()[:count]))


def digest(tree):
    """Return a hash of all bits of all arrays."""
    result = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        result.update(np.ascontiguousarray(jax.device_get(leaf)).tobytes())
    return result.hexdigest()


def devices_hold_their_rows(batch, step):
    """Return True if the whole batch and each device's part of it are the rows of the step."""
    rows = batch_of(step)
    shards = [(rows[name][shard.index], shard.data) for name in batch for shard in batch[name].addressable_shards]
    return all(np.array_equal(*pair) for pair in [*shards, *((rows[name], batch[name]) for name in batch)])


def trained(trainer, state, stop):
    """Return the state after the updates up to step `stop`, and a report on losses and rows."""
    step, _ = trainer.compile_step(0)
    program, source = trainer.stages[0], Source()
    start, losses, rows = int(state.step), [], []
    for number in range(start, stop):
        batch = global_batch(source, number, BATCH, program.features, program.shardings)
        if number < start + 2:
            rows.append(devices_hold_their_rows(batch, number))
        state, metrics = step(state, batch, number)
        losses.append(means([metrics])["loss"])
    return state, {"losses": losses, "rows": rows, "requests": source.requests[:2]}


def moments(state):
    """Return the first moments, float32 means of the gradients of all updates."""
    (adam,) = (part for part in jax.tree.leaves(state.opt_state, is_leaf=lambda part: hasattr(part, "mu")) if hasattr(part, "mu"))
    return jax.device_get(jax.tree.leaves(adam.mu))


def split_axes(trainer):
    """Return the mesh axes that the optimizer's state is split over."""
    leaves = jax.tree.leaves(trainer.shardings.opt_state)
    return sorted({axis for leaf in leaves for axes in leaf.spec if axes for axis in np.atleast_1d(axes)})


def run_in_turns(folder, expected):
    """Return a report for each turn of a run that is resumed on one preset after another."""
    reports, saved, start = {}, None, 0
    for name, count, stop in TURNS:
        trainer, checkpoints = trainer_on(preset(name), count), Checkpoints(folder)
        state = trainer.new_state() if saved is None else trainer.restored(checkpoints, start)
        report = {"first": digest(state), "saved": saved}
        state, trained_report = trained(trainer, state, stop)
        kernel = state.params["encoder"]["layers"]["feed_forward"]["intermediate"]["kernel"]
        pairs = zip(moments(state), expected[stop], strict=True)
        difference = max(float(np.abs(left - right).max()) for left, right in pairs)
        checkpoints.save(state)
        checkpoints.close()
        saved, start = digest(state), stop
        reports[name] = report | trained_report | {"difference": difference}
        reports[name] |= {"share": kernel.sharding.shard_shape(kernel.shape), "kernel": kernel.shape}
        reports[name]["optimizer"] = split_axes(trainer)
    return reports, {"digest": saved, "params": digest(state.params)}


def digest_on_three_devices(folder, trainer):
    """Restore the last checkpoint on three devices, which divide no axis of the arrays; return its digest."""
    sharding = NamedSharding(MeshShape(3).build(jax.devices()[:3]), PartitionSpec())
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), trainer.abstract_state)
    checkpoints = Checkpoints(folder, read_only=True)
    result = digest(checkpoints.restore(STEPS, like))
    checkpoints.close()
    return result


def masked_head(mesh):
    """Describe the gradient of the masked-token loss, compiled for a mesh.

    Returns:
      The numbers of rows of all arrays that have the vocabulary as an axis, and the shapes of all gathered arrays.
    """
    trainer = trainer_on(mesh, 8)
    stage, objective = trainer.stages[0], RUN.objective
    axes = NamedSharding(trainer.mesh, PartitionSpec(mesh.rules.batch, mesh.rules.length))
    hidden = jax.ShapeDtypeStruct((BATCH, LENGTH, MODEL.hidden_size), np.float32, sharding=axes)
    batch = {
        name: jax.ShapeDtypeStruct((BATCH, *spec.shape), spec.dtype, sharding=stage.shardings[name])
        for name, spec in stage.features.items()
    }
    with jax.set_mesh(trainer.mesh), nn.logical_axis_rules(mesh.rules.items()):
        gradient = jax.grad(lambda params, hidden, batch: objective.masked_loss(params, hidden, batch)[0], argnums=(0, 1))
        text = jax.jit(gradient).lower(trainer.abstract_state.params, hidden, batch).compile().as_text() or ""
    words = trainer.abstract_state.params["mlm_head"]["bias"].size
    shapes = {tuple(map(int, sizes.split(","))) for sizes in re.findall(r" = f32\[([\d,]+)\]", text)}
    gathered = {tuple(map(int, sizes.split(","))) for sizes in re.findall(r" = f32\[([\d,]+)\]\S* all-gather", text)}
    return {"rows": sorted({math.prod(shape) // words for shape in shapes if words in shape}), "gathered": sorted(gathered)}


def main(folder):
    one = trainer_on(MeshShape(), 1)
    state = one.new_state()
    first, losses, expected = digest(state), [], {}
    step, _ = one.compile_step(0)
    for number in range(STEPS):
        state, metrics = step(state, jax.device_put(batch_of(number), one.stages[0].shardings), number)
        losses.append(means([metrics])["loss"])
        expected[number + 1] = moments(state)
    turns, saved = run_in_turns(folder, expected)
    names = sorted(path.stem for path in (packaged_folder() / "meshes").iterdir())
    result = {
        "one": {"first": first, "losses": losses},
        "turns": turns,
        "saved": saved,
        "three": digest_on_three_devices(folder, one),
        "masked_head": {name: masked_head(preset(name)) for name in ("sequence", "fsdp_tensor")},
        "shapes": {name: preset(name).build().shape for name in names},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    xla.share_cache()
    gc.set_threshold(100_000, 50, 1000)  # as in conftest.py
    main(sys.argv[1])
