"""Commands that the launchers print, to the letter; `python tests/launch/test_dry_runs.py` rewrites the golden files."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from time_limits import FAR_SECONDS

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
COMMAND = ["--", "bertfam", "pretrain", "--gin_file=runs/bert_base.gin", "--model_dir=gs://b/m"]
# Spaces, both kinds of quotes, variables for the shell and for Kubernetes, a line end, a backslash and an umlaut.
# The last is a line that would close a here-document.
ODD = [
    *COMMAND,
    "--input=my texts/*.txt",
    "--gin.A='it''s'",
    '--gin.B="$HOME $(HOME) `id`"',
    "--gin.C=1\n2\\n",
    "--gin.D=ü;#",
    "\nEND\n",
]
VM = ["bert", "--zone=us-west4-a"]
IMAGE = "--image=us-docker.pkg.dev/p/images/bertfam:1"
CASES = {
    "local": ["local.py", "--processes=2", "--devices_per_process=4", "--restarts=3", *ODD],
    "tpu_vm_train": ["tpu_vm.py", "train", *VM, "--slice=v5e-16", "--spot", "--valid_until=6h", "--xla_flags", *ODD],
    "tpu_vm_up_two_slices": ["tpu_vm.py", "up", *VM, "--project=p", "--slice=2xv5p-128", "--guaranteed", "--runtime=v3"],
    "tpu_vm_stop": ["tpu_vm.py", "stop", *VM],
    "tpu_vm_status": ["tpu_vm.py", "status", *VM],
    "tpu_vm_fetch": ["tpu_vm.py", "fetch", *VM, "--folder=my model", "--to=here's"],
    "tpu_vm_down": ["tpu_vm.py", "down", *VM],
    "gke_create": ["gke.py", "create", "bert", "--slice=2xv6e-16", IMAGE, "--spot", "--service_account=trainer", *ODD],
    "gke_create_one_machine": ["gke.py", "create", "bert", "--namespace=n", "--slice=v5e-8", IMAGE, "--xla_flags", *COMMAND],
    "gke_array": [
        *("gke.py", "create", "study", "--slice=v5e-1", IMAGE, "--array=12", "--claim=shared:/shared"),
        *("--", "bertfam", "ablate", "--output=/shared/study"),
    ],
    "gke_logs": ["gke.py", "logs", "bert"],
    "gke_status": ["gke.py", "status", "bert"],
    "gke_delete": ["gke.py", "delete", "bert"],
    "slurm": ["slurm.py", "bert", "--nodes=2", "--time=1-00:00:00", "--sbatch=--partition=gpu", "--xla_flags", *ODD],
    "slurm_array": ["slurm.py", "study", "--array=12", "--gpus_per_node=1", "--", "bertfam", "ablate", "--output=my study"],
    "xpk_create": ["xpk.py", "create", "bert", "--cluster=c", "--slice=2xv5e-256", IMAGE, "--xla_flags", *ODD],
    "xpk_delete": ["xpk.py", "delete", "bert", "--cluster=c", "--project=p", "--zone=z"],
}


def dry_run(words):
    """Return the printed commands without the parts that differ between machines."""
    script, *flags = words
    if "--" in flags:
        flags.insert(flags.index("--"), "--dry_run")
    else:
        flags.append("--dry_run")
    environment = {name: value for name, value in os.environ.items() if name not in ("PATH", "XLA_FLAGS")}
    process = subprocess.run(
        [sys.executable, "-S", ROOT / "launch" / script, *flags],
        capture_output=True,
        text=True,
        env=environment,
        timeout=FAR_SECONDS,
    )
    assert process.returncode == 0, process.stderr
    printed = re.sub(r"localhost:\d+", "localhost:PORT", process.stdout.replace(str(ROOT), "CHECKOUT"))
    return re.sub(r"\b[0-9a-f]{32}\b", "TOKEN", printed)


@pytest.mark.parametrize("name", CASES)
def test_dry_run_prints_the_golden_commands(name):
    assert dry_run(CASES[name]) == (HERE / "golden" / f"{name}.txt").read_text()


def test_every_golden_file_has_a_case():
    assert {path.stem for path in (HERE / "golden").iterdir()} == set(CASES)


if __name__ == "__main__":
    for name, words in CASES.items():
        (HERE / "golden" / f"{name}.txt").write_text(dry_run(words))
