"""Ends of `pretrain` before it is finished, by a signal, a damaged checkpoint or a full disk: nothing is lost."""

import contextlib
import os
import signal
import subprocess
import time
from types import SimpleNamespace

import bertfam_process
import phases
import pytest
from command_line import bertfam, error_lines, in_process, listing, started
from model_folders import arrays, assert_equal_arrays, copy_run, cut, fill, metrics, remount, whole
from time_limits import FAR_SECONDS

from bertfam.storage import locks
from bertfam.training.checkpoints import manifest, newest
from bertfam.training.trainer import Trainer


def check_stop(done, model_dir, name):
    """Check that a run that got a signal after 17 updates has saved the step that it was in."""
    assert done.returncode == 75, done.stderr
    assert done.stdout.splitlines()[-1] == "stopped after step 18 of 24, which is saved; the same command resumes it"
    message = f"bertfam: {name}: stopping after this step and saving it; a second signal exits at once"
    assert message in done.stderr.splitlines() and "Traceback" not in done.stderr
    assert whole(model_dir) == [5, 10, 15, 18]


def stopped_in_process(trained, model_dir, number, monkeypatch):
    """Send a signal to this process after 17 updates, and return the run that has stopped."""
    with monkeypatch.context() as patch:
        bertfam_process.at_step(17, lambda step: os.kill(os.getpid(), number), patch.setattr)
        return in_process(*trained.pretrain(model_dir))


def test_sigterm_saves_the_step_and_the_resumed_run_reaches_the_same_end(trained, tmp_path, monkeypatch):
    """test_pretrain_processes.py sends it to real processes."""
    model_dir = cut(trained.model_dir, tmp_path / "model", 15)
    check_stop(stopped_in_process(trained, model_dir, signal.SIGTERM, monkeypatch), model_dir, "SIGTERM")
    done = in_process(*trained.pretrain(model_dir))
    assert done.returncode == 0, done.stderr
    assert "resumed from step 18" in done.stdout.splitlines()
    assert_equal_arrays(arrays(model_dir, 24), arrays(trained.model_dir, 24))


def test_sigint_saves_the_step(trained, tmp_path, monkeypatch):
    model_dir = cut(trained.model_dir, tmp_path / "model", 15)
    check_stop(stopped_in_process(trained, model_dir, signal.SIGINT, monkeypatch), model_dir, "SIGINT")


def test_sigterm_while_the_first_step_is_compiled_ends_the_run_at_once(trained, tmp_path, monkeypatch):
    """The process would exit with 75 within `compile_step`, which is let go on here."""
    model_dir, statuses, compile_step = cut(trained.model_dir, tmp_path / "model", 15), [], Trainer.compile_step
    held = []

    def signalled(trainer, stage, length):
        os.kill(os.getpid(), signal.SIGTERM)
        deadline = time.monotonic() + FAR_SECONDS
        while not statuses and time.monotonic() < deadline:
            time.sleep(0.01)
        held.append((model_dir / locks.NAME).exists())
        return compile_step(trainer, stage, length)

    monkeypatch.setattr(Trainer, "compile_step", signalled)
    monkeypatch.setattr(os, "_exit", statuses.append)
    done = in_process(*trained.pretrain(model_dir))
    assert (statuses, held) == ([75], [False])
    assert "SIGTERM: exited before the first step" in done.stderr


def test_signal_while_the_token_cache_is_built_ends_both_processes(trained, tmp_path):
    marks = tmp_path / "marks"
    variables = {"MARKS": marks, "STRETCH": f"tokenising:{FAR_SECONDS}"}
    with started(trained.pretrain(tmp_path / "model"), variables, stderr=subprocess.PIPE, text=True) as process:
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


def test_second_signal_exits_at_once(trained, tmp_path):
    """Send both while step 20 is saved, which is then complete or absent."""
    model_dir = cut(trained.model_dir, tmp_path / "model", 15)
    done = bertfam(*trained.pretrain(model_dir), DIE="20:SIGTERM:0,20:SIGINT:0", STUCK=20)
    assert done.returncode == 130
    assert done.stderr.splitlines()[-1] == "bertfam: second SIGINT: exiting at once, without saving"
    assert whole(model_dir) in ([5, 10, 15], [5, 10, 15, 20]) and newest(model_dir) == whole(model_dir)[-1]


def test_damaged_checkpoints_are_named_and_the_newest_whole_one_is_used(trained, tmp_path):
    """Flip a byte and delete a manifest: the end is the same."""
    model_dir = cut(trained.model_dir, tmp_path / "model", 24)
    path = max((model_dir / "checkpoints" / "24" / "params").glob("**/d/*"), key=lambda path: path.stat().st_size)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    name = path.relative_to(model_dir / "checkpoints" / "24")
    (model_dir / "checkpoints" / "20" / "digests.json").unlink()
    done = in_process(*trained.pretrain(model_dir))
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if "is not used" in line] == [
        f"bertfam: warning: {model_dir}/checkpoints/{bad} is not used ({why}); step 15 is"
        for bad, why in ((24, f"{name} has other bytes than were written"), (20, "no digests.json: it was never finished"))
    ]
    assert "resumed from step 15" in done.stdout.splitlines()
    assert whole(model_dir) == [5, 10, 15, 20, 24]
    assert sorted(path.name for path in (model_dir / "checkpoints").iterdir()) == ["10", "15", "20", "24", "5"]
    assert_equal_arrays(arrays(model_dir, 24), arrays(trained.model_dir, 24))


def test_only_damaged_checkpoints_are_an_error_of_one_line(trained, tmp_path, capsys):
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


def test_nan_ends_the_run_and_no_later_step_is_saved(trained, tmp_path, monkeypatch):
    model_dir = cut(trained.model_dir, tmp_path / "model", 20)
    bertfam_process.make_nan({21}, monkeypatch.setattr)
    done = in_process(*trained.pretrain(model_dir))
    assert done.returncode == 1 and newest(model_dir) == 20
    (error,) = error_lines(done)
    assert error.startswith("bertfam: error: the update that leads to step 22 has loss nan and gradient norm")
    # The policy may change when the run resumes, which reports the skipped update.
    done = in_process(*trained.pretrain(model_dir, "--gin.Run.non_finite='skip'", "--gin.Run.eval_every=0"))
    assert done.returncode == 0, done.stderr
    assert newest(model_dir) == 24 and metrics(model_dir)[-1]["skipped"] == 1


def test_full_disk_keeps_the_older_checkpoint_and_with_room_the_run_reaches_the_same_end(trained, small_disk):
    disk = small_disk(8)
    model_dir = cut(trained.model_dir, disk / "model", 15)
    fill(disk / "filling", room=100_000)
    done = in_process(*trained.pretrain(model_dir))
    assert done.returncode == 2, done.stderr
    assert error_lines(done) == [
        f"bertfam: error: the checkpoint of step 20 could not be written to {model_dir}/checkpoints (No space left on device); "
        "once that is fixed, the same command resumes from step 15"
    ]
    assert whole(model_dir) == [5, 10, 15]

    # Without room for a line of metrics.
    fill(disk / "more")
    done = in_process(*trained.pretrain(model_dir))
    assert done.returncode == 2, done.stderr
    (error,) = error_lines(done)
    assert error.startswith("bertfam: error: ") and "(No space left on device)" in error
    assert whole(model_dir) == [5, 10, 15]

    for name in ("filling", "more"):
        (disk / name).unlink()
    done = in_process(*trained.pretrain(model_dir))
    assert done.returncode == 0 and "resumed from step 15" in done.stdout.splitlines()
    assert_equal_arrays(arrays(model_dir, 24), arrays(trained.model_dir, 24))


def test_full_disk_ends_a_run_that_writes_its_metrics(trained, small_disk, monkeypatch):
    disk = small_disk(8)
    model_dir = cut(trained.model_dir, disk / "model", 15)

    def fill_disk(step):
        fill(disk / "filling")
        # The last block of metrics.jsonl has room for some lines.
        with open(model_dir / "metrics.jsonl", "ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"\n")

    bertfam_process.at_step(16, fill_disk, monkeypatch.setattr)
    flags = ["--gin.Run.log_every=1", "--gin.CHECKPOINT_EVERY=100"]
    done = in_process(*trained.pretrain(model_dir, *flags))
    (error,) = error_lines(done)
    assert done.returncode == 2
    assert error.startswith(f"bertfam: error: {model_dir}/metrics.jsonl cannot be written (No space left on device); ")
    assert "once that is fixed, the same command resumes from" in error
    assert whole(model_dir) == [5, 10, 15]


def test_read_only_folder_ends_pretrain_but_not_evaluate(trained, small_disk, capsys):
    from bertfam import cli

    disk = small_disk(8)
    model_dir = cut(trained.model_dir, disk / "model", 20)
    remount(disk, "ro")
    assert cli.main(trained.pretrain(model_dir)) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error == f"bertfam: error: {model_dir} cannot be written (Read-only file system); make it writable, or name another"
    assert cli.main(["evaluate", f"--model_dir={model_dir}", "--batches=1"]) == 0
    assert cli.main(["checkpoints", f"--model_dir={model_dir}"]) == 0


def test_a_folder_that_another_run_writes_is_refused_and_can_be_read(trained, tmp_path, monkeypatch):
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    clock.sleep = lambda seconds: setattr(clock, "now", clock.now + seconds)
    monkeypatch.setattr(locks, "time", clock)
    model_dir = copy_run(trained.model_dir, tmp_path / "model")
    with locks.hold(model_dir):
        before = listing(model_dir)
        refused = in_process("pretrain", f"--model_dir={model_dir}", "--gin.Run.log_every=3")
        assert refused.returncode == 2 and 60 <= clock.now < 62
        waiting, error = refused.stderr.splitlines()
        assert f"waiting for process {os.getpid()} on " in waiting
        assert error.startswith(f"bertfam: error: {model_dir} is being written by process {os.getpid()} on ")
        assert in_process("checkpoints", f"--model_dir={model_dir}", "--verify").returncode == 0
        assert in_process("export", f"--model_dir={model_dir}", f"--output={tmp_path / 'export'}").returncode == 0
        assert listing(model_dir) == before
    assert not (model_dir / locks.NAME).exists()


def test_a_fault_of_the_storage_that_passes_costs_no_step(trained, tmp_path, monkeypatch):
    """A save fails once: the run stops, and saves the step that it has reached by then."""
    model_dir = cut(trained.model_dir, tmp_path / "model", 15)
    write, faults = manifest.write, [TimeoutError("Timed out after 86400 seconds.")]

    def fail_once(folder):
        if faults:
            raise faults.pop()
        write(folder)

    monkeypatch.setattr(manifest, "write", fail_once)
    done = in_process(*trained.pretrain(model_dir))
    last = newest(model_dir)
    assert "could not be written" in done.stderr and not faults
    assert last > 15 and last in whole(model_dir)
    assert done.returncode == (0 if last == 24 else 75)
    assert f"stopped after step {last} " in done.stdout or done.returncode == 0
