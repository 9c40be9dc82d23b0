"""`bertfam pretrain` as several processes, through the local launcher."""

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from subprocess import PIPE

import numpy as np
import pytest
from command_line import in_process, launch, started
from model_folders import arrays, assert_equal_arrays, cut, whole
from test_init_from import ONE

from bertfam.training.checkpoints import newest

NOT_LEARNED = ("tokens_per_second", "mfu", "waiting_for_data", "learning_rate")


def metrics(model_dir):
    """Return {(step, split, name): value} of what was learned."""
    lines = [json.loads(line) for line in (model_dir / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in lines if line["split"] not in ("time", "hosts")]
    keys = [(line["step"], line["split"], name) for line in lines for name in line if name not in ("step", "split")]
    assert len(set(keys)) == len(keys)
    values = [line[name] for line in lines for name in line if name not in ("step", "split")]
    return {key: value for key, value in zip(keys, values, strict=True) if key[2] not in NOT_LEARNED}


@pytest.fixture(scope="module")
def two(trained, tmp_path_factory):
    """Return the MODEL_DIR of the run of the fixture `trained` by two processes, and the finished launcher."""
    model_dir = tmp_path_factory.mktemp("two") / "model"
    done = launch(*trained.pretrain(model_dir))
    assert done.returncode == 0, done.stderr
    return model_dir, done


def test_two_processes_learn_what_one_does(trained, two):
    model_dir, done = two
    assert metrics(model_dir) == pytest.approx(metrics(trained.model_dir), rel=1e-5, abs=1e-5)
    assert json.loads((model_dir / "plan.json").read_text())["mesh"]["data"] == 2
    # Process 0 alone prints and writes, and it writes the same files as a single process.
    names = [{path.name for path in folder.iterdir() if "tfevents" not in path.name} for folder in (model_dir, trained.model_dir)]
    assert names[0] == names[1]
    assert len(list(model_dir.glob("events.*"))) == 1
    for name in ("config.gin", "fingerprint.json", "vocab/vocab.txt", "cache/cache.json", "cache/text/train/tokens.bin"):
        assert (model_dir / name).read_bytes() == (trained.model_dir / name).read_bytes(), name
    lines = [line for line in done.stdout.splitlines() if not line.startswith("[Gloo]")]
    (several,) = [line for line in lines if line.startswith("processes ")]
    assert several == f"processes    2 on 1 host (flags); process 0 is on {socket.gethostname()}"
    lines.remove(several)
    assert [line.split()[0] for line in lines] == [line.split()[0] for line in trained.stdout.splitlines()]
    assert done.stderr.count("tokenising train") == trained.stderr.count("tokenising train") == 1
    assert "[1]" not in done.stdout + done.stderr


def test_two_processes_resume_the_run_of_one_and_stop_after_the_same_step(trained, tmp_path):
    """Profile and sample with two; send SIGTERM to the last alone, which is slow; then finish with one."""
    model_dir = cut(trained.model_dir, tmp_path / "model", 15)
    faults = {"PACE": "0.4", "PACE_INDEX": "1", "DIE": "19:SIGTERM:0", "DIE_INDEX": "1"}
    words = trained.pretrain(model_dir, "--gin.Run.sample_every=9", "--profile_steps=17-18")
    done = launch(*words, **faults)
    assert done.returncode == 75, done.stderr
    lines = done.stdout.splitlines()
    assert "resumed from step 15" in lines
    assert [line.partition("  ")[0] for line in lines if " sample  " in line][0] == "step 18 sample"
    for folder in (model_dir, model_dir / "process_1"):
        assert len(list(folder.glob("plugins/profile/*/*.xplane.pb"))) == 1
    last = newest(model_dir)
    assert 19 < last < 24 and whole(model_dir)[-1] == last
    assert f"stopped after step {last} of 24, which is saved; the same command resumes it" in lines
    hosts = [json.loads(line) for line in (model_dir / "metrics.jsonl").read_text().splitlines()]
    hosts = [line["idle_seconds"] for line in hosts if line["split"] == "hosts" and line["step"] > 18]
    idle_seconds = [sum(seconds) for seconds in zip(*hosts, strict=True)]
    assert len(idle_seconds) == 2 and max(idle_seconds) == idle_seconds[-1]

    done = in_process(*trained.pretrain(model_dir))
    assert done.returncode == 0, done.stderr
    assert f"resumed from step {last}" in done.stdout.splitlines()
    # The profile and the stop ended intervals of training, and the later part of each interval is shorter.
    actual, expected = (
        {key: value for key, value in metrics(folder).items() if key[1] != "train" or key[0] <= 16}
        for folder in (model_dir, trained.model_dir)
    )
    assert actual == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_mistake_is_reported_once_and_nothing_is_written(trained, tmp_path):
    done = launch(*trained.pretrain(tmp_path / "model", "--gin.BATCH_SIZE=9"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "bertfam: error: the number of rows in a microbatch is 9, which does not divide over the 2 parts of mesh axis data; "
        "use 8 or 10 (Stage.batch_size / Run.microbatches), or a mesh axis of 1\n"
    )
    assert not list(tmp_path.iterdir())


def test_warm_start_of_two_processes_equals_that_of_one(trained, two, rewritten, tmp_path):
    """Start with the moments, another vocabulary and fewer heads."""
    masked = ["--gin.Run.objective=@Mlm()", "--gin.Mlm.model=@BertConfig()"]
    flags = [f"--gin_file={trained.folder / 'run.gin'}", f"--cache_dir={rewritten / 'cache'}", f"--init_from={two[0]}"]
    words = ["pretrain", *flags, "--init_optimizer", *ONE, *masked]
    results = []
    for name, run in (("one", in_process), ("two", launch)):
        done = run(*words, f"--model_dir={tmp_path / name}")
        assert done.returncode == 0, done.stderr
        (line,) = [line for line in done.stdout.splitlines() if line.startswith("starts from ")]
        results.append((line, arrays(tmp_path / name, 1)))
    (line, one), (other_line, both) = results
    assert f"starts from {two[0]}: encoder, mlm_head; of 250 tokens " in line
    assert not any("nsp_head" in name or "pooler" in name for name in both)
    assert line == other_line and ", 0 begin with" not in line and line.endswith("; with the optimizer's moments")
    assert one.keys() == both.keys()
    for name, value in one.items():
        rows = 250 if "['word']" in name or name.endswith("['mlm_head']['bias']") else None
        if name.startswith("['params']"):
            assert np.array_equal(value[:rows], both[name][:rows]), name
        elif value.ndim == 0:
            assert value == both[name], name
        else:  # with the gradient of one update, summed in another order
            assert np.allclose(
                value[:rows] if rows else value, both[name][:rows] if rows else both[name], rtol=1e-4, atol=1e-6
            ), name


def launch_separately(words, flags=lambda index: (), **environment):
    """Run two processes without a launcher, which would end one after the other: (exit status, stdout, stderr) of each."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        words = [*words, f"--coordinator=localhost:{probe.getsockname()[1]}", "--num_processes=2"]
    processes = [
        started([*words, f"--process_index={index}", *flags(index)], environment, stdout=PIPE, stderr=PIPE, text=True)
        for index in range(2)
    ]
    with ThreadPoolExecutor() as pool:
        outputs = list(pool.map(lambda process: process.communicate(timeout=120), processes))
    return [(process.returncode, *output) for process, output in zip(processes, outputs, strict=True)]


def test_killed_process_ends_the_other_with_77_and_the_resumed_run_reaches_the_same_end(trained, two, tmp_path):
    model_dir = cut(two[0], tmp_path / "model", 15)
    words = trained.pretrain(model_dir)
    (killed, _, _), (status, _, errors) = launch_separately(words, DIE="22:SIGKILL:20", DIE_INDEX=0)
    assert (killed, status) == (-9, 77) and "Traceback" not in errors
    message = "bertfam: error: process 0 exited while the others waited for "
    (line,) = [line for line in errors.splitlines() if line.startswith(message)]
    assert line.endswith("; see its log")
    (status, out, errors), (other_status, _, _) = launch_separately(words)
    assert (status, other_status) == (0, 0), errors
    assert "resumed from step 20" in out.splitlines()
    assert_equal_arrays(arrays(model_dir, 24), arrays(two[0], 24))
    assert metrics(model_dir) == metrics(two[0])


def test_fault_of_one_process_ends_the_other_with_the_same_status(trained, two, tmp_path):
    """A launcher restarts neither: the fault would occur again."""
    model_dir = cut(two[0], tmp_path / "model", 20)
    (status, _, errors), (failed, _, own_errors) = launch_separately(trained.pretrain(model_dir), FAULT=21, DIE_INDEX=1)
    assert (status, failed) == (1, 1)
    assert "ZeroDivisionError: a fault after 21 updates" in own_errors.splitlines() and "Traceback" not in errors
    message = "bertfam: error: process 1 exited while the others waited for "
    assert any(line.startswith(message) for line in errors.splitlines())
    assert newest(model_dir) == 20


def test_stuck_process_prints_its_stacks_and_exits_with_76(trained, two, tmp_path):
    model_dir = cut(two[0], tmp_path / "model", 20)
    words = trained.pretrain(model_dir, "--gin.Run.watchdog_seconds=4")
    (status, _, errors), (stuck, _, stacks) = launch_separately(words, STUCK="22", DIE_INDEX=1)
    assert (status, stuck) == (77, 76)
    message = "bertfam: error: process 1 was stuck in the phase 'training' (Run.watchdog_seconds = 4) and exits; "
    assert f"{message}the stack of each thread is above" in stacks.splitlines()
    assert '  File "' in stacks and 'bertfam_process.py", line' in stacks
    (line,) = [line for line in errors.splitlines() if line.startswith("bertfam: error: ")]
    assert line.startswith("bertfam: error: process 1 exited while the others waited for ") and "Traceback" not in errors
    assert newest(model_dir) == 20


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
