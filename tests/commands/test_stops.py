"""Signals, a watchdog, a full disk: how `pretrain` ends before it is finished, and that nothing is lost by it."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import bertfam_process
import phases
import pytest
import xla
from command_line import bertfam, in_process, listing
from model_folders import arrays, assert_equal_arrays, cut, remount, whole
from test_pretrain_processes import LAUNCHER

from bertfam.training.checkpoints import newest


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_saves_the_step_and_the_run_goes_on_to_the_same_end(trained, tmp_path, name):
    model_dir = cut(trained.model_dir, tmp_path / "model", 15)
    done = bertfam(*trained.pretrain(model_dir), DIE=f"17:{name}:0")
    assert done.returncode == 75, done.stderr
    assert done.stdout.splitlines()[-1] == "stopped after step 18 of 24, which is saved; the same command resumes it"
    told = f"bertfam: {name}: stopping after this step and saving it; a second signal exits at once"
    assert told in done.stderr.splitlines() and "Traceback" not in done.stderr
    assert whole(model_dir) == [5, 10, 15, 18]
    if name == "SIGINT":  # after which nothing else is left
        return
    done = in_process(*trained.pretrain(model_dir))
    assert done.returncode == 0, done.stderr
    assert "resumed from step 18" in done.stdout.splitlines()
    assert_equal_arrays(arrays(model_dir, 24), arrays(trained.model_dir, 24))


def test_a_signal_before_training_ends_what_was_begun(trained, tmp_path):
    """While the token cache is built in another process, which ends too."""
    marks = tmp_path / "marks"
    words = [sys.executable, bertfam_process.__file__, *map(str, trained.pretrain(tmp_path / "model"))]
    variables = {"MARKS": str(marks), "STRETCH": "tokenising:20", "JAX_PLATFORMS": "cpu"}
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=os.environ | variables) as process:
        while not any(mark.phase == "tokenising" for mark in phases.read(marks.read_text() if marks.exists() else "")):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        errors = process.stderr.read()
        assert process.wait() == 75
    assert errors.splitlines()[-1] == "bertfam: SIGTERM: exited before training started"
    (child,) = {mark.process for mark in phases.read(marks.read_text())} - {process.pid}
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    assert not (tmp_path / "model" / "cache" / "cache.json").exists()


def test_a_second_signal_ends_at_once(trained, tmp_path):
    """While 20 is being saved: it is whole or absent."""
    model_dir = cut(trained.model_dir, tmp_path / "model", 15)
    done = bertfam(*trained.pretrain(model_dir), DIE="20:SIGTERM:0,20:SIGINT:0", STUCK=20)
    assert done.returncode == 130
    assert done.stderr.splitlines()[-1] == "bertfam: second SIGINT: exiting at once, without saving"
    assert whole(model_dir) in ([5, 10, 15], [5, 10, 15, 20]) and newest(model_dir) == whole(model_dir)[-1]


@pytest.mark.parametrize("count", [2, 3])
def test_all_processes_save_the_same_step(trained, tmp_path, count):
    """SIGTERM to the last of them alone, which is also the only one that is slow, and seen to be."""
    if count == 3:  # eight rows are no rows for three
        settings = ("BATCH_SIZE=9", "Run.stages=(@short/Stage(),)", "Run.log_every=2")
        flags = [f"--cache_dir={trained.model_dir / 'cache'}", *(f"--gin.{setting}" for setting in settings)]
        model_dir, signalled, total = tmp_path / "model", 6, 12
    else:
        flags, model_dir, signalled, total = [], cut(trained.model_dir, tmp_path / "model", 15), 17, 24
    variables = {"PACE": "0.4", "PACE_INDEX": str(count - 1), "DIE": f"{signalled}:SIGTERM:0", "DIE_INDEX": str(count - 1)}
    command = [sys.executable, LAUNCHER, f"--processes={count}", "--devices_per_process=1", "--grace=20", "--"]
    done = subprocess.run(
        [*command, sys.executable, bertfam_process.__file__, *trained.pretrain(model_dir, *flags)],
        capture_output=True,
        text=True,
        env=os.environ | xla.device_environment() | variables,
        timeout=300,
    )
    assert done.returncode == 75, done.stderr
    last = newest(model_dir)
    assert signalled < last < total and whole(model_dir)[-1] == last
    assert f"stopped after step {last} of {total}, which is saved; the same command resumes it" in done.stdout.splitlines()
    lines = [json.loads(line) for line in (model_dir / "metrics.jsonl").read_text().splitlines()]
    idle = [sum(times) for times in zip(*(line["idle_seconds"] for line in lines if line["split"] == "hosts"), strict=True)]
    assert len(idle) == count and max(idle) == idle[-1]


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(trained, tmp_path):
    """A flipped byte, a file cut short, a manifest that is gone: the end is the same."""
    model_dir = cut(trained.model_dir, tmp_path / "model", 20)
    path = max((model_dir / "checkpoints" / "20" / "params").glob("**/d/*"), key=lambda path: path.stat().st_size)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    name = path.relative_to(model_dir / "checkpoints" / "20")
    (model_dir / "checkpoints" / "15" / "digests.json").unlink()
    done = in_process(*trained.pretrain(model_dir))
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if "is not used" in line] == [
        f"bertfam: warning: {model_dir}/checkpoints/{bad} is not used ({why}); step 10 is"
        for bad, why in ((20, f"{name} has other bytes than were written"), (15, "no digests.json: it was never finished"))
    ]
    assert "resumed from step 10" in done.stdout.splitlines()
    assert whole(model_dir) == [5, 10, 15, 20, 24]
    assert sorted(path.name for path in (model_dir / "checkpoints").iterdir()) == ["10", "15", "20", "24", "5"]
    assert_equal_arrays(arrays(model_dir, 24), arrays(trained.model_dir, 24))


def test_none_that_is_whole_is_a_mistake_of_one_line(trained, tmp_path, capsys):
    from bertfam import cli

    model_dir = cut(trained.model_dir, tmp_path / "model", 5)
    (model_dir / "checkpoints" / "5" / "params" / "_METADATA").unlink()
    before = listing(model_dir)
    for words in (["pretrain", f"--model_dir={model_dir}"], ["evaluate", f"--model_dir={model_dir}"]):
        assert cli.main(words) == 2
        assert capsys.readouterr().err == (
            f"bertfam: error: all checkpoints in {model_dir}/checkpoints are damaged: 5 (params/_METADATA is missing); restore a "
            "copy of one, or use another --model_dir\n"
        )
    assert listing(model_dir) == before


def test_a_full_disk(trained, small_disk):
    """The older checkpoint stays, and when there is room again the run goes on to the same end."""
    disk = small_disk(8)
    model_dir = cut(trained.model_dir, disk / "model", 15)
    room = shutil.disk_usage(disk).free - 100_000
    filling = disk / "filling"
    filling.write_bytes(bytes(room))
    done = in_process(*trained.pretrain(model_dir))
    assert done.returncode == 2, done.stderr
    errors = [line for line in done.stderr.splitlines() if "warning" not in line]
    assert errors == [
        f"bertfam: error: the checkpoint of step 20 could not be written to {model_dir}/checkpoints (No space left on device); "
        "once that is fixed, the same command resumes from step 15"
    ]
    assert whole(model_dir) == [5, 10, 15]

    # Not even a line of metrics.
    handle = os.open(filling, os.O_WRONLY | os.O_APPEND)
    with contextlib.suppress(OSError):
        while os.write(handle, bytes(1000)):
            pass
    os.close(handle)
    done = in_process(*trained.pretrain(model_dir))
    errors = [line for line in done.stderr.splitlines() if "warning" not in line]
    assert done.returncode == 2 and len(errors) == 1, done.stderr
    assert errors[0].startswith("bertfam: error: ") and "(No space left on device)" in errors[0]
    assert whole(model_dir) == [5, 10, 15]

    filling.unlink()
    done = in_process(*trained.pretrain(model_dir))
    assert done.returncode == 0 and "resumed from step 15" in done.stdout.splitlines()
    assert_equal_arrays(arrays(model_dir, 24), arrays(trained.model_dir, 24))


def fill(path, room=0):
    """Leaves so many bytes of the disk that a new file is on."""
    path.write_bytes(bytes(shutil.disk_usage(path.parent).free - room))
    with open(path, "ab", buffering=0) as file, contextlib.suppress(OSError):
        while not room:
            file.write(bytes(1000))


@pytest.mark.parametrize("what", ["a checkpoint", "metrics"])
def test_a_full_disk_ends_all_processes_with_one_line(trained, small_disk, what):
    """Whichever has found it; nobody waits for what another cannot write."""
    disk = small_disk(8)
    model_dir = cut(trained.model_dir, disk / "model", 15)
    if what == "a checkpoint":
        fill(disk / "filling", room=100_000)
        flags = []
    else:
        flags = ["--gin.Run.log_every=1", "--gin.CHECKPOINT_EVERY=100", "--gin.TRAIN_STEPS=60"]
    command = [sys.executable, LAUNCHER, "--processes=2", "--devices_per_process=1", "--grace=60", "--"]
    with subprocess.Popen(
        [*command, sys.executable, bertfam_process.__file__, *trained.pretrain(model_dir, *flags)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | xla.device_environment() | {"PACE": "0.2"},
    ) as launcher:
        for line in launcher.stdout:
            if what == "metrics" and line.startswith("step 16/72"):
                fill(disk / "filling")
        errors = [line for line in launcher.stderr.read().splitlines() if "warning" not in line]
    assert launcher.returncode == 2 and len(errors) == 1, errors
    told = f"{model_dir}/metrics.jsonl cannot be" if what == "metrics" else "the checkpoint of step 20 could not be"
    assert errors[0].startswith(f"bertfam: error: {told} written")
    assert "(No space left on device); once that is fixed, the same command resumes from" in errors[0]
    assert whole(model_dir) == [5, 10, 15]


def test_a_folder_that_only_can_be_read(trained, small_disk, capsys):
    from bertfam import cli

    disk = small_disk(8)
    model_dir = cut(trained.model_dir, disk / "model", 20)
    remount(disk, "ro")
    assert cli.main(trained.pretrain(model_dir)) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error == f"bertfam: error: {model_dir}/config.gin cannot be written (Read-only file system)"
    assert cli.main(["evaluate", f"--model_dir={model_dir}", "--batches=1"]) == 0
    assert cli.main(["checkpoints", f"--model_dir={model_dir}"]) == 0
