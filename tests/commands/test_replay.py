"""`bertfam replay` of a run that recorded digests: on its four simulated devices, on faulty ones, and on other devices."""

import json
import shutil
from dataclasses import dataclass
from types import SimpleNamespace
from unittest import mock

import pytest
import replay_process
import xla
from command_line import in_process
from fork_server import run_program
from model_folders import copy_run, metrics

from bertfam import cli
from bertfam.commands.replay_run import _check_rates, _choose_checkpoint
from bertfam.errors import UserError
from bertfam.training.checkpoints import selection
from bertfam.training.model_dir import read_run

THREE = (
    "Run.stages=(@short/Stage(),)",
    "short/Stage.steps=3",
    "CHECKPOINT_EVERY=2",
    "EVAL_EVERY=0",
    "LinearDecay.warmup_steps=0",
    "Run.digest_every=1",
    "Execution.layers='unroll'",
    "BertConfig.dropout_rate=0.0",  # whose masks take a third of the time to compile
    "BertConfig.attention_dropout_rate=0.0",
    "BertConfig.num_layers=1",
)


@dataclass(frozen=True)
class Replayed:
    """A finished replay.

    Attributes:
      status: its exit status.
      written: the files that it has written into MODEL_DIR.
    """

    status: int
    out: str
    err: str
    written: list[str]


@pytest.fixture(scope="module")
def replayed(trained, tmp_path_factory):
    """Train three updates with digests and replay the last, without and with faults; return MODEL_DIR and the two replays.

    The faults are a flipped bit of a parameter on one device, and of the rows on another.
    """
    model_dir = tmp_path_factory.mktemp("replay") / "model"
    flags = [f"--cache_dir={trained.model_dir / 'cache'}", *(f"--gin.{flag}" for flag in THREE)]
    replay = ["replay", f"--model_dir={model_dir}", "--step=3"]
    commands = [
        (trained.pretrain(model_dir, *flags), []),
        (replay, []),
        ([*replay, "--times=1", "--json"], [(1, "parameter"), (2, "rows")]),
    ]
    out, _ = run_program(replay_process.__file__, environment=xla.device_environment(4), input=json.dumps(commands))
    training, *replays = (Replayed(*result) for result in json.loads(out.splitlines()[-1]))
    assert training.status == 0 and "silent" not in training.out, training.err
    return model_dir, *replays


def test_equal_results_are_reported_and_nothing_is_written(replayed):
    recorded, done, _ = replayed
    assert done.status == 0, done.err
    lines = done.out.splitlines()
    assert lines[0] == "replaying updates 3 to 3 from the checkpoint of step 2"
    assert "arrangement 2: cpu:1, cpu:2, cpu:3, cpu:0" in lines
    line = [line for line in metrics(recorded) if line["split"] == "digest"][-1]
    assert f"loss {line['loss']!r}, {len(line) - 4} digests" in lines and len(line) > 40
    assert "1 recorded digest compared, bit by bit" in lines
    assert "1 logged interval compared, 1 equal in all bits" in lines
    assert lines[-1] == f"update 3 of {recorded}: all agree"
    assert done.written == []


def test_faulty_devices_are_named(replayed):
    _, _, done = replayed
    assert done.status == 1 and done.written == []
    (line,) = done.err.splitlines()
    assert line.startswith("bertfam: error: silent data corruption: gradient/") and "cpu:1 or cpu:2" in line
    suspects = json.loads(done.out)["suspects"]
    assert list(suspects) == ["cpu:1", "cpu:2"]
    assert "parameter/encoder/embeddings/norm/bias" in suspects["cpu:1"]
    assert len(suspects["cpu:2"]) > 20 and not [leaf for leaf in suspects["cpu:2"] if not leaf.startswith("gradient/")]


def test_only_losses_are_compared_on_another_number_of_devices(replayed, tmp_path):
    recorded, *_ = replayed
    model_dir = shutil.copytree(recorded, tmp_path / "model")
    log = model_dir / "metrics.jsonl"
    line = [line for line in metrics(recorded) if line["split"] == "digest"][-1]
    log.write_text(log.read_text().replace(f'"digest", "loss": {line["loss"]!r}', '"digest", "loss": 9.5'))
    done = in_process("replay", f"--model_dir={model_dir}", "--step=3", "--times=1")
    assert done.returncode == 1
    message = "update 3 was recorded by another program, mesh, kind of devices or compiler: only its loss is compared"
    assert message in done.stdout.splitlines()
    (error,) = done.stderr.splitlines()
    assert error.startswith("bertfam: error: the loss of update 3 is ") and error.endswith(" and was 9.5")


def test_model_without_a_training_state_is_refused(trained, tmp_path, capsys):
    copy = tmp_path / "copy"
    assert cli.main(["checkpoints", f"--model_dir={trained.model_dir}", f"--copy_weights={copy}", "--step=5"]) == 0
    capsys.readouterr()
    assert cli.main(["replay", f"--model_dir={copy}", "--step=1"]) == 2
    assert capsys.readouterr().err == (
        f"bertfam: error: {copy}/checkpoints/0 holds an imported model, no training state: give a run\n"
    )


def test_updates_before_the_only_checkpoint_are_answered_with_what_can_be_replayed(tmp_path):
    (tmp_path / "checkpoints" / "18").mkdir(parents=True)
    for total, fix in ((18, "it has 18, after the last update"), (20, "it has 18: give a --step greater than 18$")):
        run = SimpleNamespace(total_steps=total)
        with mock.patch.object(selection, "choose", return_value=None), mock.patch.object(selection, "steps", return_value=[18]):
            with pytest.raises(UserError, match=f"no checkpoint before --step=3; {fix}"):
                _choose_checkpoint(tmp_path, 3, None, run)


def test_updates_of_another_schedule_are_answered_with_a_later_one_that_works(trained, tmp_path):
    """As after a run was lengthened, whose rates decay to its new end."""
    model_dir = copy_run(trained.model_dir, tmp_path / "model")
    lines = [json.loads(line) for line in (model_dir / "metrics.jsonl").read_text().splitlines()]
    changed = [line for line in lines if line["split"] == "train" and line["step"] <= 12]
    for line in changed:
        line["learning_rate"] *= 2
    (model_dir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [line["step"] for line in changed] == [4, 5, 8, 10, 12]
    run = read_run(model_dir)
    with pytest.raises(UserError, match="the update that led to step 8 had .* give a --step greater than 15$"):
        _check_rates(run, model_dir, 5, 9)
    _check_rates(run, model_dir, 5, 7)
    _check_rates(run, model_dir, 15, 24)
