"""GKE launcher: the manifest field by field, and the calls of kubectl."""

import json

import pytest

COMMAND = ["bertfam", "pretrain", "--model_dir=gs://b/m", "--gin.A=$(HOME) $$ $HOME 'x'", 'a\n"b"']
FLAGS = ["--slice=2xv5e-16", "--image=registry/bertfam:1"]


@pytest.fixture
def gke(cloud):
    """A function gke(action, *flags) that runs the launcher."""
    return lambda action, *flags: cloud.launch("gke.py", action, "bert", "--retry_seconds=0.01", *flags)


@pytest.fixture
def create(cloud, gke):
    """A function created(*flags) that returns the manifest given to kubectl."""

    def create_manifest(*flags):
        given = {flag.partition("=")[0] for flag in flags}
        process = gke("create", *(flag for flag in FLAGS if flag.partition("=")[0] not in given), *flags, "--", *COMMAND)
        assert (process.returncode, process.stderr) == (0, "")
        assert cloud.calls()[-1] == ["kubectl", "create", "--filename=-"]
        return json.loads((cloud.folder / "read").read_text())

    return create_manifest


def test_every_slice_is_a_job_and_every_machine_a_pod(create):
    manifest = create()
    assert (manifest["apiVersion"], manifest["kind"], manifest["metadata"]["name"]) == (
        "jobset.x-k8s.io/v1alpha2",
        "JobSet",
        "bert",
    )
    # A slice is a node pool, which no two Jobs share.
    assert manifest["metadata"]["annotations"] == {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"}
    (replicated,) = manifest["spec"]["replicatedJobs"]
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
    (secret,) = container["env"]
    assert secret["name"] == "BERTFAM_RUN_TOKEN" and len(secret["value"]) == 32


def test_exit_codes_of_pods_decide_about_restarts(create):
    manifest = create("--restarts=7", "--grace=600")
    policy = manifest["spec"]["failurePolicy"]
    job = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]
    pod = job["template"]["spec"]
    # The first failed pod ends its Job; for codes 2 and 75, Kubernetes puts the code into the Job's message.
    assert job["backoffLimit"] == 0 and pod["restartPolicy"] == "Never" and pod["terminationGracePeriodSeconds"] == 600
    (rule,) = job["podFailurePolicy"]["rules"]
    assert rule["action"] == "FailJob"
    assert rule["onExitCodes"] == {"containerName": pod["containers"][0]["name"], "operator": "In", "values": [2, 75]}
    message = "Container bertfam for pod default/bert-slice-0-1-x failed with exit code {} matching FailJob rule at index 0"
    for status, action in ((75, "RestartJobSetAndIgnoreMaxRestarts"), (2, "FailJobSet")):
        rules = [rule for rule in policy["rules"] if rule["onJobFailureMessagePatterns"][0] in message.format(status)]
        assert [rule["action"] for rule in rules] == [action] and rules[0]["onJobFailureReasons"] == ["PodFailurePolicy"]
    # Other failures follow JobSet's default, which restarts all Jobs up to maxRestarts times.
    assert policy["maxRestarts"] == 7 and len(policy["rules"]) == 2


def test_every_word_of_the_command_is_kept(create):
    container = create()["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]
    assert "args" not in container
    # In Kubernetes $$ is $ and $(NAME) a variable, so no single $ may remain.
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
def test_names_of_slices_set_topology_and_chips(create, name, machines, topology, chips, label):
    manifest = create(f"--slice={name}", "--spot", "--service_account=trainer", "--xla_flags")
    job = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]
    pod = job["template"]["spec"]
    assert job["completions"] == machines and pod["containers"][0]["resources"]["limits"] == {"google.com/tpu": chips}
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": label,
        "cloud.google.com/gke-tpu-topology": topology,
        "cloud.google.com/gke-spot": "true",
    }
    taint = {"key": "cloud.google.com/gke-spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"}
    assert pod["tolerations"] == [taint] and pod["serviceAccountName"] == "trainer"
    _, variable = pod["containers"][0]["env"]
    assert variable["name"] == "LIBTPU_INIT_ARGS" and "xla_enable_async_all_gather" in variable["value"]


STUDY = ["--", "bertfam", "ablate", "--output=/shared/study", "--module_import=$m"]


def test_runs_of_a_study_are_pods_that_share_a_volume_and_fail_alone(cloud, gke):
    process = gke("create", "--slice=v5e-1", FLAGS[1], "--array=12", "--claim=disk:/shared/", "--restarts=3", *STUDY)
    assert (process.returncode, process.stderr) == (0, "")
    manifest = json.loads((cloud.folder / "read").read_text())
    job = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert (job["completionMode"], job["completions"], job["parallelism"], job["backoffLimitPerIndex"]) == ("Indexed", 12, 12, 3)
    actions = {rule["action"]: rule["onExitCodes"]["values"] for rule in job["podFailurePolicy"]["rules"]}
    assert actions == {"FailIndex": [2], "Ignore": [75]} and manifest["spec"]["failurePolicy"] == {"maxRestarts": 0}
    pod = job["template"]["spec"]
    assert pod["volumes"] == [{"name": "shared", "persistentVolumeClaim": {"claimName": "disk"}}]
    (container,) = pod["containers"]
    assert container["volumeMounts"] == [{"name": "shared", "mountPath": "/shared"}]
    assert container["command"] == [*STUDY[1:-1], "--module_import=$$m", "--run=$(JOB_COMPLETION_INDEX)"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--slice=v5e-16", "--claim=disk:/shared"], "v5e-8"),
        (["--slice=v5e-1"], "--output must be a folder of --claim=NAME:/PATH"),
        (["--slice=v5e-1", "--claim=disk:/other"], "--output must be a folder below /other/"),
        (["--slice=v5e-1", "--claim=/shared"], "is not NAME:/PATH"),
    ],
)
def test_runs_of_a_study_that_cannot_share_its_folder_are_refused(gke, flags, message):
    process = gke("create", FLAGS[1], "--array=2", *flags, *STUDY)
    assert process.returncode == 2 and message in process.stderr


def test_failed_create_is_reported_and_failed_delete_retried(cloud, gke):
    cloud.set_failures('create 1 Error from server (AlreadyExists): jobsets "bert" already exists')
    process = gke("create", *FLAGS, "--", *COMMAND)
    assert process.returncode == 1 and cloud.verbs() == ["create"]  # no second attempt
    assert process.stderr.splitlines()[-1] == "bertfam: error: kubectl create failed with status 1"
    cloud.set_failures("delete 1 Unable to connect to the server")
    process = gke("delete", "--namespace=n")
    assert process.returncode == 0 and "bertfam: kubectl failed with status 1; retrying in 0.01 s" in process.stderr
    assert cloud.calls()[-1] == ["kubectl", "--namespace=n", "delete", "jobset/bert", "--ignore-not-found"]
