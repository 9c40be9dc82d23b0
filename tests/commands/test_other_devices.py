"""A run of eight devices, parameters split over them, goes on and is read on any other number."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import xla
from command_line import bertfam
from model_folders import arrays, cut
from safetensors.numpy import load_file

# The third update has rate 0, so that what is restored is what is saved last.
THREE = (
    "Run.stages=(@short/Stage(),)",
    "short/Stage.steps=3",
    "BATCH_SIZE=24",
    "CHECKPOINT_EVERY=2",
    "LinearDecay.warmup_steps=0",
)
ALL = """\
import sys
from bertfam import cli
assert cli.main(["evaluate", "--json", f"--model_dir={sys.argv[1]}", "--step=2"]) == 0
assert cli.main(["export", f"--model_dir={sys.argv[1]}", "--step=2", f"--output={sys.argv[2]}"]) == 0
assert cli.main(sys.argv[3:]) == 0
"""


@pytest.fixture(scope="module")
def eight(trained, tmp_path_factory):
    """MODEL_DIR of three updates on eight devices."""
    model_dir = tmp_path_factory.mktemp("eight") / "model"
    settings = [f"--gin.{setting}" for setting in (*THREE, "MeshShape.fsdp=4", "MeshShape.tensor=2")]
    words = trained.pretrain(model_dir, f"--cache_dir={trained.model_dir / 'cache'}", *settings)
    done = bertfam(*words, **xla.device_environment(8))
    assert done.returncode == 0, done.stderr
    assert json.loads((model_dir / "plan.json").read_text())["mesh"] == {
        "replica": 1,
        "data": 1,
        "fsdp": 4,
        "sequence": 1,
        "tensor": 2,
    }
    return model_dir


@pytest.mark.parametrize("devices", [1, 3])
def test_it_is_evaluated_exported_and_goes_on(trained, eight, tmp_path, devices):
    model_dir = cut(eight, tmp_path / "model", 2)
    settings = [f"--gin.{setting}" for setting in (*THREE, "MeshShape.fsdp=1", "MeshShape.tensor=1")]
    words = trained.pretrain(model_dir, f"--cache_dir={trained.model_dir / 'cache'}", *settings)
    done = subprocess.run(
        [sys.executable, "-c", ALL, model_dir, tmp_path / "exported", *words],
        capture_output=True,
        text=True,
        env=os.environ | xla.device_environment(devices),
    )
    assert done.returncode == 0, done.stderr
    assert "resumed from step 2" in done.stdout.splitlines()
    saved, restored = (
        {name: value for name, value in arrays(folder, step).items() if name.startswith("['params']")}
        for folder, step in ((eight, 2), (model_dir, 3))
    )
    assert len(saved) > 20 and all(np.array_equal(restored[name], value) for name, value in saved.items())
    exported = load_file(tmp_path / "exported" / "model.safetensors")
    query = saved["['params']['encoder']['layers']['attention']['query']['kernel']"]
    for layer in range(2):
        name = f"bert.encoder.layer.{layer}.attention.self.query.weight"
        assert np.array_equal(exported[name].T, query[layer].reshape(16, 16))
    scores = json.loads(done.stdout.splitlines()[0])
    expected = [json.loads(line) for line in (eight / "metrics.jsonl").read_text().splitlines()]
    (last,) = [line for line in expected if line["split"] == "eval"]  # of step 3, whose parameters are those of step 2
    assert scores["step"] == 2
    assert {name: scores[name] for name in ("loss", "mlm_loss", "nsp_loss")} == pytest.approx(
        {name: last[name] for name in ("loss", "mlm_loss", "nsp_loss")}, rel=1e-5
    )
