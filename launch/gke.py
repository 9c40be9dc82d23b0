#!/usr/bin/env python3
r"""Train on TPU slices of a GKE cluster, as a JobSet: one Job per slice, one pod per machine.

  launch/gke.py create bert --slice=2xv5e-16 --image=us-docker.pkg.dev/my-project/images/bertfam -- bertfam pretrain \
    --gin_file=runs/bert_base.gin --vocab=gs://my-bucket/vocab --cache_dir=gs://my-bucket/cache --model_dir=gs://my-bucket/bert

To build the image from the commit that is checked out: git archive HEAD | docker build --file=launch/Dockerfile --tag=IMAGE -
To add your own modules and gin files, those of the folder FILES, to the folder in which the command runs:
printf 'FROM IMAGE\nCOPY . .\n' | docker build --file=- --tag=OWN_IMAGE FILES

The exit status of a pod decides what follows. After 75 (preempted; the state is saved) all pods are restarted, without limit.
After 2 (a mistake in the command) the JobSet ends. After any other failure (a lost machine, a stuck step, storage out of reach,
an error) all pods are restarted, at most --restarts times. `create` starts the run, `logs` follows the log of process 0,
`status` shows the state of the run, `delete` lets it save its state and removes it. kubectl must be set up for the cluster,
which must have JobSet 0.10 or newer (jobset.sigs.k8s.io).

With --array=N, `bertfam ablate --output=/PATH/DIR` runs in N pods of one machine each, each on another run of the study in DIR,
which is in the volume of --claim=NAME:/PATH. A pod that fails is restarted at most --restarts times, and stops no other.
"""

import argparse
import json
import sys

import clusters
import common
import slices
import xla_flags

ACTIONS = ("create", "logs", "status", "delete")
CONTAINER = "bertfam"


def main() -> int:
    """Run one of the actions; return the exit status."""
    options, command = parse(sys.argv[1:])
    runner = common.Runner(options.dry_run, options.retry_seconds)
    kubectl = ["kubectl", *([f"--namespace={options.namespace}"] if options.namespace else [])]
    pods = f"--selector=jobset.sigs.k8s.io/jobset-name={options.name}"
    if options.action == "create":
        runner.run([*kubectl, "create", "--filename=-"], text=json.dumps(manifest(options, command), indent=2) + "\n")
    elif options.action == "logs":
        first = f"{pods},jobset.sigs.k8s.io/job-index=0,batch.kubernetes.io/job-completion-index=0"
        runner.run([*kubectl, "logs", first, f"--container={CONTAINER}", "--follow", "--tail=-1"])
    elif options.action == "status":
        runner.run([*kubectl, "get", f"jobset/{options.name}"], retries=3)
        runner.run([*kubectl, "get", "pods", pods, "--output=wide"], retries=3)
    else:
        runner.run([*kubectl, "delete", f"jobset/{options.name}", "--ignore-not-found"], retries=3)
    return 0


def parse(words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the flags, and the command after `--`."""
    parser = common.make_parser(__file__, __doc__, "ACTION NAME [flags] [-- COMMAND ...]")
    parser.add_argument("action", choices=ACTIONS, metavar="ACTION", help=", ".join(ACTIONS))
    parser.add_argument("name", type=common.name, metavar="NAME", help="name of the JobSet")
    parser.add_argument("--namespace", type=common.word, help="Kubernetes namespace (default: that of kubectl)")
    parser.add_argument(
        "--service_account",
        type=common.word,
        metavar="NAME",
        help="create: service account of the pods, which may read and write gs:// folders",
    )
    parser.add_argument(
        "--array", type=common.positive, metavar="N", help="create: N runs of a study, each with --run and its number, from 0"
    )
    parser.add_argument(
        "--claim", type=claim, metavar="NAME:/PATH", help="create: PersistentVolumeClaim, and the folder where all pods have it"
    )
    clusters.add_flags(parser, restarts=10, counted="except after status 75")
    options, command = clusters.parse(parser, words)
    if options.action == "create" and options.array:
        check_array(parser, options, command)
    return options, command


def claim(text: str) -> tuple[str, str]:
    """Parse --claim: the name of a PersistentVolumeClaim and an absolute path."""
    name, _, path = text.partition(":")
    if not name or not path.startswith("/"):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME:/PATH")
    return common.name(name), path.rstrip("/") or "/"


def check_array(parser: argparse.ArgumentParser, options: argparse.Namespace, command: list[str]) -> None:
    """Exit with an error for runs of a study that would not share its folder, or are no runs of one machine."""
    if options.slice.count * options.slice.hosts > 1:
        parser.error("--array runs in pods of one machine each: give a --slice of one machine, such as v5e-8")
    if any(word.startswith("--run=") for word in command):
        parser.error(f"--array={options.array} gives each run its --run: leave it out of the command")
    mounted = options.claim[1].rstrip("/") + "/" if options.claim else None
    if not mounted or not any(word.startswith(f"--output={mounted}") for word in command):
        where = f"below {mounted}" if mounted else "of --claim=NAME:/PATH"
        parser.error(f"--output must be a folder {where}, which all pods share")


def manifest(options: argparse.Namespace, command: list[str]) -> dict:
    """Return the manifest of the JobSet."""
    if options.array:
        return array(options, command)
    slice = options.slice
    job = {
        "completionMode": "Indexed",
        "completions": slice.hosts,
        "parallelism": slice.hosts,
        "backoffLimit": 0,  # the first pod that fails ends the Job, and the JobSet decides what follows
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "FailJob",
                    "onExitCodes": {
                        "containerName": CONTAINER,
                        "operator": "In",
                        "values": [common.MISTAKE, common.SAVED],
                    },
                }
            ]
        },
        "template": {"spec": pod(options, command)},
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": options.name,
            "annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"},
        },
        "spec": {
            "failurePolicy": {
                "maxRestarts": options.restarts,
                "restartStrategy": "BlockingRecreate",  # no new pod waits for an old one
                "rules": [
                    rule("saved", "RestartJobSetAndIgnoreMaxRestarts", common.SAVED),
                    rule("mistake", "FailJobSet", common.MISTAKE),
                ],
            },
            "replicatedJobs": [{"name": "slice", "replicas": slice.count, "template": {"spec": job}}],
        },
    }


def array(options: argparse.Namespace, command: list[str]) -> dict:
    """Return the manifest of a JobSet whose one Job has a pod for each run of a study; a run that fails ends no other."""
    exits = {"FailIndex": common.MISTAKE, "Ignore": common.SAVED}  # after the second the pod is replaced, and not counted
    job = {
        "completionMode": "Indexed",
        "completions": options.array,
        "parallelism": options.array,
        "backoffLimitPerIndex": options.restarts,
        "podFailurePolicy": {
            "rules": [
                {"action": action, "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": [status]}}
                for action, status in exits.items()
            ]
        },
        "template": {"spec": pod(options, command)},
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": options.name},
        "spec": {
            "failurePolicy": {"maxRestarts": 0},
            "replicatedJobs": [{"name": "run", "replicas": 1, "template": {"spec": job}}],
        },
    }


def rule(name: str, action: str, status: int) -> dict:
    """Return the rule for a Job that the pod failure policy ended for this exit status, which the Job's message contains."""
    return {
        "name": name,
        "action": action,
        "onJobFailureReasons": ["PodFailurePolicy"],
        "onJobFailureMessagePatterns": [f"failed with exit code {status} "],
    }


def pod(options: argparse.Namespace, command: list[str]) -> dict:
    """Return the specification of the pod of one machine."""
    slice = options.slice
    chips = {"google.com/tpu": slice.chips // slice.hosts}
    variables = common.run_token() | xla_flags.environment(slice.kind, options.xla_flags)
    spot = {"cloud.google.com/gke-spot": "true"} if options.spot else {}
    selector = {
        "cloud.google.com/gke-tpu-accelerator": slices.KINDS[slice.kind].gke,
        "cloud.google.com/gke-tpu-topology": slice.topology,
    }
    # Kubernetes replaces $$ by $, and $(NAME) by a variable.
    own = ["--run=$(JOB_COMPLETION_INDEX)"] if options.array else []
    spec = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": options.grace,
        "hostNetwork": True,
        "dnsPolicy": "ClusterFirstWithHostNet",
        "nodeSelector": selector | spot,
        "tolerations": [{"key": key, "operator": "Equal", "value": value, "effect": "NoSchedule"} for key, value in spot.items()],
        "containers": [
            {
                "name": CONTAINER,
                "image": options.image,
                "command": [word.replace("$", "$$") for word in command] + own,
                "env": [{"name": name, "value": value} for name, value in variables.items()],
                "ports": [{"containerPort": 8471}, {"containerPort": 8080}],
                "resources": {"requests": chips, "limits": chips},
            }
        ],
    }
    if options.claim:
        name, path = options.claim
        spec["volumes"] = [{"name": "shared", "persistentVolumeClaim": {"claimName": name}}]
        spec["containers"][0]["volumeMounts"] = [{"name": "shared", "mountPath": path}]
    return spec | ({"serviceAccountName": options.service_account} if options.service_account else {})


if __name__ == "__main__":
    common.run_main(main)
