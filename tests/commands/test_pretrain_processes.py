"""`bertfam pretrain` as several processes, through the local launcher.

One run serves most tests: two processes start it and stop after a signal, two resume it until one is killed in the second stage,
two resume it until one is stuck, and one process finishes it. It starts from the run of the fixture `trained`, with the moments
and over another vocabulary, and a run of one process that is not disturbed shows what must come out.
"""

import json
import signal
import socket
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest
from command_line import in_process, launch, launch_separately, replaced
from model_folders import arrays, assert_equal_arrays, cut, whole

from bertfam.training.checkpoints import newest

NOT_LEARNED = ("tokens_per_second", "mfu", "waiting_for_data", "learning_rate")
STEPS = 14
SETTINGS = (
    *(f"TRAIN_STEPS={STEPS}", "short/Stage.steps=8", "long/Stage.steps=6"),
    *("EVAL_EVERY=4", "CHECKPOINT_EVERY=1", "Run.log_every=1"),
    *("LinearDecay.variant='bert'", "Run.objective=@Mlm()", "Mlm.model=@BertConfig()"),  # the first update has rate 0
    "Execution.layers='unroll'",  # which is traced in less time
)
RESUMED = ("--gin.Run.checkpoint_every=2", "--gin.Run.eval_every=0", "--gin.Run.sample_every=0")


def metrics(model_dir):
    """Return {(step, split, name): value} of what was learned."""
    lines = [json.loads(line) for line in (model_dir / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in lines if line["split"] not in ("memory", "time", "hosts")]
    keys = [(line["step"], line["split"], name) for line in lines for name in line if name not in ("step", "split")]
    assert len(set(keys)) == len(keys)
    values = [line[name] for line in lines for name in line if name not in ("step", "split")]
    return {key: value for key, value in zip(keys, values, strict=True) if key[2] not in NOT_LEARNED}


def until(step, values):
    """Return those metrics that were learned until a step."""
    return {key: value for key, value in values.items() if key[0] <= step}


@dataclass(frozen=True)
class Several:
    """A run of two processes and its finished launcher or, in place of a launcher, the (exit status, stdout, stderr) of each."""

    model_dir: Path
    done: CompletedProcess | list


@pytest.fixture(scope="module")
def flags(trained, rewritten):
    """Return the flags of all runs: a warm start with the moments, from a model with another vocabulary and more heads."""
    settings = [f"--gin.{setting}" for setting in SETTINGS]
    return [f"--vocab={rewritten / 'vocab'}", f"--init_from={trained.model_dir}", "--init_optimizer", *settings]


@pytest.fixture(scope="module")
def one(trained, rewritten, flags, tmp_path_factory):
    """Return the MODEL_DIR of the run of one process, and what it printed."""
    model_dir = tmp_path_factory.mktemp("one") / "model"
    text = ("--input=", "--validation_input=", "--vocab=")
    words = [word for word in (*trained.pretrain(model_dir), *flags) if not word.startswith(text)]
    done = in_process(*words, f"--cache_dir={rewritten / 'cache'}")
    assert done.returncode == 0, done.stderr
    return model_dir, done.stdout


@pytest.fixture(scope="module")
def stopped(trained, flags, tmp_path_factory):
    """Start the run with two processes, profile and sample; send SIGTERM to the last alone, which is slow."""
    model_dir = tmp_path_factory.mktemp("two") / "model"
    faults = {"PACE": "0.4", "PACE_INDEX": "1", "DIE": "5:SIGTERM:0", "DIE_INDEX": "1"}
    words = replaced(trained.pretrain(model_dir), flags)
    done = launch(*words, "--gin.Run.sample_every=2", "--profile_steps=3-3", **faults)
    assert done.returncode == 75, done.stderr
    return Several(model_dir, done)


def test_two_processes_learn_what_one_does(trained, rewritten, one, stopped):
    model_dir, done, (expected, expected_out) = stopped.model_dir, stopped.done, one
    actual, expected_metrics = metrics(model_dir), until(newest(model_dir), metrics(expected))
    # An evaluation that is due after the last step follows when the run is resumed.
    assert not [key for key in expected_metrics.keys() - actual.keys() if key[:2] != (newest(model_dir), "eval")]
    assert actual == pytest.approx({key: expected_metrics[key] for key in actual}, rel=1e-5, abs=1e-5)
    assert (4, "eval", "loss") in actual
    assert json.loads((model_dir / "plan.json").read_text())["mesh"]["data"] == 2
    # Process 0 alone prints and writes, and it writes the same files as a single process.
    names, expected_names = (
        {path.name for path in folder.iterdir() if "tfevents" not in path.name} for folder in (model_dir, trained.model_dir)
    )
    assert names - {"start.json", "plugins", "process_1"} == expected_names
    assert len(list(model_dir.glob("events.*"))) == 1
    for name in ("fingerprint.json", "vocab/vocab.txt"):
        assert (model_dir / name).read_bytes() == (expected / name).read_bytes(), name
    for name in ("cache.json", "text/train/tokens.bin"):
        assert (model_dir / "cache" / name).read_bytes() == (rewritten / "cache" / name).read_bytes(), name
    config, expected_config = ({*(folder / "config.gin").read_text().splitlines()} for folder in (model_dir, expected))
    others = [line for line in config ^ expected_config if not line.startswith(("Text", "Run.sample_every"))]
    assert not others  # one trains on a token cache, and the other on text
    lines = [line for line in done.stdout.splitlines() if not line.startswith("[Gloo]")]
    (several,) = [line for line in lines if line.startswith("processes ")]
    assert several == f"processes    2 on 1 host (flags); process 0 is on {socket.gethostname()}"
    lines.remove(several)
    first_words, expected_words = (
        [line.split()[0] for line in output if " sample  " not in line and not line.startswith("profile")]
        for output in (lines, expected_out.splitlines())
    )
    count = len(first_words) - 2  # before the time of the run and the line of the stop
    assert first_words[:count] == expected_words[:count]
    assert done.stderr.count("tokenising train") == 1
    of_the_other = [line for line in (done.stdout + done.stderr).splitlines() if "[1]" in line]
    of_the_other = [line for line in of_the_other if "waits for process 0" not in line]  # on a busy machine
    assert all("SIGTERM: stopping after this step" in line for line in of_the_other)


def test_two_processes_stop_after_the_same_step(stopped):
    model_dir, lines = stopped.model_dir, stopped.done.stdout.splitlines()
    assert [line.partition("  ")[0] for line in lines if " sample  " in line][0] == "step 2 sample"
    for folder in (model_dir, model_dir / "process_1"):
        assert len(list(folder.glob("plugins/profile/*/*.xplane.pb"))) == 1
    last = newest(model_dir)
    assert 5 < last < 9 and whole(model_dir) == [*range(1, last + 1)]
    assert f"stopped after step {last} of {STEPS}, which is saved; the same command resumes it" in lines


def test_warm_start_of_two_processes_equals_that_of_one(trained, one, stopped):
    """Compare what the first update has left, whose rate is 0."""
    line, other_line = (
        next(line for line in output.splitlines() if line.startswith("starts from ")) for output in (one[1], stopped.done.stdout)
    )
    assert f"starts from {trained.model_dir}: encoder, mlm_head; of 250 tokens " in line
    assert line == other_line and ", 0 begin with" not in line and line.endswith("; with the optimizer's moments")
    alone, both = arrays(one[0], 1), arrays(stopped.model_dir, 1)
    assert not any("nsp_head" in name or "pooler" in name for name in both)
    assert alone.keys() == both.keys()
    for name, value in alone.items():
        rows = 250 if "['word']" in name or name.endswith("['mlm_head']['bias']") else None
        if name.startswith("['params']"):
            assert np.array_equal(value[:rows], both[name][:rows]), name
        elif value.ndim == 0:
            assert value == both[name], name
        else:  # with the gradient of one update, summed in another order
            assert np.allclose(
                value[:rows] if rows else value, both[name][:rows] if rows else both[name], rtol=1e-4, atol=1e-6
            ), name


@pytest.fixture(scope="module")
def killed(stopped, tmp_path_factory):
    """Resume the run from step 5, and kill the first process when it has saved step 10, while the other sleeps."""
    model_dir = cut(stopped.model_dir, tmp_path_factory.mktemp("killed") / "model", 5)
    words = ["pretrain", f"--model_dir={model_dir}", *RESUMED]
    return Several(model_dir, launch_separately(words, own=({"DIE": "11:SIGKILL:10"}, {"STUCK": "11"})))


def test_killed_process_ends_the_other_with_77(killed):
    (status, _, _), (other_status, _, errors) = killed.done
    if other_status == -signal.SIGABRT:
        pytest.skip("this machine was so busy that JAX aborted the process before it could end by itself")
    assert (status, other_status) == (-9, 77) and "Traceback" not in errors
    (line,) = [line for line in errors.splitlines() if line.startswith("bertfam: error: ")]
    assert line == "bertfam: error: process 0 exited before the end of the run; see its log"


def test_resumed_run_of_two_processes_learns_the_same(one, stopped, killed):
    """It equals the run that was not interrupted there bit by bit, and that of one process beyond the change of the stage."""
    assert "resumed from step 5" in killed.done[0][1].splitlines()
    assert_equal_arrays(arrays(killed.model_dir, 6), arrays(stopped.model_dir, 6))
    actual, of_stopped, of_one = (
        {key: value for key, value in until(10, metrics(model_dir)).items() if key[1] == "train"}
        for model_dir in (killed.model_dir, stopped.model_dir, one[0])
    )
    assert until(newest(stopped.model_dir), actual) == of_stopped
    assert (9, "train", "loss") in actual and actual == pytest.approx(until(max(actual)[0], of_one), rel=1e-5, abs=1e-5)


@pytest.fixture(scope="module")
def stuck(killed, tmp_path_factory):
    """Resume the killed run from step 10 until the last process, which is slow, is stuck."""
    model_dir = cut(killed.model_dir, tmp_path_factory.mktemp("stuck") / "model", 10)
    words = ["pretrain", f"--model_dir={model_dir}", "--gin.Run.watchdog_seconds=8", *RESUMED]
    return Several(model_dir, launch_separately(words, PACE=0.5, PACE_INDEX=1, STUCK=13, DIE_INDEX=1))


def test_stuck_process_prints_its_stacks_and_exits_with_76(stuck):
    (status, _, errors), (other_status, _, stacks) = stuck.done
    assert (status, other_status) == (77, 76)
    message = "bertfam: error: process 1 was stuck in the phase 'training' (Run.watchdog_seconds = 8) and exits; "
    assert f"{message}the stack of each thread is above" in stacks.splitlines()
    assert '  File "' in stacks and 'bertfam_process.py", line' in stacks
    (line,) = [line for line in errors.splitlines() if line.startswith("bertfam: error: ")]
    assert line.startswith("bertfam: error: process 1 exited while the others waited for ") and "Traceback" not in errors


def test_slow_process_has_the_most_idle_seconds(stuck):
    hosts = [json.loads(line) for line in (stuck.model_dir / "metrics.jsonl").read_text().splitlines()]
    hosts = [line["idle_seconds"] for line in hosts if line["split"] == "hosts"]
    idle_seconds = [sum(seconds) for seconds in zip(*hosts, strict=True)]
    assert len(idle_seconds) == 2 and max(idle_seconds) == idle_seconds[-1]


def test_one_process_finishes_the_run_of_two(one, killed, tmp_path):
    model_dir = cut(killed.model_dir, tmp_path / "model", 10)
    done = in_process("pretrain", f"--model_dir={model_dir}", "--gin.Run.eval_every=4")
    assert done.returncode == 0, done.stderr
    assert "resumed from step 10" in done.stdout.splitlines()
    actual, expected = metrics(model_dir), metrics(one[0])
    assert {key[:2] for key in expected.keys() - actual.keys()} <= {(8, "eval")}  # which the killed run leaves out
    assert actual == pytest.approx({key: expected[key] for key in actual}, rel=1e-5, abs=1e-5)


def test_fault_of_one_process_ends_the_other_with_the_same_status(one, tmp_path):
    """They resume the run of one process. A launcher restarts neither: the fault would occur again."""
    model_dir = cut(one[0], tmp_path / "model", 9)
    words = ["pretrain", f"--model_dir={model_dir}", "--gin.Run.checkpoint_every=100"]
    (status, out, errors), (failed, _, own_errors) = launch_separately(words, FAULT=12, DIE_INDEX=1)
    assert (status, failed) == (1, 1)
    assert "ZeroDivisionError: a fault after 12 updates" in own_errors.splitlines() and "Traceback" not in errors
    message = "bertfam: error: process 1 exited while the others waited for "
    assert any(line.startswith(message) for line in errors.splitlines())
    assert newest(model_dir) == 9 and "resumed from step 9" in out.splitlines()
    actual, expected = metrics(model_dir), metrics(one[0])
    assert (10, "train", "loss") in actual  # step 11 may not have been written
    assert actual == pytest.approx({key: expected[key] for key in actual}, rel=1e-5, abs=1e-5)


def test_mistake_is_reported_once_and_nothing_is_written(trained, tmp_path):
    results = launch_separately(trained.pretrain(tmp_path / "model", "--gin.BATCH_SIZE=9"))
    assert [(status, out) for status, out, _ in results] == [(2, ""), (2, "")]
    assert results[0][2] == (
        "bertfam: error: the number of rows in a microbatch is 9, which does not divide over the 2 parts of mesh axis data; "
        "use 8 or 10 (Stage.batch_size / Run.microbatches), or a mesh axis of 1\n"
    )
    assert results[1][2] == ""
    assert not list(tmp_path.iterdir())


def test_processes_with_different_flags_are_refused(trained, tmp_path):
    """Start them without the launcher, which gives all the same flags."""
    words = trained.pretrain(tmp_path / "model")
    results = launch_separately(words, lambda index: [f"--gin.SEED={index + 3}"])
    assert [(status, out) for status, out, _ in results] == [(2, ""), (2, "")]
    assert results[0][2] == (
        "bertfam: error: process 1 has a different configuration from process 0: SEED = 4 there, SEED = 3 on process 0; give all "
        "processes the same flags and folders\n"
    )
    assert results[1][2] == "" and not list(tmp_path.iterdir())
