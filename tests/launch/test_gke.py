"""launch/gke.py: the manifest field by field, and kubectl's part of it."""

import json

import pytest

COMMAND = ["bertfam", "pretrain", "--model_dir=gs://b/m", "--gin.A=$(HOME) $$ $HOME 'x'", 'a\n"b"']
FLAGS = ["--slice=2xv5e-16", "--image=registry/bertfam:1"]


@pytest.fixture
def gke(cloud):
    """gke(action, *flags) runs it."""
    return lambda action, *flags: cloud.launch("gke.py", action, "bert", "--retry_seconds=0.01", *flags)


@pytest.fixture
def created(cloud, gke):
    """created(*flags) gives the manifest that kubectl has got."""

    def create(*flags):
        done = gke("create", *FLAGS, *flags, "--", *COMMAND)
        assert (done.returncode, done.stderr) == (0, "")
        assert cloud.calls()[-1] == ["kubectl", "create", "--filename=-"]
        return json.loads((cloud.folder / "read").read_text())

    return create


def test_a_job_a_slice_and_a_pod_a_machine(created):
    made = created()
    assert (made["apiVersion"], made["kind"], made["metadata"]["name"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet", "bert")
    # A slice is a node pool, and no two Jobs share one.
    assert made["metadata"]["annotations"] == {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"}
    (replicated,) = made["spec"]["replicatedJobs"]
    assert (replicated["name"], replicated["replicas"]) == ("slice", 2)
    job = replicated["template"]["spec"]
    assert (job["completionMode"], job["completions"], job["parallelism"]) == ("Indexed", 4, 4)
    pod = job["template"]["spec"]
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "4x4",
    }
    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert pod["tolerations"] == [] and "serviceAccountName" not in pod
    (container,) = pod["containers"]
    assert container["image"] == "registry/bertfam:1"
    assert container["resources"] == {"requests": {"google.com/tpu": 4}, "limits": {"google.com/tpu": 4}}
    assert container["env"] == []


def test_what_pods_end_with_says_what_follows(created):
    made = created("--restarts=7", "--grace=600")
    policy = made["spec"]["failurePolicy"]
    job = made["spec"]["replicatedJobs"][0]["template"]["spec"]
    pod = job["template"]["spec"]
    # The first pod that fails ends its Job; of 2 and 75 the Job's message tells, in Kubernetes' words.
    assert job["backoffLimit"] == 0 and pod["restartPolicy"] == "Never" and pod["terminationGracePeriodSeconds"] == 600
    (rule,) = job["podFailurePolicy"]["rules"]
    assert rule["action"] == "FailJob"
    assert rule["onExitCodes"] == {"containerName": pod["containers"][0]["name"], "operator": "In", "values": [2, 75]}
    message = "Container bertfam for pod default/bert-slice-0-1-x failed with exit code {} matching FailJob rule at index 0"
    for status, action in ((75, "RestartJobSetAndIgnoreMaxRestarts"), (2, "FailJobSet")):
        rules = [rule for rule in policy["rules"] if rule["onJobFailureMessagePatterns"][0] in message.format(status)]
        assert [rule["action"] for rule in rules] == [action] and rules[0]["onJobFailureReasons"] == ["PodFailurePolicy"]
    # All else is JobSet's default: starts all again, so often.
    assert policy["maxRestarts"] == 7 and len(policy["rules"]) == 2


def test_every_word_of_the_command_survives(created):
    container = created()["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]
    assert "args" not in container
    # Kubernetes: $$ is $, $(NAME) a variable. No single $ is left.
    assert all("$" not in word.replace("$$", "") for word in container["command"])
    assert [word.replace("$$", "$") for word in container["command"]] == COMMAND


@pytest.mark.parametrize(
    ("name", "machines", "topology", "chips", "label"),
    [
        ("v5e-1", 1, "1x1", 1, "tpu-v5-lite-podslice"),
        ("v5e-8", 1, "2x4", 8, "tpu-v5-lite-podslice"),
        ("v6e-256", 64, "16x16", 4, "tpu-v6e-slice"),
        ("v5p-8", 1, "2x2x1", 4, "tpu-v5p-slice"),
        ("v5p-128", 16, "4x4x4", 4, "tpu-v5p-slice"),
        ("v4-32", 4, "2x2x4", 4, "tpu-v4-podslice"),
    ],
)
def test_slices_by_their_names(created, name, machines, topology, chips, label):
    made = created(f"--slice={name}", "--spot", "--service_account=trainer", "--xla_flags")
    job = made["spec"]["replicatedJobs"][0]["template"]["spec"]
    pod = job["template"]["spec"]
    assert job["completions"] == machines and pod["containers"][0]["resources"]["limits"] == {"google.com/tpu": chips}
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": label,
        "cloud.google.com/gke-tpu-topology": topology,
        "cloud.google.com/gke-spot": "true",
    }
    taint = {"key": "cloud.google.com/gke-spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"}
    assert pod["tolerations"] == [taint] and pod["serviceAccountName"] == "trainer"
    (variable,) = pod["containers"][0]["env"]
    assert variable["name"] == "LIBTPU_INIT_ARGS" and "xla_enable_async_all_gather" in variable["value"]


def test_what_fails(cloud, gke):
    cloud.fails('create 1 Error from server (AlreadyExists): jobsets "bert" already exists')
    done = gke("create", *FLAGS, "--", *COMMAND)
    assert done.returncode == 1 and cloud.verbs() == ["create"]  # not twice
    assert done.stderr.splitlines()[-1] == "bertfam: error: kubectl create failed with status 1"
    cloud.fails("delete 1 Unable to connect to the server")
    done = gke("delete", "--namespace=n")
    assert done.returncode == 0 and "bertfam: kubectl failed with status 1; retrying in 0.01 s" in done.stderr
    assert cloud.calls()[-1] == ["kubectl", "--namespace=n", "delete", "jobset/bert", "--ignore-not-found"]
