#!/usr/bin/env python3
r"""Train on TPU slices of a GKE cluster that XPK manages (github.com/AI-Hypercomputer/xpk, flags as of its version 1.16).

  launch/xpk.py create bert --cluster=my-cluster --slice=2xv5e-16 --image=us-docker.pkg.dev/my-project/images/bertfam -- \
    bertfam pretrain --gin_file=runs/bert_base.gin --vocab=gs://my-bucket/vocab --cache_dir=gs://my-bucket/cache \
    --model_dir=gs://my-bucket/bert

The image, also one with your own modules and gin files, is built as for launch/gke.py. If a pod exits with 75 (preempted; the
state is saved), 74 (storage out of reach), 76 (stuck), 77 (another process was lost), 1 (an error) or is killed by a signal,
XPK's JobSet restarts all pods, at most --restarts times. After 2 (a mistake in the command) it ends. `delete` lets the run save
its state and removes it.
"""

import argparse
import re
import shlex
import sys

import clusters
import common
import xla_flags

ACTIONS = ("create", "delete")


def main() -> int:
    """Run one of the actions; return the exit status."""
    options, command = parse(sys.argv[1:])
    runner = common.Runner(options.dry_run, options.retry_seconds)
    where = [f"--cluster={options.cluster}", f"--workload={options.name}"]
    where += [f"--{flag}={value}" for flag, value in (("project", options.project), ("zone", options.zone)) if value]
    if options.action == "delete":
        runner.run(["xpk", "workload", "delete", *where, "--force"], retries=3)
        return 0
    slice = options.slice
    variables = common.run_token() | xla_flags.environment(slice.kind, options.xla_flags)
    flags = [
        f"--tpu-type={slice.accelerator_type}",
        f"--num-slices={slice.count}",
        f"--docker-image={options.image}",
        f"--max-restarts={options.restarts}",
        f"--restart-on-exit-codes={','.join(map(str, (1, *common.RESTART_REASONS)))}",
        f"--termination-grace-period-seconds={options.grace}",
        *(["--spot"] if options.spot else []),
        *(f"--env={name}={value}" for name, value in variables.items()),
        f"--command={quote_for_manifest(command)}",
    ]
    runner.run(["xpk", "workload", "create", *where, *flags])
    return 0


def parse(words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the flags, and the command after `--`."""
    parser = common.make_parser(__file__, __doc__, "ACTION NAME --cluster=CLUSTER [flags] [-- COMMAND ...]")
    parser.add_argument("action", choices=ACTIONS, metavar="ACTION", help=", ".join(ACTIONS))
    parser.add_argument("name", type=common.name, metavar="NAME", help="name of the workload")
    parser.add_argument("--cluster", type=common.word, required=True, help="name of the cluster")
    parser.add_argument("--project", type=common.word, help="Google Cloud project (default: that of gcloud)")
    parser.add_argument("--zone", type=common.word, help="Google Cloud zone (default: that of gcloud)")
    clusters.add_flags(parser, restarts=100, counted="including those after status 75")
    return clusters.parse(parser, words)


def quote_for_manifest(command: list[str]) -> str:
    """Quote the command for bash on one line; XPK inserts it into a manifest, where a newline would break the YAML.

    Kubernetes replaces $$ by $ there, and $(NAME) by a variable.
    """

    def quote(word: str) -> str:
        if word.isprintable():
            return shlex.quote(word)
        escaped = re.sub(r"[\\']", r"\\\g<0>", word)
        return "$'" + "".join(letter if letter.isprintable() else f"\\U{ord(letter):08x}" for letter in escaped) + "'"

    return " ".join(map(quote, command)).replace("$", "$$")


if __name__ == "__main__":
    common.run_main(main)
