"""launch/tpu_vm.py with a cloud whose two machines are folders here."""

import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from stand_ins import LAUNCH

AUTHOR = ["-c", "user.name=A", "-c", "user.email=a@example.com"]
COMMAND = ["--", "bertfam", "pretrain", "--model_dir=gs://b/m", "--input=my texts/*.txt", "--gin.X='$HOME; \"'", "a\nb"]
WHERE = ["bert", "--zone=us-west4-a", "--poll_seconds=0.05", "--retry_seconds=0.01"]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A repository with the launchers and one more file, committed."""
    folder = tmp_path_factory.mktemp("checkout")
    shutil.copytree(LAUNCH, folder / "launch", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / ".gitignore").write_text("__pycache__")
    (folder / "file").write_text("committed")
    for words in (["init", "-q"], ["add", "."], [*AUTHOR, "commit", "-q", "-m", "One"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    return folder


@pytest.fixture
def tpu_vm(cloud, checkout):
    """tpu_vm(action, *flags) runs it."""

    def run(action, *flags, command=COMMAND):
        wanted = ["--slice=v5e-8"] if action in ("train", "up", "run") else []
        words = [*WHERE, *wanted, *flags, *(command if action in ("train", "run") else [])]
        return cloud.launch(checkout / "launch" / "tpu_vm.py", action, *words)

    return run


def test_trains_from_nothing_to_the_end_with_every_flag_as_it_was_given(cloud, tpu_vm):
    done = tpu_vm("train", "--spot", "--project=p")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "run on w0\n"  # process 0's
    assert [line for line in done.stderr.splitlines() if " is " in line] == [
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
    told = tpu_vm("status")
    assert (told.returncode, told.stdout) == (0, "bert: ACTIVE: 0, 0\n")
    told = tpu_vm("logs")
    assert (told.returncode, told.stdout) == (0, "run on w0\n")


def test_what_travels_is_the_commit_into_a_fresh_folder(cloud, tpu_vm, checkout):
    (cloud.folder / "state").write_text("ACTIVE")
    for machine in cloud.machines:
        (machine / "bertfam").mkdir()
        (machine / "bertfam" / "stale").touch()
    (checkout / "file").write_text("changed")
    done = tpu_vm("run")
    (checkout / "file").write_text("committed")
    told = f"bertfam: warning: {checkout} has uncommitted changes; the commit runs without them\n"
    assert (done.returncode, done.stderr) == (0, told)
    for machine in cloud.machines:
        assert sorted(path.name for path in (machine / "bertfam").iterdir()) == [".gitignore", "file", "launch"]
        assert (machine / "bertfam" / "file").read_text() == "committed"


def test_starts_again_after_75_on_the_same_machines_and_on_others_when_they_were_taken_away(cloud, tpu_vm):
    cloud.ends(75, "gone", 77, 0)
    done = tpu_vm("train", "--restarts=3")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("run on w0\n" * 4)  # the whole log, which the folders here keep
    again = [line for line in done.stderr.splitlines() if "restarting it" in line or "were preempted" in line]
    assert again == [
        "bertfam: the run was preempted after saving its state; restarting it (restarts left: 2)",
        "bertfam: the machines of bert were preempted",
        "bertfam: the run was killed by signal 9; restarting it (restarts left: 1)",
        "bertfam: the run lost one of its processes; restarting it (restarts left: 0)",
    ]
    assert cloud.verbs().count("create") == 2 and cloud.verbs().count("delete") == 1 and cloud.verbs().count("start") == 4


@pytest.mark.parametrize("end", [1, 2])
def test_does_not_start_again_what_would_fail_again(cloud, tpu_vm, end):
    cloud.ends(end)
    done = tpu_vm("train")
    assert done.returncode == end and cloud.verbs().count("start") == 1 and "restarting" not in done.stderr


def test_gives_up_after_so_many_restarts(cloud, tpu_vm):
    cloud.ends(75, 75)
    done = tpu_vm("train", "--restarts=1")
    assert done.returncode == 75 and cloud.verbs().count("start") == 2


def test_a_run_that_is_on_is_joined_by_train_refused_by_run_and_ended_by_stop(cloud, tpu_vm):
    cloud.ends("wait")
    assert tpu_vm("up").returncode == 0
    assert tpu_vm("run").returncode == 0
    refused = tpu_vm("run")
    told = "error: a run is still active on bert; follow it with launch/tpu_vm.py logs, or end it with stop"
    assert (refused.returncode, refused.stderr) == (1, f"bertfam: {told}\n")
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


def test_calls_that_fail_are_tried_again_where_that_is_safe(cloud, tpu_vm):
    cloud.fails("scp 1 lost", "install 255 lost", "follow 255 lost", "jobs 255 lost")
    done = tpu_vm("train")
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if "failed" in line]
    call = "bertfam: gcloud compute tpus queued-resources"
    assert told == [
        f"{call} scp failed with status 1; retrying in 0.01 s",
        f"{call} ssh failed with status 255; retrying in 0.01 s",
        f"{call} ssh failed with status 255",
        f"{call} ssh failed with status 255; retrying in 0.01 s",
    ]
    assert cloud.verbs().count("start") == 1


def test_what_fails_for_good_is_one_line_and_its_status(cloud, tpu_vm):
    cloud.fails("create 1 ERROR: quota exceeded")
    done = tpu_vm("train")
    assert done.returncode == 1 and cloud.verbs() == ["describe", "describe", "create"]
    # gcloud has said why.
    assert done.stderr.splitlines() == [
        "ERROR: quota exceeded",
        "bertfam: error: gcloud compute tpus queued-resources create failed with status 1",
    ]
    cloud.fails(*["describe 1 ERROR: permission denied"] * 4)
    done = tpu_vm("status")
    last = "bertfam: error: gcloud compute tpus queued-resources describe failed with status 1: ERROR: permission denied"
    assert done.returncode == 1 and done.stderr.splitlines()[-1] == last
    assert cloud.verbs()[3:] == ["describe"] * 4
    # It may say more after what matters.
    cloud.fails("describe 1 ERROR: (gcloud) NOT_FOUND: Resource was not found\\n- type: ResourceInfo")
    assert tpu_vm("status").stdout == "bert: not found\n"


def test_a_request_that_gets_no_machines(cloud, tpu_vm):
    (cloud.folder / "state").write_text("FAILED")
    done = tpu_vm("up")
    told = "bertfam: error: bert is FAILED and will get no machines; delete it with launch/tpu_vm.py down\n"
    assert (done.returncode, done.stderr) == (1, told)
    assert tpu_vm("status").stdout == "bert: FAILED\n"
    (cloud.folder / "state").write_text("WAITING_FOR_RESOURCES FAILED")
    done = tpu_vm("train")
    assert done.returncode == 1 and done.stderr == told and "create" not in cloud.verbs()  # it would be refused again
    (cloud.folder / "state").write_text("FAILED")
    assert tpu_vm("down").returncode == 0 and tpu_vm("status").stdout == "bert: not found\n"


def test_fetch_copies_a_folder(cloud, tpu_vm):
    (cloud.folder / "state").write_text("ACTIVE")
    (cloud.machines[0] / "my model").mkdir()
    (cloud.machines[0] / "my model" / "config.gin").write_text("x")
    done = tpu_vm("fetch", "--folder=my model", f"--to={cloud.folder / 'here'}")
    assert done.returncode == 0 and (cloud.folder / "here" / "config.gin").read_text() == "x"
