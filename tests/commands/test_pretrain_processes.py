"""`bertfam pretrain` as several processes, through the local launcher."""

import json
import os
import subprocess
import sys
from pathlib import Path

import bertfam_process
import pytest
from command_line import bertfam
from model_folders import cut

from bertfam.training.checkpoints import newest

LAUNCHER = Path(__file__).parents[2] / "launch" / "local.py"
NOT_LEARNED = ("tokens_per_second", "mfu", "waiting_for_data", "learning_rate")


def launch(*words, **environment):
    """Two processes with a device each, which compile fast."""
    command = [sys.executable, LAUNCHER, "--processes=2", "--devices_per_process=1", "--grace=2", "--"]
    variables = {"XLA_FLAGS": "--xla_backend_optimization_level=0"} | environment
    return subprocess.run(
        [*command, sys.executable, bertfam_process.__file__, *words],
        capture_output=True,
        text=True,
        env=os.environ | variables,
        timeout=300,
    )


def metrics(model_dir):
    """{(step, split, name): value} of what was learned."""
    lines = [json.loads(line) for line in (model_dir / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in lines if line["split"] != "time"]
    keys = [(line["step"], line["split"], name) for line in lines for name in line if name not in ("step", "split")]
    assert len(set(keys)) == len(keys)
    values = [line[name] for line in lines for name in line if name not in ("step", "split")]
    return {key: value for key, value in zip(keys, values, strict=True) if key[2] not in NOT_LEARNED}


@pytest.fixture(scope="module")
def two(trained, tmp_path_factory):
    """The run of the fixture `trained`, by two processes: MODEL_DIR and how it went."""
    model_dir = tmp_path_factory.mktemp("two") / "model"
    done = launch(*trained.pretrain(model_dir))
    assert done.returncode == 0, done.stderr
    return model_dir, done


def test_two_processes_learn_what_one_does(trained, two):
    model_dir, done = two
    assert metrics(model_dir) == pytest.approx(metrics(trained.model_dir), rel=1e-5, abs=1e-5)
    assert json.loads((model_dir / "plan.json").read_text())["mesh"] == {"data": 2, "fsdp": 1, "tensor": 1}
    # Process 0 alone tells and writes; what it leaves is what one process leaves.
    left = [{path.name for path in folder.iterdir() if "tfevents" not in path.name} for folder in (model_dir, trained.model_dir)]
    assert left[0] == left[1]
    assert len(list(model_dir.glob("events.*"))) == 1
    for name in ("config.gin", "fingerprint.json", "vocab/vocab.txt", "cache/cache.json", "cache/text/train/tokens.bin"):
        assert (model_dir / name).read_bytes() == (trained.model_dir / name).read_bytes(), name
    told = [line for line in done.stdout.splitlines() if not line.startswith("[Gloo]")]
    assert [line.split()[0] for line in told] == [line.split()[0] for line in trained.stdout.splitlines()]
    assert done.stderr.count("tokenising train") == trained.stderr.count("tokenising train") == 1
    assert "[1]" not in done.stdout + done.stderr


def test_another_number_of_processes_goes_on(trained, two, tmp_path):
    model_dir = cut(two[0], tmp_path / "one", 20)
    done = bertfam(*trained.pretrain(model_dir))
    assert done.returncode == 0, done.stderr
    assert "resumed from step 20" in done.stdout.splitlines()
    assert metrics(model_dir) == pytest.approx(metrics(trained.model_dir), rel=1e-5, abs=1e-5)

    model_dir = cut(trained.model_dir, tmp_path / "two", 20)
    done = launch(*trained.pretrain(model_dir))
    assert done.returncode == 0, done.stderr
    assert "resumed from step 20" in done.stdout.splitlines() and newest(model_dir) == 24
    assert metrics(model_dir) == pytest.approx(metrics(trained.model_dir), rel=1e-5, abs=1e-5)


def test_a_mistake_is_told_once_and_nothing_is_written(trained, tmp_path):
    done = launch(*trained.pretrain(tmp_path / "model", "--gin.BATCH_SIZE=9"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "bertfam: error: the number of rows in a microbatch is 9, which does not divide over the 2 parts of mesh axis data x "
        "fsdp; use 8 or 10, or a mesh axis of 1\n"
    )
    assert not list(tmp_path.iterdir())


def test_one_that_fails_does_not_keep_the_others_waiting(trained, two, tmp_path):
    model_dir = cut(two[0], tmp_path / "model", 20)
    done = launch(*trained.pretrain(model_dir), DIE="22:SIGKILL:0", DIE_INDEX="1")
    assert done.returncode == 128 + 9
    assert newest(model_dir) == 20
