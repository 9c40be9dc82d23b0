"""Training is the same on every mesh, and a checkpoint is restored on any other."""

import json
import os
import subprocess
import sys

import jax
import mesh_runs
import numpy as np
import pytest
import xla
from once import once

from bertfam.training.checkpoints import Checkpoints


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return MODEL_DIR and the results of mesh_runs.py."""

    def make(directory):
        done = subprocess.run(
            [sys.executable, mesh_runs.__file__, str(directory)],
            env=os.environ | xla.device_environment(8),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        (directory / "found.json").write_text(done.stdout.splitlines()[-1])

    directory = once(tmp_path_factory, "meshes", make)
    return directory, json.loads((directory / "found.json").read_text())


def test_losses_are_the_same_on_every_mesh(runs):
    """Meshes have data, fsdp and tensor axes; runs have dropout and 50 steps in float32."""
    _, results = runs
    alone = np.array(results["meshes"]["1x1x1"]["losses"])
    assert len(alone) == 50 and alone[-5:].mean() < alone[:5].mean() - 0.5
    for name, run in results["meshes"].items():
        np.testing.assert_allclose(run["losses"], alone, rtol=0, atol=1e-5, err_msg=name)


def test_parameters_start_from_the_same_bits_and_are_split(runs):
    _, results = runs
    assert len({run["first"] for run in results["meshes"].values()}) == 1
    shares = {name: (run["kernel"], run["share"]) for name, run in results["meshes"].items()}
    assert shares == {
        "1x1x1": ([2, 16, 32], [2, 16, 32]),
        "1x2x2": ([2, 16, 32], [2, 8, 16]),
        "2x2x2": ([2, 16, 32], [2, 8, 16]),
    }


def test_devices_hold_their_own_rows_of_the_batch(runs):
    _, results = runs
    for run in results["meshes"].values():
        assert run["fed"] and run["asked"] == [[0, 0, 8], [1, 0, 8]]


def test_microbatches_over_devices_give_the_same_update(runs):
    _, results = runs
    assert len(results["microbatched"]) == 2
    for case, values in results["microbatched"].items():
        assert values["difference"] < 1e-6 and abs(values["loss"]) < 1e-6, (case, values)


def test_checkpoint_of_eight_devices_is_restored_on_any_number(runs):
    directory, results = runs
    saved = results["checkpoint"]
    assert {count: entry["devices"] for count, entry in saved["restored"].items()} == {"1": 1, "2": 2, "3": 3, "8": 8}
    assert {entry["digest"] for entry in saved["restored"].values()} == {saved["saved"]}
    # This process has a single device.
    assert jax.device_count() == 1
    trainer = mesh_runs.trainer_on((1, 1, 1))
    checkpoints = Checkpoints(directory, read_only=True)
    assert mesh_runs.digest(trainer.restored(checkpoints, 7)) == saved["saved"]
    assert mesh_runs.digest(checkpoints.restore_params(7, trainer.abstract_state.params)) == saved["params"]
    checkpoints.close()
