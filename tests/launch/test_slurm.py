"""SLURM launcher: the batch script, and the reaction of the job to the end of its step."""

import os
import re
import subprocess
import time

import fake_programs
import pytest

COMMAND = ["bertfam", "pretrain", "--model_dir=my model", "--gin.A=$HOME $(id) 'x'", 'a\n"b"']


@pytest.fixture
def job(cloud):
    """A function job(step, *flags, **variables) that submits a job and runs its batch script, in which srun runs the step."""

    def start(step, *flags, **variables):
        process = cloud.launch("slurm.py", "bert", *flags, "--", *COMMAND)
        assert (process.returncode, process.stderr) == (0, "")
        script = (cloud.folder / "read").read_text()
        (cloud.folder / "calls").unlink()
        environment = os.environ | {"PATH": f"{cloud.folder / 'bin'}:{os.environ['PATH']}", "CLOUD": str(cloud.folder)}
        environment |= {"STEP": step, "SLURM_JOB_ID": "17"} | variables
        return subprocess.Popen(["bash", "-c", script], env=environment, stdout=subprocess.PIPE, text=True)

    return start


REQUEUED = ["scontrol", "requeue", "17"]


@pytest.mark.parametrize(
    ("status", "variables", "is_requeued", "output"),
    [
        (0, {}, False, ""),
        (1, {}, False, ""),
        (2, {}, False, ""),
        (75, {}, True, "bertfam: exited with 75; the job is queued again\n"),
        (76, {"SLURM_RESTART_COUNT": "2"}, True, "bertfam: exited with 76; the job is queued again\n"),
        (77, {}, True, "bertfam: exited with 77; the job is queued again\n"),
        (137, {}, True, "bertfam: exited with 137; the job is queued again\n"),
        (75, {"SLURM_RESTART_COUNT": "3"}, False, "bertfam: exited with 75; not queued again after 3 restarts\n"),
        (75, {"JOB_STATE": "COMPLETING"}, False, ""),  # cancelled by scancel
    ],
)
def test_exit_status_of_the_step_decides_about_requeueing(cloud, job, status, variables, is_requeued, output):
    process = job(f"exit {status}", "--restarts=3", **variables)
    assert process.communicate()[0] == output and process.returncode == status
    calls = cloud.calls()
    assert calls[0] == ["srun", *COMMAND]  # every word is kept
    assert (calls[-1] == REQUEUED) is is_requeued and not (calls[1:] and not output and calls[-1] == REQUEUED)


def test_signal_before_the_time_limit_lets_the_step_save_its_state(cloud, job):
    step = "trap 'sleep 0.2; exit 75' TERM; echo $$ > \"$CLOUD/step.pid\"; while :; do sleep 0.05; done"
    process = job(step, "--grace=60")
    while not fake_programs.read(cloud.folder / "step.pid"):
        time.sleep(0.02)
    process.terminate()
    assert process.communicate()[0] == "bertfam: exited with 75; the job is queued again\n" and process.returncode == 75
    assert ["scancel", "--signal=TERM", "17"] in cloud.calls() and cloud.calls()[-1] == REQUEUED


def test_an_element_of_an_array_gets_its_number_and_is_queued_again_alone(cloud, job):
    process = job("exit 75", "--array=3", SLURM_ARRAY_JOB_ID="17", SLURM_ARRAY_TASK_ID="2")
    assert process.communicate()[0] == "bertfam: exited with 75; the job is queued again\n" and process.returncode == 75
    calls = cloud.calls()
    assert calls[0] == ["srun", *COMMAND, "--run=2"] and calls[-1] == ["scontrol", "requeue", "17_2"]
    refused = cloud.launch(
        "slurm.py", "bert", "--array=3", "--gpus_per_node=1", "--", "bertfam", "ablate", "--output=o", "--run=1"
    )
    assert refused.returncode == 2 and "--array=3 gives each run its --run" in refused.stderr


def test_flags_in_the_batch_script(cloud):
    process = cloud.launch("slurm.py", "bert", "--nodes=3", "--gpus_per_node=4", "--sbatch=--account=me", "--", *COMMAND)
    assert process.returncode == 0 and cloud.calls() == [["sbatch"]]
    flags = dict(re.findall(r"^#SBATCH --([a-z-]+)=?(.*)$", (cloud.folder / "read").read_text(), re.MULTILINE))
    assert flags == {
        "job-name": "bert",
        "output": "bert-%j.out",
        "open-mode": "append",
        "nodes": "3",
        "gpus-per-node": "4",
        "ntasks-per-node": "4",
        "requeue": "",
        "signal": "B:TERM@120",
        "account": "me",
    }


def test_errors_of_sbatch_are_passed_on(cloud):
    cloud.set_failures("sbatch 1 sbatch: error: invalid partition specified: no")
    process = cloud.launch("slurm.py", "bert", "--sbatch=--partition=no", "--", *COMMAND)
    lines = ["sbatch: error: invalid partition specified: no", "bertfam: error: sbatch failed with status 1"]
    assert process.returncode == 1 and process.stderr.splitlines() == lines and len(cloud.calls()) == 1
