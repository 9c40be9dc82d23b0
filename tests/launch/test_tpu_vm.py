"""The launch script against a gcloud that only writes down how it was called."""

import json
import os
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "launch" / "tpu_vm.sh"
GCLOUD = """#!/usr/bin/env python3
import json, os, sys
with open(os.environ["CALLS"], "a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")
sys.exit(1 if "describe" in sys.argv and os.environ["EXISTS"] == "0" else 0)
"""


def launch(tmp_path, *arguments, exists="0"):
    gcloud = tmp_path / "bin" / "gcloud"
    gcloud.parent.mkdir(exist_ok=True)
    gcloud.write_text(GCLOUD)
    gcloud.chmod(0o755)
    calls = tmp_path / "calls"
    environment = os.environ | {"PATH": f"{gcloud.parent}:{os.environ['PATH']}", "CALLS": str(calls), "EXISTS": exists}
    done = subprocess.run(["bash", SCRIPT, *arguments], env=environment, capture_output=True, text=True)
    return done, [json.loads(line) for line in calls.read_text().splitlines()] if calls.exists() else []


def test_makes_the_machine_and_starts_with_every_flag_quoted(tmp_path):
    flags = ["--input=my texts/*.txt", "--vocab=vocab", "--gin.Run.seed=1; rm -rf /"]
    done, calls = launch(tmp_path, "bert", "us-west4-a", "v5litepod-8", "v2-alpha-tpuv5-lite", *flags)
    assert done.returncode == 0, done.stderr
    assert [call[3] for call in calls] == ["describe", "create", "scp", "ssh", "ssh"]
    assert all(call[-1] == "--zone=us-west4-a" for call in calls)
    assert "--accelerator-type=v5litepod-8" in calls[1]
    command = next(part for part in calls[-1] if part.startswith("--command=")).removeprefix("--command=")
    # What the shell over there makes of it: the flags as they were given, and nothing run besides.
    words = command.split(" >> ")[0].removeprefix("nohup venv/bin/bertfam pretrain")
    unquoted = subprocess.run(["bash", "-c", f"printf '%s\\n'{words}"], capture_output=True, text=True).stdout.splitlines()
    assert unquoted == flags


def test_keeps_a_machine_that_exists(tmp_path):
    done, calls = launch(tmp_path, "bert", "zone", "v4-8", "version", "--model_dir=model", exists="1")
    assert done.returncode == 0, done.stderr
    assert "create" not in [call[3] for call in calls]


def test_says_how_to_call_it(tmp_path):
    done, calls = launch(tmp_path, "bert")
    assert done.returncode == 2 and not calls
    assert "launch/tpu_vm.sh NAME ZONE ACCELERATOR_TYPE RUNTIME_VERSION PRETRAIN_FLAGS..." in done.stderr
