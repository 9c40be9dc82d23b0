"""The launch script against a gcloud that writes down how it was called, and runs what it is told to in a folder here."""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "launch" / "tpu_vm.sh"
GCLOUD = """#!/usr/bin/env python3
import json, os, subprocess, sys
with open(os.environ["CALLS"], "a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")
if "describe" in sys.argv:
    sys.exit(1 if os.environ["EXISTS"] == "0" else 0)
if "scp" in sys.argv:
    sys.exit(subprocess.run(["cp", sys.argv[5], os.environ["MACHINE"]]).returncode)
command = next((part.removeprefix("--command=") for part in sys.argv if part.startswith("--command=")), "true")
sys.exit(subprocess.run(["bash", "-c", command], cwd=os.environ["MACHINE"]).returncode)
"""
BERTFAM = """#!/bin/bash
printf '%s\\n' "$@" > arguments
exec -a "bertfam pretrain" sleep "$SECONDS_OF_TRAINING"
"""
WHERE = ("bert", "us-west4-a", "v5litepod-8", "v2-alpha-tpuv5-lite")


@pytest.fixture
def machine(tmp_path):
    """The home folder of the machine, with an environment in which pip does nothing and bertfam sleeps."""
    for name, text in {"python": "#!/bin/sh\n", "pip": "#!/bin/sh\n", "bertfam": BERTFAM}.items():
        program = tmp_path / "machine" / "venv" / "bin" / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(text)
        program.chmod(0o755)
    return tmp_path / "machine"


@pytest.fixture
def checkout(tmp_path):
    """A repository with the script and one more file, committed."""
    folder = tmp_path / "checkout"
    (folder / "launch").mkdir(parents=True)
    shutil.copy(SCRIPT, folder / "launch")
    (folder / "file").write_text("committed")
    author = ["-c", "user.name=A", "-c", "user.email=a@example.com"]
    for words in (["init", "-q"], ["add", "."], [*author, "commit", "-q", "-m", "One"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    return folder


@pytest.fixture
def launch(tmp_path, machine, checkout):
    """launch(*arguments) runs the script: what is done, and the calls of gcloud."""
    gcloud = tmp_path / "bin" / "gcloud"
    gcloud.parent.mkdir()
    gcloud.write_text(GCLOUD)
    gcloud.chmod(0o755)
    calls = tmp_path / "calls"

    def run(*arguments, exists="0", seconds="0"):
        calls.unlink(missing_ok=True)
        environment = os.environ | {
            "PATH": f"{gcloud.parent}:{os.environ['PATH']}",
            "CALLS": str(calls),
            "EXISTS": exists,
            "MACHINE": str(machine),
            "SECONDS_OF_TRAINING": seconds,
        }
        done = subprocess.run(
            ["bash", checkout / "launch" / "tpu_vm.sh", *arguments], env=environment, capture_output=True, text=True
        )
        return done, [json.loads(line) for line in calls.read_text().splitlines()] if calls.exists() else []

    return run


def arguments_of(machine):
    """The flags that bertfam was started with over there."""
    end = time.monotonic() + 10
    while not (machine / "arguments").exists() or not (machine / "arguments").read_text():
        assert time.monotonic() < end
        time.sleep(0.01)
    return (machine / "arguments").read_text().splitlines()


def test_makes_the_machine_and_starts_with_every_flag_as_it_was_given(launch, machine):
    flags = ["--input=my texts/*.txt", "--vocab=vocab", "--gin.Run.seed=1; rm -rf /"]
    done, calls = launch(*WHERE, *flags)
    assert done.returncode == 0 and done.stderr == ""
    assert [call[3] for call in calls] == ["describe", "create", "ssh", "scp", "ssh", "ssh"]
    assert all(call[-1] == "--zone=us-west4-a" for call in calls)
    assert "--accelerator-type=v5litepod-8" in calls[1]
    assert arguments_of(machine) == ["pretrain", *flags]
    assert "started: tail -f pretrain.log" in done.stdout


def test_keeps_a_machine_that_exists(launch):
    done, calls = launch(*WHERE, "--model_dir=model", exists="1")
    assert done.returncode == 0, done.stderr
    assert "create" not in [call[3] for call in calls]


def test_what_travels_is_the_commit_into_a_fresh_folder(launch, machine, checkout):
    (checkout / "file").write_text("changed")
    (machine / "bertfam").mkdir()
    (machine / "bertfam" / "stale").touch()
    done, _ = launch(*WHERE, "--model_dir=model")
    assert done.returncode == 0
    assert done.stderr == (
        f"warning: {checkout} has changes that are not committed; they stay here, and the commit without them runs\n"
    )
    assert sorted(path.name for path in (machine / "bertfam").iterdir()) == ["file", "launch"]
    assert (machine / "bertfam" / "file").read_text() == "committed"


def test_starts_nothing_while_the_last_run_is_on(launch, machine):
    done, _ = launch(*WHERE, "--model_dir=model", seconds="60")
    assert done.returncode == 0
    arguments_of(machine)
    process = int((machine / "pretrain.pid").read_text())
    try:
        again, calls = launch(*WHERE, "--model_dir=other", exists="1")
        assert again.returncode == 1 and [call[3] for call in calls] == ["describe", "ssh"]
        assert "bert: the last run is still on, nothing was started" in again.stderr
        assert arguments_of(machine) == ["pretrain", "--model_dir=model"]
    finally:
        os.kill(process, 15)
    while Path(f"/proc/{process}").exists() and "Z" not in Path(f"/proc/{process}/stat").read_text():
        time.sleep(0.01)
    (machine / "arguments").unlink()
    done, _ = launch(*WHERE, "--model_dir=other", exists="1")
    assert done.returncode == 0, done.stderr
    assert arguments_of(machine) == ["pretrain", "--model_dir=other"]


def test_says_how_to_call_it(launch):
    done, calls = launch("bert")
    assert done.returncode == 2 and not calls
    assert "launch/tpu_vm.sh NAME ZONE ACCELERATOR_TYPE RUNTIME_VERSION PRETRAIN_FLAGS..." in done.stderr
