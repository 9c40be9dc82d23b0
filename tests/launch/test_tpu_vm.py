"""TPU VM launcher with a fake cloud of two machines."""

import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from fake_cloud import LAUNCH

AUTHOR = ["-c", "user.name=A", "-c", "user.email=a@example.com"]
COMMAND = ["--", "bertfam", "pretrain", "--model_dir=gs://b/m", "--input=my texts/*.txt", "--gin.X='$HOME; \"'", "a\nb"]
COMMON_FLAGS = ["bert", "--zone=us-west4-a", "--poll_seconds=0.05", "--retry_seconds=0.01"]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A repository with the launchers and one other committed file."""
    folder = tmp_path_factory.mktemp("checkout")
    shutil.copytree(LAUNCH, folder / "launch", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / ".gitignore").write_text("__pycache__")
    (folder / "file").write_text("committed")
    for words in (["init", "-q"], ["add", "."], [*AUTHOR, "commit", "-q", "-m", "One"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    return folder


@pytest.fixture
def tpu_vm(cloud, checkout):
    """A function tpu_vm(action, *flags) that runs the launcher."""

    def run(action, *flags, command=COMMAND):
        slice_flags = ["--slice=v5e-8"] if action in ("train", "up", "run") else []
        words = [*COMMON_FLAGS, *slice_flags, *flags, *(command if action in ("train", "run") else [])]
        return cloud.launch(checkout / "launch" / "tpu_vm.py", action, *words)

    return run


def test_own_files_are_copied_to_the_folder_in_which_the_command_runs(cloud, tpu_vm):
    (cloud.folder / "my_tasks.py").write_text("tasks")
    (cloud.folder / "my configs").mkdir()
    (cloud.folder / "my configs" / "a.gin").write_text("A = 1")
    process = tpu_vm("train", "--copy=my_tasks.py", "--copy=my configs")
    assert process.returncode == 0, process.stderr
    for machine in cloud.machines:
        assert ((machine / "my_tasks.py").read_text(), (machine / "my configs" / "a.gin").read_text()) == ("tasks", "A = 1")
    (cloud.folder / "link").symlink_to("/etc")
    for path in ("/etc/passwd", "../bin", "absent.py", "link", "link/hostname"):
        process = tpu_vm("train", f"--copy={path}")
        assert process.returncode == 2 and f"--copy={path}" in process.stderr


def test_train_creates_machines_and_passes_every_flag_unchanged(cloud, tpu_vm):
    process = tpu_vm("train", "--spot", "--project=p")
    assert process.returncode == 0, process.stderr
    assert process.stdout == "run on w0\n"  # the output of process 0
    assert [line for line in process.stderr.splitlines() if " is " in line] == [
        "bertfam: bert is WAITING_FOR_RESOURCES; waiting until it is ACTIVE",
        "bertfam: bert is PROVISIONING; waiting until it is ACTIVE",
    ]
    waits = ["describe", "describe", "create", "describe", "describe", "describe"]
    assert cloud.verbs() == [*waits, "jobs", "scp", "install", "start", "follow", "jobs"]
    assert all(words[-2:] == ["--zone=us-west4-a", "--project=p"] for words in cloud.calls())
    for machine in cloud.machines:
        assert (machine / "arguments").read_text() == "".join(f"{word}\n" for word in COMMAND[2:])
        assert (machine / "bertfam" / "file").read_text() == "committed"
        assert (machine / "job.status").read_text() == "0\n"
    printed = tpu_vm("status")
    assert (printed.returncode, printed.stdout) == (0, "bert: ACTIVE: 0, 0\n")
    printed = tpu_vm("logs")
    assert (printed.returncode, printed.stdout) == (0, "run on w0\n")


def test_commit_is_copied_into_a_fresh_folder(cloud, tpu_vm, checkout):
    (cloud.folder / "state").write_text("ACTIVE")
    for machine in cloud.machines:
        (machine / "bertfam").mkdir()
        (machine / "bertfam" / "stale").touch()
    (checkout / "file").write_text("changed")
    process = tpu_vm("run")
    (checkout / "file").write_text("committed")
    warning = f"bertfam: warning: {checkout} has uncommitted changes; the commit runs without them\n"
    assert (process.returncode, process.stderr) == (0, warning)
    for machine in cloud.machines:
        assert sorted(path.name for path in (machine / "bertfam").iterdir()) == [".gitignore", "file", "launch"]
        assert (machine / "bertfam" / "file").read_text() == "committed"


def test_restart_after_75_reuses_machines_and_replaces_preempted_ones(cloud, tpu_vm):
    cloud.set_exits(75, "gone", 77, 0)
    process = tpu_vm("train", "--restarts=3")
    assert process.returncode == 0, process.stderr
    assert process.stdout.endswith("run on w0\n" * 4)  # the whole log, which the fake machines keep
    restarts = [line for line in process.stderr.splitlines() if "restarting it" in line or "were preempted" in line]
    assert restarts == [
        "bertfam: the run was preempted after saving its state; restarting it (restarts left: 2)",
        "bertfam: the machines of bert were preempted",
        "bertfam: the run was killed by signal 9; restarting it (restarts left: 1)",
        "bertfam: the run lost one of its processes; restarting it (restarts left: 0)",
    ]
    assert cloud.verbs().count("create") == 2 and cloud.verbs().count("delete") == 1 and cloud.verbs().count("start") == 4


@pytest.mark.parametrize("status", [1, 2])
def test_permanent_failures_of_training_are_not_restarted(cloud, tpu_vm, status):
    cloud.set_exits(status)
    process = tpu_vm("train")
    assert process.returncode == status and cloud.verbs().count("start") == 1 and "restarting" not in process.stderr


def test_train_gives_up_after_the_last_restart(cloud, tpu_vm):
    cloud.set_exits(75, 75)
    process = tpu_vm("train", "--restarts=1")
    assert process.returncode == 75 and cloud.verbs().count("start") == 2


def test_active_run_is_joined_by_train_refused_by_run_and_ended_by_stop(cloud, tpu_vm):
    cloud.set_exits("wait")
    assert tpu_vm("up").returncode == 0
    assert tpu_vm("run").returncode == 0
    refused = tpu_vm("run")
    message = "error: a run is still active on bert; follow it with launch/tpu_vm.py logs, or end it with stop"
    assert (refused.returncode, refused.stderr) == (1, f"bertfam: {message}\n")
    assert cloud.verbs()[-2:] == ["start", "jobs"]
    assert tpu_vm("status").stdout == "bert: ACTIVE: running, running\n"
    with ThreadPoolExecutor() as pool:
        joined = pool.submit(tpu_vm, "train")
        while "follow" not in cloud.verbs():
            time.sleep(0.05)
        assert tpu_vm("stop").returncode == 0
        joined = joined.result()
    assert joined.returncode == 75 and "restarting" not in joined.stderr and cloud.verbs().count("start") == 1
    assert tpu_vm("status").stdout == "bert: ACTIVE: stopped, stopped\n"
    assert [(machine / "job.status").read_text() for machine in cloud.machines] == ["75\n"] * 2


def test_failed_calls_are_retried_where_that_is_safe(cloud, tpu_vm):
    cloud.set_failures("scp 1 lost", "install 255 lost", "follow 255 lost", "jobs 255 lost")
    process = tpu_vm("train")
    assert process.returncode == 0, process.stderr
    failures = [line for line in process.stderr.splitlines() if "failed" in line]
    call = "bertfam: gcloud compute tpus queued-resources"
    assert failures == [
        f"{call} scp failed with status 1; retrying in 0.01 s",
        f"{call} ssh failed with status 255; retrying in 0.01 s",
        f"{call} ssh failed with status 255",
        f"{call} ssh failed with status 255; retrying in 0.01 s",
    ]
    assert cloud.verbs().count("start") == 1


def test_permanent_failures_are_reported_in_one_line(cloud, tpu_vm):
    cloud.set_failures("create 1 ERROR: quota exceeded")
    process = tpu_vm("train")
    assert process.returncode == 1 and cloud.verbs() == ["describe", "describe", "create"]
    # gcloud has printed the reason.
    assert process.stderr.splitlines() == [
        "ERROR: quota exceeded",
        "bertfam: error: gcloud compute tpus queued-resources create failed with status 1",
    ]
    cloud.set_failures(*["describe 1 ERROR: permission denied"] * 4)
    process = tpu_vm("status")
    last = "bertfam: error: gcloud compute tpus queued-resources describe failed with status 1: ERROR: permission denied"
    assert process.returncode == 1 and process.stderr.splitlines()[-1] == last
    assert cloud.verbs()[3:] == ["describe"] * 4
    # gcloud may print further lines after the relevant one.
    cloud.set_failures("describe 1 ERROR: (gcloud) NOT_FOUND: Resource was not found\\n- type: ResourceInfo")
    assert tpu_vm("status").stdout == "bert: not found\n"


def test_failed_request_for_machines_is_reported(cloud, tpu_vm):
    (cloud.folder / "state").write_text("FAILED")
    process = tpu_vm("up")
    message = "bertfam: error: bert is FAILED and will get no machines; delete it with launch/tpu_vm.py down\n"
    assert (process.returncode, process.stderr) == (1, message)
    assert tpu_vm("status").stdout == "bert: FAILED\n"
    (cloud.folder / "state").write_text("WAITING_FOR_RESOURCES FAILED")
    process = tpu_vm("train")
    assert (
        process.returncode == 1 and process.stderr == message and "create" not in cloud.verbs()
    )  # a new request would be refused again
    (cloud.folder / "state").write_text("FAILED")
    assert tpu_vm("down").returncode == 0 and tpu_vm("status").stdout == "bert: not found\n"


def test_fetch_copies_a_folder(cloud, tpu_vm):
    (cloud.folder / "state").write_text("ACTIVE")
    (cloud.machines[0] / "my model").mkdir()
    (cloud.machines[0] / "my model" / "config.gin").write_text("x")
    process = tpu_vm("fetch", "--folder=my model", f"--to={cloud.folder / 'here'}")
    assert process.returncode == 0 and (cloud.folder / "here" / "config.gin").read_text() == "x"
