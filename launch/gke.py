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
    clusters.add_flags(parser, restarts=10, counted="except after status 75")
    return clusters.parse(parser, words)


def manifest(options: argparse.Namespace, command: list[str]) -> dict:
    """Return the manifest of the JobSet."""
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
                # Kubernetes replaces $$ by $, and $(NAME) by a variable.
                "command": [word.replace("$", "$$") for word in command],
                "env": [{"name": name, "value": value} for name, value in variables.items()],
                "ports": [{"containerPort": 8471}, {"containerPort": 8080}],
                "resources": {"requests": chips, "limits": chips},
            }
        ],
    }
    return spec | ({"serviceAccountName": options.service_account} if options.service_account else {})


if __name__ == "__main__":
    common.run_main(main)
