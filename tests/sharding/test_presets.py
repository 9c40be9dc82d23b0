"""Losses and gradients on all meshes of gin_configs/meshes, and of a run that moves to fewer devices, are one device's."""

import json
import os
import subprocess
import sys

import numpy as np
import preset_runs
import pytest
import xla
from once import once

from bertfam.config.paths import packaged_folder


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    def make(directory):
        done = subprocess.run(
            [sys.executable, preset_runs.__file__, str(directory / "run")],
            env=os.environ | xla.device_environment(8),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        (directory / "found.json").write_text(done.stdout.splitlines()[-1])
        (directory / "stderr.txt").write_text(done.stderr)

    directory = once(tmp_path_factory, "presets", make)
    return json.loads((directory / "found.json").read_text()), (directory / "stderr.txt").read_text()


@pytest.mark.parametrize("name", preset_runs.CASES)
def test_losses_and_gradients_are_those_of_one_device(results, name):
    """There are 20 updates in float32, with dropout. ELECTRA's loss is about 40, which scales the tolerance."""
    runs = dict(results[0]["presets"][name])
    alone = runs.pop("alone")
    assert len(alone["losses"]) == 20 and alone["off"] == 0
    assert len(runs) >= 2
    scale = max(1, max(alone["losses"]) / 5)
    for mesh, run in runs.items():
        np.testing.assert_allclose(run["losses"], alone["losses"], rtol=0, atol=1e-5 * scale, err_msg=mesh)
        assert run["off"] < 1e-5, mesh


def test_every_preset_runs_on_its_mesh(results):
    runs = results[0]["presets"]["encoder"]
    assert {path.stem for path in (packaged_folder() / "meshes").iterdir()} == set(runs) - {"alone"}
    shapes = {mesh: {axis: size for axis, size in run["shape"].items() if size > 1} for mesh, run in runs.items()}
    assert shapes == {
        "alone": {},
        "data": {"data": 8},
        "zero1": {"data": 8},
        "fsdp": {"fsdp": 8},
        "data_fsdp": {"fsdp": 8},
        "tensor": {"data": 2, "tensor": 4},
        "fsdp_tensor": {"fsdp": 2, "tensor": 4},
        "sequence": {"data": 2, "sequence": 4},
        "slices": {"replica": 2, "fsdp": 4},
    }
    assert "data" in runs["zero1"]["optimizer"] and "data" not in runs["data"]["optimizer"]


def test_run_resumes_on_four_devices_and_then_on_two(results):
    alone = results[0]["presets"]["encoder"]["alone"]["losses"]
    np.testing.assert_allclose(results[0]["chained"], alone, rtol=0, atol=1e-5)


def test_no_involuntary_full_rematerialization(results):
    assert "nvoluntary full rematerialization" not in results[1]
