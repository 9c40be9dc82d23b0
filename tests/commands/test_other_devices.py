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
    "Execution.layers='unroll'",
    "BertConfig.dropout_rate=0.0",  # whose masks take a third of the time to compile
    "BertConfig.attention_dropout_rate=0.0",
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


def last_scores(model_dir):
    """Return the line of metrics.jsonl with the scores of a run's end."""
    lines = [json.loads(line) for line in (model_dir / "metrics.jsonl").read_text().splitlines()]
    (last,) = [line for line in lines if line["split"] == "eval"]
    return last


def assert_equal_scores(scores, eight):
    """Check the losses, which belong to the parameters after the second update."""
    names, expected = ("loss", "mlm_loss", "nsp_loss"), last_scores(eight)
    assert {name: scores[name] for name in names} == pytest.approx({name: expected[name] for name in names}, rel=1e-5)


def saved_parameters(model_dir, step):
    return {name: value for name, value in arrays(model_dir, step).items() if name.startswith("['params']")}


def test_run_of_eight_devices_is_evaluated_and_exported_on_one(eight, tmp_path):
    """tests/sharding/test_meshes.py restores a run of several devices on one."""
    folder = f"--model_dir={eight}"
    scored, exported = (
        in_process(*command, folder, "--step=2")
        for command in (["evaluate", "--json"], ["export", f"--output={tmp_path / 'out'}"])
    )
    assert scored.returncode == exported.returncode == 0, scored.stderr + exported.stderr
    scores, tensors = json.loads(scored.stdout), load_file(tmp_path / "out" / "model.safetensors")
    assert scores["step"] == 2
    assert_equal_scores(scores, eight)
    query = saved_parameters(eight, 2)["['params']['encoder']['layers']['attention']['query']['kernel']"]
    for layer in range(2):
        name = f"bert.encoder.layer.{layer}.attention.self.query.weight"
        assert np.array_equal(tensors[name].T, query[layer].reshape(16, 16))


def test_run_of_eight_devices_is_resumed_on_three(trained, eight, tmp_path):
    model_dir = cut(eight, tmp_path / "model", 2)
    settings = [f"--gin.{setting}" for setting in (*THREE, "MeshShape.fsdp=1", "MeshShape.tensor=1")]
    words = trained.pretrain(model_dir, f"--cache_dir={trained.model_dir / 'cache'}", *settings)
    done = bertfam(*words, **xla.device_environment(3))
    assert done.returncode == 0, done.stderr
    assert "resumed from step 2" in done.stdout.splitlines()
    saved, restored = saved_parameters(eight, 2), saved_parameters(model_dir, 3)
    assert len(saved) > 20 and all(np.array_equal(restored[name], value) for name, value in saved.items())
    scores = last_scores(model_dir)
    assert scores["step"] == 3
    assert_equal_scores(scores, eight)
