"""A distillation step is the same on every mesh; the teacher is split as its parameters' axes say, and stays as it is."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def test_one_device_and_eight():
    flags = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "distillation_meshes.py")],
        env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    (one, same, _), (eight, same_there, axes) = found["one"], found["eight"]
    assert same and same_there and {"tensor", "fsdp"} <= set(axes)
    for alone, spread in zip(one, eight, strict=True):
        assert alone.keys() == {"loss", "soft_loss", "mlm_loss", "cosine_loss", "mse_loss"}
        assert spread == pytest.approx(alone, rel=2e-5)
    assert one[0]["loss"] != one[1]["loss"]
