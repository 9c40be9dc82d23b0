"""Mistakes in the flags of a launcher, each reported in one line before anything runs."""

import contextlib
import importlib
import re

import pytest
from fake_cloud import LAUNCH

from bertfam.cli import COMMANDS

COMMAND = ["--", "bertfam", "pretrain", "--model_dir=model"]
BUCKET = [*COMMAND[:-1], "--model_dir=gs://bucket/model"]
TRAIN = ["/opt/venv/bin/bertfam", "pretrain"]
VM = ["bert", "--zone=z"]
NO_SLICE = "'v9-3' is not a slice; write v5e-16, 2xv6e-256, v5p-128 (v4, v5e, v5p, v6e)"
SIZES = "v6e-1, v6e-4, v6e-8, v6e-16, v6e-32, v6e-64, v6e-128, v6e-256"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tpu_vm.py", "up", *VM], "up requires --slice"),
        (["tpu_vm.py", "up", *VM, "--slice=v9-3"], f"argument --slice: {NO_SLICE}"),
        (["tpu_vm.py", "up", *VM, "--slice=v6e-12"], f"argument --slice: 'v6e-12': v6e-12 does not exist; use {SIZES}"),
        (["tpu_vm.py", "run", *VM, "--slice=v5e-8"], "no command: write it after --"),
        (
            ["tpu_vm.py", "train", *VM, "--slice=v5e-8", *COMMAND],
            "--model_dir is on machines that may be preempted: use a folder on gs://, or --restarts=0",
        ),
        (
            ["tpu_vm.py", "train", *VM, "--slice=v5e-8", "--", "bertfam", "pretrain", "--model_dir", "model"],
            "--model_dir is on machines that may be preempted: use a folder on gs://, or --restarts=0",
        ),
        (
            ["tpu_vm.py", "run", *VM, "--slice=v5e-8", "--", "bertfam", "pretrain", "--model_dir=gs://b/m", "--vocab", "."],
            "--vocab=. is not on the machines: send it by --copy=., or use a folder on gs://",
        ),
        (
            ["gke.py", "create", "bert", "--slice=v5e-8", "--image=i", *COMMAND],
            "--model_dir=model would be in a pod, which no other sees and a restart loses: use a folder on gs://",
        ),
        (
            ["xpk.py", "create", "bert", "--cluster=c", "--slice=v5e-8", "--image=i", *BUCKET, "--vocab=v"],
            "--vocab=v is not in the pods: use a folder on gs://, or the absolute path of one in the image",
        ),
        (["tpu_vm.py", "fetch", *VM], "fetch requires --folder"),
        (["tpu_vm.py", "fetch", *VM, "--folder="], "fetch requires --folder"),
        (["tpu_vm.py", "status", "bert", "--zone="], "argument --zone: '' must not be empty or contain spaces"),
        (
            ["tpu_vm.py", "status", *VM, "--poll_seconds=-1"],
            "argument --poll_seconds: '-1' is not a number of seconds, 0 or more",
        ),
        (["gke.py", "create", "bert", "--slice=v5e-8", *COMMAND], "create requires --image"),
        (
            ["gke.py", "delete", "My Run"],
            "argument NAME: 'My Run' is not a name: use at most 40 letters a to z, digits and -, a letter first",
        ),
        (["gke.py", "create", "bert", "--restarts=-1"], "argument --restarts: '-1' is not an integer, 0 or more"),
        (
            ["gke.py", "create", "bert", "--image=a b"],
            "argument --image: 'a b' must not be empty or contain spaces",
        ),
        (
            ["gke.py", "status", "bert", "--retry_seconds=nan"],
            "argument --retry_seconds: 'nan' is not a number of seconds, 0 or more",
        ),
        (["xpk.py", "create", "bert", "--cluster=c", "--image=i", *COMMAND], "create requires --slice"),
        (["slurm.py", "bert"], "no command: write it after --"),
        (
            ["slurm.py", "bert", *COMMAND, "--gin_file=run.gin\r"],
            "'--gin_file=run.gin\\r': a carriage return ends this word, as in a script with Windows line ends: "
            "convert the script",
        ),
        (["slurm.py", "bert", "--", *TRAIN, "--model-dir=m"], "--model-dir is no flag of bertfam pretrain: write --model_dir"),
        (
            ["gke.py", "create", "bert", "--slice=v5e-8", "--image=i", "--", *TRAIN, "-model_dir", "m"],
            "-model_dir is no flag of bertfam pretrain: write --model_dir",
        ),
        (
            ["xpk.py", "create", "bert", "--cluster=c", "--slice=v5e-8", "--image=i", "--", *TRAIN, "–model_dir=m"],
            "–model_dir is no flag of bertfam pretrain: write --model_dir",
        ),
        (
            ["tpu_vm.py", "run", *VM, "--slice=v5e-8", "--", *TRAIN, "--gin_file=a.gin"],
            "bertfam pretrain requires --model_dir=DIR",
        ),
        (
            ["slurm.py", "bert", "--nodes=1", "--dry_run", "--", *TRAIN, "--model_dir=runs/$SLURM_JOB_ID"],
            "--model_dir=runs/$SLURM_JOB_ID: nothing replaces $SLURM_JOB_ID in it; write a folder of one name, from which a run "
            "that is started again resumes",
        ),
        (
            ["slurm.py", "bert", "--nodes=1", "--dry_run", "--", *TRAIN, "--model_dir=runs/%j"],
            "--model_dir=runs/%j: nothing replaces %j in it; write a folder of one name, from which a run that is started again "
            "resumes",
        ),
        (
            ["slurm.py", "bert", "--nodes=1", "--dry_run", "--", *TRAIN, "--model_dir=gs://me:SECRET/x@bucket/m"],
            "--model_dir=gs://***@: an address with a password would stand in the files and logs of a job: leave it out",
        ),
        (
            ["local.py", "--processes=2", "--", "distill", "--model_dir=m"],
            "distill is a command of bertfam: write -- bertfam distill",
        ),
        (
            ["local.py", "--processes=1", "--", "/opt/venv/bin/python3", "-m", "bertfam", "export", "--model_dir=m"],
            "bertfam export runs in one process: run it without launch/local.py",
        ),
        (
            ["slurm.py", "bert", "--dry_run", "--", "bertfam", "evaluate", "--model_dir=m"],
            "bertfam evaluate runs in one process: run it without launch/slurm.py, or give --nodes=1 --gpus_per_node=1",
        ),
        (
            ["tpu_vm.py", "run", *VM, "--slice=v5e-16", "--", "bertfam", "vocab", "--size=9"],
            "bertfam vocab runs in one process: run it without launch/tpu_vm.py, or on a --slice of one machine, such as v5e-8",
        ),
        (
            ["gke.py", "create", "bert", "--slice=2xv5e-8", "--image=i", "--", "bertfam", "cache"],
            "bertfam cache runs in one process: run it without launch/gke.py, or on a --slice of one machine, such as v5e-8",
        ),
        (
            ["slurm.py", "bert", "--nodes=2", *TRAIN, "--model_dir=m"],
            "unrecognized arguments: /opt/venv/bin/bertfam pretrain --model_dir=m: write -- before the command: "
            "-- /opt/venv/bin/bertfam pretrain --model_dir=m",
        ),
        (
            ["local.py", "--processes=2", "--restart=3", "python", "my_program.py"],
            "unrecognized arguments: --restart=3 python my_program.py: write -- before the command: -- python my_program.py",
        ),
        (
            ["slurm.py", "bertfam", "pretrain", "--model_dir=m"],
            "unrecognized arguments: pretrain --model_dir=m: write a NAME, and -- before the command: NAME -- bertfam pretrain "
            "--model_dir=m",
        ),
        (
            ["slurm.py", "bert", "--partition=gpu", *COMMAND],
            "unrecognized arguments: --partition=gpu: a flag of sbatch is given as --sbatch=--partition=gpu",
        ),
        (["local.py", "--processes=2", "--restart", "2", *COMMAND], "unrecognized arguments: --restart 2"),
        (
            ["local.py", "--processes=2", *COMMAND, "--num_processes=2"],
            "launch/local.py gives each process --num_processes: leave it out of the command",
        ),
        (
            ["slurm.py", "bert", *COMMAND, "--process_index=0"],
            "--process_index differs from process to process: leave it out, since launch/slurm.py says it",
        ),
        (
            ["slurm.py", "bert", "--nodes=2", "--nodes", "3", *COMMAND],
            "--nodes=2 and --nodes=3: the flag has one value; give it once",
        ),
        (
            ["tpu_vm.py", "status", *VM, "--dry_run", "--zone=y"],
            "--zone=z and --zone=y: the flag has one value; give it once",
        ),
        (
            ["slurm.py", "bert", "--sbatch=exclusive", *COMMAND],
            "--sbatch=exclusive is not a flag of sbatch: write --sbatch=--exclusive",
        ),
        (
            ["slurm.py", "bert", "--sbatch=--comment=a b", *COMMAND],
            "'--comment=a b' is not allowed in a batch script: use no spaces, quotes, # or \\",
        ),
    ],
)
def test_mistake_in_flags_of_a_launcher_is_one_line(cloud, words, message):
    process = cloud.launch(*words)
    assert (process.returncode, process.stdout) == (2, "") and not cloud.calls()
    assert process.stderr == f"launch/{words[0]}: error: {message} (see launch/{words[0]} --help)\n"


def test_missing_program_is_reported(cloud):
    process = cloud.launch("gke.py", "delete", "bert", PATH="/nowhere")
    assert (process.returncode, process.stderr) == (2, "bertfam: error: command not found: kubectl\n")


@pytest.mark.parametrize(
    "words",
    [
        [*TRAIN, "--help"],
        [*TRAIN, "--model_dir", "m", "--gin.a-b/Stage.steps=3", "--gin.X='--a-b'", "-"],
        ["bertfam", "evaluate", "--help"],
        ["bertfam", "replay", "--model_dir=m", "--x-y"],
        ["bertfam", "--version"],
        ["python", "my-program.py", "--model-dir=m"],
    ],
)
def test_other_commands_are_passed_on(cloud, words):
    process = cloud.launch("slurm.py", "bert", "--dry_run", "--", *words)
    assert (process.returncode, process.stderr) == (0, "")


def test_a_time_in_minutes_is_said(cloud):
    for time, is_said in (("24", True), ("24:00", True), ("24:00:00", False), ("1-0", False)):
        process = cloud.launch("slurm.py", "bert", f"--time={time}", "--dry_run", *COMMAND)
        assert (process.returncode, f"SLURM reads --time={time} as minutes" in process.stderr) == (0, is_said)


def test_commands_in_one_process_are_passed_on_to_one(cloud):
    for words in (["slurm.py", "bert", "--gpus_per_node=1"], ["gke.py", "create", "bert", "--slice=v5e-8", "--image=i"]):
        process = cloud.launch(*words, "--dry_run", "--", "bertfam", "export", "--model_dir=m")
        assert (process.returncode, process.stderr) == (0, "") and "export" in process.stdout


def test_every_command_is_known_to_the_launchers(monkeypatch):
    monkeypatch.syspath_prepend(LAUNCH)
    common = importlib.import_module("common")
    first_words = {name.partition(" ")[0] for name in COMMANDS}
    assert {*common._TRAININGS, *common._IN_ONE_PROCESS, "index", "replay"} == first_words


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["bertfam pretrain --model_dir=gs://b/m"], ["one word", "-- bertfam pretrain --model_dir=gs://b/m"]),
        (["/opt/venv/bin/bertfam pretrain"], ["one word", "-- /opt/venv/bin/bertfam pretrain"]),
        (["python my_program.py\n  --size=3", "--x"], ["one word", "-- python my_program.py --size=3"]),
        (["srun", *TRAIN, "--model_dir=m"], ["srun starts processes", "without srun"]),
        (["env", "A=1", "nice", "srun", "-n2", *TRAIN, "--model_dir=m"], ["srun starts processes", "without srun"]),
        (["accelerate", "launch", "-m", "bertfam", "pretrain"], ["without accelerate"]),
        (["/usr/bin/mpirun", "-n", "2", *TRAIN], ["without mpirun"]),
        (["/opt/my programs/bin/bertfam", "pretrain", "--model_dir=m"], []),
    ],
)
def test_a_command_in_quotes_or_that_starts_processes_is_refused(monkeypatch, capsys, command, words):
    monkeypatch.syspath_prepend(LAUNCH)
    common = importlib.import_module("common")
    parser = common.make_parser("slurm.py", "", "")
    with pytest.raises(SystemExit, match="2") if words else contextlib.nullcontext():
        common.check_command(parser, command)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == bool(words) and all(word in lines[0] for word in words)


@pytest.mark.parametrize("script", ["local.py", "tpu_vm.py", "gke.py", "slurm.py", "xpk.py"])
def test_example_in_the_help_works_as_pasted(cloud, script):
    help_process = cloud.launch(script, "--help")
    (example,) = re.findall(rf"^  (launch/{script} (?:.*\\\n)*.*)$", help_process.stdout, re.MULTILINE)
    words = example.replace("\\\n", " ").split()[1:]
    words.insert(words.index("--"), "--dry_run")
    process = cloud.launch(script, *words)
    assert (process.returncode, process.stderr.replace("warning", "")) == (
        0,
        process.stderr.replace("warning", ""),
    ) and process.stdout
    assert (LAUNCH / script).stat().st_mode & 0o111
