"""Training is the same on the meshes of gin_configs/meshes, and a checkpoint is restored on any other."""

import json

import jax
import mesh_runs
import numpy as np
import pytest
import xla
from fork_server import run_program
from mesh_runs import TURNS
from once import once

from bertfam.sharding.mesh import MeshShape
from bertfam.training.checkpoints import Checkpoints


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with run/ (a MODEL_DIR), results.json and stderr.txt of mesh_runs.py."""

    def make(directory):
        out, err = run_program(mesh_runs.__file__, directory / "run", environment=xla.device_environment(8))
        (directory / "results.json").write_text(out.splitlines()[-1])
        (directory / "stderr.txt").write_text(err)

    return once(tmp_path_factory, "meshes", make)


@pytest.fixture(scope="module")
def results(folder):
    return json.loads((folder / "results.json").read_text())


def test_losses_and_gradients_are_those_of_one_device(results):
    """The run has dropout and 20 updates in float32 on three presets, on 8, 8 and 2 devices."""
    alone = np.array(results["one"]["losses"])
    assert len(alone) == 20 and alone[-4:].mean() < alone[:4].mean() - 0.2
    assert list(results["turns"]) == [name for name, _, _ in TURNS]
    losses = [loss for turn in results["turns"].values() for loss in turn["losses"]]
    np.testing.assert_allclose(losses, alone, rtol=0, atol=1e-5)
    for name, turn in results["turns"].items():
        assert turn["difference"] < 1e-5, name


def test_every_preset_builds_its_mesh(results):
    shapes = {mesh: {axis: size for axis, size in shape.items() if size > 1} for mesh, shape in results["shapes"].items()}
    assert shapes == {
        "data": {"data": 8},
        "zero1": {"data": 8},
        "fsdp": {"fsdp": 8},
        "data_fsdp": {"fsdp": 8},
        "tensor": {"data": 2, "tensor": 4},
        "fsdp_tensor": {"fsdp": 2, "tensor": 4},
        "sequence": {"data": 2, "sequence": 4},
        "slices": {"replica": 2, "fsdp": 4},
    }
    assert {name: "data" in turn["optimizer"] for name, turn in results["turns"].items()} == {
        "slices": False,
        "fsdp_tensor": False,
        "zero1": True,
    }


def test_parameters_start_from_the_same_bits_and_are_split(results):
    turns = results["turns"]
    assert turns["slices"]["first"] == results["one"]["first"]
    assert {name: (turn["kernel"], turn["share"]) for name, turn in turns.items()} == {
        "slices": ([2, 32, 32], [2, 8, 32]),
        "fsdp_tensor": ([2, 32, 32], [2, 16, 8]),
        "zero1": ([2, 32, 32], [2, 32, 32]),
    }


def test_devices_hold_their_own_rows_of_the_batch(results):
    start = 0
    for (_, _, stop), turn in zip(TURNS, results["turns"].values(), strict=True):
        assert turn["rows"] == [True, True] and turn["requests"] == [[start, 0, 8], [start + 1, 0, 8]]
        start = stop


def test_checkpoint_is_restored_on_any_number_of_devices(folder, results):
    """The state comes from 8 devices to 8 others, from these to 2, and to 3 and 1."""
    for name, turn in results["turns"].items():
        assert turn["saved"] in (None, turn["first"]), name
    assert [turn["saved"] is None for turn in results["turns"].values()] == [True, False, False]
    assert results["three"] == results["saved"]["digest"]
    # This process has a single device.
    assert jax.device_count() == 1
    trainer = mesh_runs.trainer_on(MeshShape(), 1)
    checkpoints = Checkpoints(folder / "run", read_only=True)
    assert mesh_runs.digest(trainer.restored(checkpoints, mesh_runs.STEPS)) == results["saved"]["digest"]
    params = checkpoints.restore_params(mesh_runs.STEPS, trainer.abstract_state.params)
    assert mesh_runs.digest(params) == results["saved"]["params"]
    checkpoints.close()


def test_masked_tokens_are_split_over_the_axis_sequence(results):
    """Two data shards have four rows of three masked tokens each, shared by four devices: 4 x 1 logits, not 4 x 3."""
    assert mesh_runs.RUN.shape(0).predictions == 3
    rows = results["masked_head"]["sequence"]["rows"]
    assert 4 in rows and 12 not in rows
    # The gradients of the masked tokens are gathered, padded to four, and no whole sequence.
    width = mesh_runs.MODEL.hidden_size
    assert results["masked_head"]["sequence"]["gathered"] == [[4, 4, width]]


def test_logits_need_no_hidden_states_of_other_rows(results):
    """With fsdp the word table is gathered, a parameter, and not the masked tokens of all eight rows."""
    gathered = results["masked_head"]["fsdp_tensor"]["gathered"]
    assert gathered and not [shape for shape in gathered if shape[0] == mesh_runs.BATCH]


def test_no_involuntary_full_rematerialization(folder):
    assert "nvoluntary full rematerialization" not in (folder / "stderr.txt").read_text()
