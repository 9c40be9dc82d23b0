"""Run by test_presets.py in a process of its own, with eight simulated devices: one JSON object on stdout.

    preset_runs.py FOLDER [all]

With `all` every model is trained on every preset, which takes some minutes; otherwise only the encoder is. All runs start from
the state of one device; test_meshes.py tests that it is the same on every mesh.
"""

import dataclasses
import json
import sys
from pathlib import Path

import jax
import numpy as np

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "objectives")]
import tiny  # noqa: E402
from objective_meshes import BATCH, SPAN_TEXT, TEXT, Source  # noqa: E402

from bertfam.config import load  # noqa: E402
from bertfam.corruption.next_tokens import NextTokens  # noqa: E402
from bertfam.data.rows.running_text import Chunks  # noqa: E402
from bertfam.data.rows.sentence_pairs import SentencePairs  # noqa: E402
from bertfam.data.text_data import TextData  # noqa: E402
from bertfam.models.bert import BertConfig  # noqa: E402
from bertfam.models.electra import ElectraConfig  # noqa: E402
from bertfam.models.gpt2 import Gpt2Config  # noqa: E402
from bertfam.models.t5 import T5Config  # noqa: E402
from bertfam.objectives.bert import MlmNsp  # noqa: E402
from bertfam.objectives.causal_lm import CausalLm  # noqa: E402
from bertfam.objectives.electra import Electra  # noqa: E402
from bertfam.objectives.sequence_to_sequence import SequenceToSequence  # noqa: E402
from bertfam.sharding.mesh import MeshShape  # noqa: E402
from bertfam.training.checkpoints import Checkpoints  # noqa: E402
from bertfam.training.logs.metrics import means  # noqa: E402
from bertfam.training.optimizers import AdamW  # noqa: E402
from bertfam.training.prefetch import global_batch  # noqa: E402
from bertfam.training.run import Run  # noqa: E402
from bertfam.training.schedules import ConstantRate  # noqa: E402
from bertfam.training.stages import Stage  # noqa: E402
from bertfam.training.trainer import Trainer  # noqa: E402

STEPS = 20
LENGTH = 32  # T5's targets have 8 tokens then, which four devices can share
FEW = ("fsdp_tensor", "sequence")
PRESETS = ("data", "zero1", "fsdp", "data_fsdp", "tensor", "fsdp_tensor", "sequence", "slices")
# Runs on 8, 4 and 2 devices, each resumed from the checkpoint of the one before.
CHAIN = ((8, MeshShape(data=2, fsdp=2, tensor=2), 8), (4, MeshShape(fsdp=2, sequence=2), 14), (2, MeshShape(zero1=True), STEPS))
SIZES = {"vocab_size": tiny.VOCABULARY, "num_layers": 2, "hidden_size": 32, "num_heads": 8, "feed_forward_size": 32}
LONGEST = {"max_length": LENGTH, "dropout_rate": 0.1}
CASES = {
    "encoder": (MlmNsp(BertConfig(**SIZES, **LONGEST)), TextData(rows=SentencePairs())),
    "decoder": (CausalLm(Gpt2Config(**SIZES, **LONGEST), chunk=8), TextData(rows=Chunks(), corruption=NextTokens())),
    "encoder_decoder": (
        SequenceToSequence(T5Config(**SIZES, head_dim=4, dropout_rate=0.1), z_loss=1e-2, label_smoothing=0.1, chunk=8),
        SPAN_TEXT,
    ),
    "electra": (Electra(ElectraConfig(**SIZES, **LONGEST, embedding_size=16), generator_width=0.5), TEXT),
}


def run_of(name):
    objective, data = CASES[name]
    return Run(
        objective=objective,
        data=data,
        stages=(Stage(STEPS, LENGTH, BATCH),),
        optimizer=AdamW(ConstantRate(peak=1e-3), clip_norm=None),
    )


def trainer_on(name, mesh, count):
    return Trainer(dataclasses.replace(run_of(name), mesh=mesh), mesh.build(jax.devices()[:count]))


def preset(name):
    mesh = load([f"meshes/{name}.gin"]).build("MeshShape")
    return dataclasses.replace(mesh, replica=2) if name == "slices" else mesh


def trained(trainer, state, steps):
    """Return the state after the updates up to `steps`, and their losses."""
    step, _ = trainer.compile_step(0)
    program, source, losses = trainer.stages[0], Source(trainer.run), []
    for number in range(int(state.step), steps):
        state, metrics = step(state, global_batch(source, number, BATCH, program.features, program.shardings))
        losses.append(means([metrics])["loss"])
    return state, losses


def gradients(state):
    """Return the first moments, float32 means of the gradients of all updates, by the parameter's path."""
    (moments,) = (
        part for part in jax.tree.leaves(state.opt_state, is_leaf=lambda part: hasattr(part, "mu")) if hasattr(part, "mu")
    )
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(moments.mu)}


def run_on_mesh(name, mesh, count, first=None, alone=None):
    """Return the first state, the gradients, and a report on losses, mesh and the gradients' distance from one device's."""
    trainer = trainer_on(name, mesh, count)
    first = jax.device_get(trainer.new_state()) if first is None else first
    state, losses = trained(trainer, jax.device_put(first, trainer.shardings), STEPS)
    moments = gradients(state)
    distances = {path: float(np.abs(moments[path] - (alone or moments)[path]).max()) for path in moments}
    split = {
        axis for leaf in jax.tree.leaves(state.opt_state) for axes in leaf.sharding.spec if axes for axis in np.atleast_1d(axes)
    }
    return (
        first,
        moments,
        {"losses": losses, "off": max(distances.values()), "shape": dict(trainer.mesh.shape), "optimizer": sorted(split)},
    )


def losses_of_chain(folder):
    """Return the losses of a run that resumes on fewer and fewer devices."""
    losses = []
    for count, mesh, steps in CHAIN:
        trainer, checkpoints = trainer_on("encoder", mesh, count), Checkpoints(folder)
        state = trainer.restored(checkpoints, len(losses)) if losses else trainer.new_state()
        state, new_losses = trained(trainer, state, steps)
        losses += new_losses
        checkpoints.save(state)
        checkpoints.close()
    return losses


def main():
    results = {}
    for name in CASES:
        first, alone, report = run_on_mesh(name, MeshShape(), 1)
        names = PRESETS if name == "encoder" or sys.argv[2:] == ["all"] else FEW
        results[name] = {"alone": report} | {
            mesh_name: run_on_mesh(name, preset(mesh_name), 8, first, alone)[2] for mesh_name in names
        }
    print(json.dumps({"presets": results, "chained": losses_of_chain(sys.argv[1])}))


if __name__ == "__main__":
    main()
