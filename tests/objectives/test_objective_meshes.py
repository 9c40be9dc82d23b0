"""Updates of every objective are the same on every mesh, with dropout and sampling; a teacher is split and unchanged."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import xla
from once import once

TERMS = {
    "distillation": {"soft_loss", "mlm_loss", "cosine_loss", "mse_loss"},
    "sop": {"mlm_loss", "sop_loss", "sop_accuracy"},
    "structure": {"mlm_loss", "shuffled_loss", "structure_loss"},
    "sbo": {"mlm_loss", "sbo_loss"},
    "modernbert": {"mlm_loss", "mlm_accuracy"},
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):

    def make(directory):
        done = subprocess.run(
            [sys.executable, str(Path(__file__).parent / "objective_meshes.py")],
            env=os.environ | xla.device_environment(8),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        (directory / "found.json").write_text(done.stdout.splitlines()[-1])

    return json.loads((once(tmp_path_factory, "objective-meshes", make) / "found.json").read_text())


@pytest.mark.parametrize("name", TERMS)
def test_eight_devices_match_one(results, name):
    (one, same, _), (eight, same_there, axes) = results[name]
    assert same and same_there
    assert {"tensor", "fsdp"} <= set(axes) if name == "distillation" else not axes
    for alone, spread in zip(one, eight, strict=True):
        assert alone.keys() >= TERMS[name] | {"loss"}
        assert spread == pytest.approx(alone, rel=2e-5)
    assert one[0]["loss"] != one[1]["loss"]
