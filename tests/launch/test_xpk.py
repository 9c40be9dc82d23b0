"""XPK launcher: the calls of xpk."""

import subprocess

COMMAND = ["bertfam", "pretrain", "--model_dir=gs://b/m", "--gin.A=$HOME $(id) $$ 'x' \\", 'a\n\t"b"', "plain", "ü'\n"]
FLAGS = ["--cluster=c", "--slice=2xv5e-16", "--image=registry/bertfam:1"]


def test_create_passes_all_flags_and_the_command(cloud):
    process = cloud.launch("xpk.py", "create", "bert", *FLAGS, "--restarts=5", "--spot", "--", *COMMAND)
    assert (process.returncode, process.stderr) == (0, "")
    (words,) = cloud.calls()
    assert words[-2].startswith("--env=BERTFAM_RUN_TOKEN=")
    assert words[:-2] == [
        "xpk",
        "workload",
        "create",
        "--cluster=c",
        "--workload=bert",
        "--tpu-type=v5litepod-16",
        "--num-slices=2",
        "--docker-image=registry/bertfam:1",
        "--max-restarts=5",
        "--restart-on-exit-codes=1,74,75,76,77",
        "--termination-grace-period-seconds=300",
        "--spot",
    ]
    # The command is one line, since XPK puts it into YAML; Kubernetes then turns $$ into $, and bash reads it.
    command = words[-1].removeprefix("--command=")
    assert command.isprintable() and "$" not in command.replace("$$", "")
    printed = subprocess.run(["bash", "-c", f"printf '%s\\0' {command.replace('$$', '$')}"], capture_output=True, text=True)
    assert printed.stdout.split("\0")[:-1] == COMMAND


def test_delete_is_retried_and_create_is_not(cloud):
    cloud.set_failures("delete 1 lost", "create 3 no such cluster")
    process = cloud.launch("xpk.py", "delete", "bert", "--cluster=c", "--retry_seconds=0.01")
    assert process.returncode == 0 and cloud.verbs() == ["delete", "delete"]
    assert cloud.calls()[0] == ["xpk", "workload", "delete", "--cluster=c", "--workload=bert", "--force"]
    process = cloud.launch("xpk.py", "create", "bert", *FLAGS, "--", *COMMAND)
    assert process.returncode == 3 and cloud.verbs()[2:] == ["create"]
    assert process.stderr.splitlines() == ["no such cluster", "bertfam: error: xpk workload create failed with status 3"]
