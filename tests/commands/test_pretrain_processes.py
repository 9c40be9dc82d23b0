"""`bertfam pretrain` as several processes, through the local launcher."""

import json
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import PIPE

import bertfam_process
import numpy as np
import pytest
import xla
from command_line import in_process, started
from model_folders import arrays, assert_equal_arrays, cut, remount
from test_init_from import ONE

from bertfam.training.checkpoints import newest

LAUNCHER = Path(__file__).parents[2] / "launch" / "local.py"
NOT_LEARNED = ("tokens_per_second", "mfu", "waiting_for_data", "learning_rate")


def launch(*words, processes=2, restarts=0, **environment):
    """Processes with a device each, which compile fast."""
    flags = [f"--processes={processes}", "--devices_per_process=1", "--grace=60", f"--restarts={restarts}"]
    command = [sys.executable, LAUNCHER, *flags, "--"]
    return subprocess.run(
        [*command, sys.executable, bertfam_process.__file__, *words],
        capture_output=True,
        text=True,
        env=os.environ | xla.device_environment() | environment,
        timeout=300,
    )


def metrics(model_dir):
    """{(step, split, name): value} of what was learned."""
    lines = [json.loads(line) for line in (model_dir / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in lines if line["split"] not in ("time", "hosts")]
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
    assert json.loads((model_dir / "plan.json").read_text())["mesh"]["data"] == 2
    # Process 0 alone tells and writes; what it leaves is what one process leaves.
    left = [{path.name for path in folder.iterdir() if "tfevents" not in path.name} for folder in (model_dir, trained.model_dir)]
    assert left[0] == left[1]
    assert len(list(model_dir.glob("events.*"))) == 1
    for name in ("config.gin", "fingerprint.json", "vocab/vocab.txt", "cache/cache.json", "cache/text/train/tokens.bin"):
        assert (model_dir / name).read_bytes() == (trained.model_dir / name).read_bytes(), name
    told = [line for line in done.stdout.splitlines() if not line.startswith("[Gloo]")]
    (several,) = [line for line in told if line.startswith("processes ")]
    assert several == f"processes    2 on 1 host (flags); process 0 is on {socket.gethostname()}"
    told.remove(several)
    assert [line.split()[0] for line in told] == [line.split()[0] for line in trained.stdout.splitlines()]
    assert done.stderr.count("tokenising train") == trained.stderr.count("tokenising train") == 1
    assert "[1]" not in done.stdout + done.stderr


def test_another_number_of_processes_goes_on(trained, two, tmp_path):
    """One, and four of which each leaves its profile."""
    model_dir = cut(two[0], tmp_path / "one", 20)
    done = in_process(*trained.pretrain(model_dir))
    assert done.returncode == 0, done.stderr
    assert "resumed from step 20" in done.stdout.splitlines()
    assert metrics(model_dir) == pytest.approx(metrics(trained.model_dir), rel=1e-5, abs=1e-5)

    model_dir = cut(two[0], tmp_path / "four", 20)
    done = launch(*trained.pretrain(model_dir, "--gin.Run.sample_every=2", "--profile_steps=22-23"), processes=4)
    assert done.returncode == 0, done.stderr
    assert "resumed from step 20" in done.stdout.splitlines() and newest(model_dir) == 24
    # Samples and profiles end intervals, as 21, 22 and 23 do only here.
    found, expected = (
        {key: value for key, value in metrics(folder).items() if key[1] != "train" or key[0] not in (21, 22, 23, 24)}
        for folder in (model_dir, trained.model_dir)
    )
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-5)
    told = [line.partition("  ")[0] for line in done.stdout.splitlines() if " sample  " in line]
    assert told == ["step 22 sample", "step 24 sample"]
    for folder in (model_dir, *(model_dir / f"process_{index}" for index in (1, 2, 3))):
        assert len(list(folder.glob("plugins/profile/*/*.xplane.pb"))) == 1


def test_a_mistake_is_told_once_and_nothing_is_written(trained, tmp_path):
    done = launch(*trained.pretrain(tmp_path / "model", "--gin.BATCH_SIZE=9"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "bertfam: error: the number of rows in a microbatch is 9, which does not divide over the 2 parts of mesh axis data; "
        "use 8 or 10 (Stage.batch_size / Run.microbatches), or a mesh axis of 1\n"
    )
    assert not list(tmp_path.iterdir())


def errors(done):
    return [line for line in done.stderr.splitlines() if "warning" not in line]


def test_preempted_and_then_killed_they_start_again_by_themselves_and_reach_the_very_same_end(trained, two, tmp_path):
    """SIGTERM to one after 16 updates, of which all save the state; SIGKILL after 22, of which the others end."""
    model_dir = cut(two[0], tmp_path / "model", 15)
    deaths = {"DIE": "16:SIGTERM:0,22:SIGKILL:20", "DIE_INDEX": "1", "DIED": str(tmp_path), "PACE": "0.3"}
    done = launch(*trained.pretrain(model_dir), restarts=3, **deaths)
    assert done.returncode == 0, done.stderr
    preempted, gone, killed = [line for line in errors(done) if "the run was" in line or "exited while" in line]
    assert preempted == "bertfam: the run was preempted after saving its state; restarting it (restarts left: 2)"
    assert gone.startswith("bertfam: error: process 1 exited while the others waited for ") and gone.endswith("; see its log")
    assert killed == "bertfam: the run was killed by signal 9; restarting it (restarts left: 1)"
    resumed = [int(line.split()[-1]) for line in done.stdout.splitlines() if line.startswith("resumed from step ")]
    assert resumed[0] == 15 < resumed[1] < 22 and resumed[2:] == [max(resumed[1], 20)]
    assert_equal_arrays(arrays(model_dir, 24), arrays(two[0], 24))
    # The stop ended an interval of its own; all other lines are those of the undisturbed run.
    found, expected = metrics(model_dir), metrics(two[0])
    shared = {key for key in found if key in expected and key[:2] != (20, "train")}
    assert {key[0] for key in expected} - {key[0] for key in shared} <= {20}
    assert {key: found[key] for key in shared} == {key: expected[key] for key in shared}


def test_what_ends_one_process_ends_two(trained, two, small_disk):
    """With a line: a folder that only can be read, and a loss that is no number."""
    disk = small_disk(8)
    model_dir = cut(two[0], disk / "model", 20)
    remount(disk, "ro")
    words = trained.pretrain(model_dir, f"--cache_dir={trained.model_dir / 'cache'}")
    done = launch(*words)
    assert (done.returncode, errors(done)) == (
        2,
        [f"bertfam: error: {model_dir}/config.gin cannot be written (Read-only file system)"],
    )
    remount(disk, "rw")
    done = launch(*words, NAN="21")
    assert done.returncode == 1 and newest(model_dir) == 20
    (told,) = errors(done)  # the launcher shows once what both tell
    assert told.removeprefix("[1] ").startswith("bertfam: error: the update that leads to step 22 has loss nan")


def test_one_that_is_stuck_tells_where_and_ends_and_so_do_the_others(trained, two, tmp_path):
    model_dir = cut(two[0], tmp_path / "model", 20)
    done = launch(*trained.pretrain(model_dir, "--gin.Run.watchdog_seconds=4"), STUCK="22", DIE_INDEX="1")
    assert done.returncode == 76
    stuck = "[1] bertfam: error: process 1 was stuck in the phase 'training' (Run.watchdog_seconds = 4) and exits; "
    assert f"{stuck}the stack of each thread is above" in done.stderr.splitlines()
    assert '[1]   File "' in done.stderr and 'bertfam_process.py", line' in done.stderr
    (told,) = [line for line in errors(done) if not line.startswith("[1] ")]
    assert told.startswith("bertfam: error: process 1 exited while the others waited for ")
    assert newest(model_dir) == 20


def test_two_processes_take_over_rows_and_moments_as_one_does(trained, two, rewritten, tmp_path):
    """Over another vocabulary, with fewer heads."""
    masked = ["--gin.Run.objective=@Mlm()", "--gin.Mlm.model=@BertConfig()"]
    flags = [f"--gin_file={trained.folder / 'run.gin'}", f"--cache_dir={rewritten / 'cache'}", f"--init_from={two[0]}"]
    words = ["pretrain", *flags, "--init_optimizer", *ONE, *masked]
    found = []
    for name, run in (("one", in_process), ("two", launch)):
        done = run(*words, f"--model_dir={tmp_path / name}")
        assert done.returncode == 0, done.stderr
        (told,) = [line for line in done.stdout.splitlines() if line.startswith("starts from ")]
        found.append((told, arrays(tmp_path / name, 1)))
    (line, one), (other, both) = found
    assert f"starts from {two[0]}: encoder, mlm_head; of 250 tokens " in line
    assert not any("nsp_head" in name or "pooler" in name for name in both)
    assert line == other and ", 0 begin with" not in line and line.endswith("; with the optimizer's moments")
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


def by_themselves(words, flags=lambda index: (), **environment):
    """Two processes without a launcher, which would end one after the other: (exit status, stdout, stderr) of each."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        words = [*words, f"--coordinator=localhost:{probe.getsockname()[1]}", "--num_processes=2"]
    processes = [
        started([*words, f"--process_index={index}", *flags(index)], environment, stdout=PIPE, stderr=PIPE, text=True)
        for index in range(2)
    ]
    with ThreadPoolExecutor() as pool:
        told = list(pool.map(lambda process: process.communicate(timeout=120), processes))
    return [(process.returncode, *each) for process, each in zip(processes, told, strict=True)]


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize(("ends", "status", "others"), [({"DIE": "17:SIGKILL:0"}, -9, 77), ({"FAULT": "17"}, 1, 1)])
def test_who_is_left_alone_ends_as_launchers_need(trained, two, tmp_path, index, ends, status, others):
    """A process that was killed is started again with the others; a fault would only come again."""
    model_dir = cut(two[0], tmp_path / "model", 15)
    found = by_themselves(trained.pretrain(model_dir), PACE="0.3", DIE_INDEX=index, **ends)
    (ended, _, own), (left, _, errors) = found[index], found[1 - index]
    assert (ended, left) == (status, others)
    assert ("AttributeError" in own) is (status == 1) and "Traceback" not in errors
    gone = f"bertfam: error: process {index} exited while the others waited for "
    assert any(line.startswith(gone) for line in errors.splitlines()) is not (index == 0 and status == 1)  # which has told
    assert newest(model_dir) == 15


def test_processes_with_different_flags_are_refused(trained, tmp_path):
    """Not through the launcher, which gives all the same."""
    words = trained.pretrain(tmp_path / "model")
    found = by_themselves(words, lambda index: [f"--gin.SEED={index + 3}"])
    assert [(status, out) for status, out, _ in found] == [(2, ""), (2, "")]
    told = [errors for _, _, errors in found]
    assert told[0] == (
        "bertfam: error: process 1 has a different configuration from process 0: SEED = 4 there, SEED = 3 on process 0; give all "
        "processes the same flags and folders\n"
    )
    assert told[1] == "" and not list(tmp_path.iterdir())
