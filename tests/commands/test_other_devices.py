"""A run of eight devices, which have its parameters split, is resumed, evaluated and exported on other numbers of devices."""

import json

import numpy as np
import pytest
import xla
from command_line import bertfam, in_process
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


@pytest.fixture(scope="module")
def eight(trained, tmp_path_factory):
    """Train three updates on eight devices, and return MODEL_DIR."""
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


def run(commands, devices):
    """Run commands one after the other on so many devices, and return their output."""
    if devices == 1:
        finished = [in_process(*command) for command in commands]
    else:
        first, *others = commands
        words = [*first, *(word for command in others for word in ("THEN", *command))]
        finished = [bertfam(*words, **xla.device_environment(devices))]
    for done in finished:
        assert done.returncode == 0, done.stderr
    return "".join(done.stdout for done in finished)


def last_scores(model_dir):
    """Return the line of metrics.jsonl with the scores of a run's end."""
    lines = [json.loads(line) for line in (model_dir / "metrics.jsonl").read_text().splitlines()]
    (last,) = [line for line in lines if line["split"] == "eval"]
    return last


@pytest.mark.parametrize("devices", [1, 3])
def test_run_of_eight_devices_is_evaluated_exported_and_resumed(trained, eight, tmp_path, devices):
    model_dir = cut(eight, tmp_path / "model", 2)
    settings = [f"--gin.{setting}" for setting in (*THREE, "MeshShape.fsdp=1", "MeshShape.tensor=1")]
    # One device scores with `evaluate`, three at the end of the run.
    scoring = [["evaluate", "--json", f"--model_dir={model_dir}", "--step=2"]] if devices == 1 else []
    more = ["--gin.EVAL_EVERY=0"] if devices == 1 else []
    commands = [
        *scoring,
        ["export", f"--model_dir={model_dir}", "--step=2", f"--output={tmp_path / 'exported'}"],
        trained.pretrain(model_dir, f"--cache_dir={trained.model_dir / 'cache'}", *settings, *more),
    ]
    output = run(commands, devices).splitlines()
    assert "resumed from step 2" in output
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
    scores = json.loads(output[0]) if scoring else last_scores(model_dir)
    assert scores["step"] == (2 if scoring else 3)  # which have the same parameters
    expected = last_scores(eight)
    assert {name: scores[name] for name in ("loss", "mlm_loss", "nsp_loss")} == pytest.approx(
        {name: expected[name] for name in ("loss", "mlm_loss", "nsp_loss")}, rel=1e-5
    )
