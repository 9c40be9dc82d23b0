#!/usr/bin/env python3
"""Trains on TPU slices of a GKE cluster, as a JobSet: a Job a slice, a pod a machine.

  launch/gke.py create bert --slice=2xv5e-16 --image=us-docker.pkg.dev/my-project/images/bertfam -- bertfam pretrain \\
    --gin_file=runs/bert_base.gin --vocab=gs://my-bucket/vocab --cache_dir=gs://my-bucket/cache --model_dir=gs://my-bucket/bert

The image is of the commit that is checked out: git archive HEAD | docker build --file=launch/Dockerfile --tag=IMAGE -

What a pod ends with says what follows: 75 (preempted: the state is saved) starts all pods again, however often; 2 (a mistake in
the command) ends the JobSet; all else (a machine is gone, stuck, a fault) starts all again, --restarts times at most. `create`
starts the run, `logs` follows process 0, `status` shows it, `delete` has it save its state and removes it. kubectl must know the
cluster, which must have JobSet 0.10 or newer (jobset.sigs.k8s.io).
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
    """Does one of the actions; returns the exit status."""
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
    """The flags, and the command after `--`."""
    parser = common.make_parser(__file__, __doc__, "ACTION NAME [flags] [-- COMMAND ...]")
    parser.add_argument("action", choices=ACTIONS, metavar="ACTION", help=", ".join(ACTIONS))
    parser.add_argument("name", type=common.name, metavar="NAME", help="of the JobSet")
    parser.add_argument("--namespace", type=common.word, help="(kubectl's)")
    parser.add_argument(
        "--service_account", type=common.word, metavar="NAME", help="create: the pods', which may read and write gs:// folders"
    )
    clusters.add_flags(parser, restarts=10, counted="75 aside")
    return clusters.parse(parser, words)


def manifest(options: argparse.Namespace, command: list[str]) -> dict:
    """The JobSet."""
    wanted = options.slice
    job = {
        "completionMode": "Indexed",
        "completions": wanted.hosts,
        "parallelism": wanted.hosts,
        "backoffLimit": 0,  # the first pod that fails ends the Job; the JobSet decides what follows
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
                "restartStrategy": "BlockingRecreate",  # no new pod waits for one of before
                "rules": [
                    rule("saved", "RestartJobSetAndIgnoreMaxRestarts", common.SAVED),
                    rule("mistake", "FailJobSet", common.MISTAKE),
                ],
            },
            "replicatedJobs": [{"name": "slice", "replicas": wanted.count, "template": {"spec": job}}],
        },
    }


def rule(name: str, action: str, status: int) -> dict:
    """What the JobSet does where the pod failure policy has ended a Job for this exit status, of which its message tells."""
    return {
        "name": name,
        "action": action,
        "onJobFailureReasons": ["PodFailurePolicy"],
        "onJobFailureMessagePatterns": [f"failed with exit code {status} "],
    }


def pod(options: argparse.Namespace, command: list[str]) -> dict:
    """What runs on one machine."""
    wanted = options.slice
    chips = {"google.com/tpu": wanted.chips // wanted.hosts}
    variables = xla_flags.environment(wanted.kind, options.xla_flags)
    spot = {"cloud.google.com/gke-spot": "true"} if options.spot else {}
    selector = {
        "cloud.google.com/gke-tpu-accelerator": slices.KINDS[wanted.kind].gke,
        "cloud.google.com/gke-tpu-topology": wanted.topology,
    }
    made = {
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
                # Kubernetes makes $ of $$, and would put a variable in the place of $(NAME).
                "command": [word.replace("$", "$$") for word in command],
                "env": [{"name": name, "value": value} for name, value in variables.items()],
                "ports": [{"containerPort": 8471}, {"containerPort": 8080}],
                "resources": {"requests": chips, "limits": chips},
            }
        ],
    }
    return made | ({"serviceAccountName": options.service_account} if options.service_account else {})


if __name__ == "__main__":
    common.run_main(main)
