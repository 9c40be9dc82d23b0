#!/usr/bin/env python3
r"""Train on Cloud TPU VMs: one or several slices, each of one or several machines, requested by a queued resource.

  launch/tpu_vm.py train bert --zone=us-west4-a --slice=v5e-16 --spot -- bertfam pretrain --gin_file=runs/bert_base.gin \
    --vocab=gs://my-bucket/vocab --cache_dir=gs://my-bucket/cache --model_dir=gs://my-bucket/bert

`train` combines other actions: `up` requests the slices and waits for them; `run` copies the commit that is checked out to
every machine, installs it, and starts the command on all machines so that it survives a lost connection; `logs --follow` shows
the log of process 0. If the machines are preempted, or the run ends preempted (75; its state is saved), stuck (76), killed,
without one of its processes (77), or without its storage (74), `train` requests new machines if necessary and restarts the run,
which resumes from its newest checkpoint; this must be on gs://. If a run is still active, `train` follows it. `status`, `stop`
(the run saves its state and ends), `fetch` (copies a folder from the first machine to this one) and `down` (deletes the
machines and disks) may be called at any time.

On the machines, all files are in the home folder: job.log, job.status, venv. Their Python must be 3.11 or newer. The command runs
there; --copy=PATH, repeatable, copies your own modules, gin files or folders from the current folder to the same place there, so
that the command can name them as here: --copy=my_tasks.py -- bertfam pretrain --module_import=my_tasks ...
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import time

import common
import slices
from common import LaunchError
from tpu_machines import GONE, Machines

KILLED = 128 + 9  # exit status for a preempted machine, whose processes are killed
MISSED_POLLS = 20  # polls without a response after which the machines are given up


def main() -> int:
    """Run one of the actions; return the exit status."""
    options, command = parse(sys.argv[1:])
    return ACTIONS[options.action](Machines(options, command), options)


def parse(words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the flags, and the command after `--`."""
    parser = common.make_parser(__file__, __doc__, "ACTION NAME --zone=ZONE [flags] [-- COMMAND ...]")
    parser.add_argument("action", choices=ACTIONS, metavar="ACTION", help=", ".join(ACTIONS))
    parser.add_argument("name", type=common.name, metavar="NAME", help="name of the queued resource and its machines")
    parser.add_argument("--zone", type=common.word, required=True, help="Google Cloud zone, such as us-west4-a")
    parser.add_argument("--project", type=common.word, help="Google Cloud project (default: that of gcloud)")
    parser.add_argument("--slice", type=slices.slice_name, metavar="SLICE", help="train, up, run: v5e-16, 2xv6e-256, v5p-128")
    tier = parser.add_mutually_exclusive_group()
    tier.add_argument("--spot", action="store_true", help="request machines that cost less and may be preempted")
    tier.add_argument("--guaranteed", action="store_true", help="request machines that are not preempted")
    parser.add_argument(
        "--valid_until", type=common.word, metavar="DURATION", help="longest time that the request may wait, such as 6h"
    )
    parser.add_argument(
        "--runtime",
        type=common.word,
        metavar="VERSION",
        help="software version of the machines (default: that for the kind of chip)",
    )
    parser.add_argument("--xla_flags", action="store_true", help="set the compiler flags for the chips from launch/xla_flags.py")
    parser.add_argument(
        "--restarts", type=common.count, default=10, metavar="N", help="train: largest number of restarts (default: 10)"
    )
    parser.add_argument(
        "--copy",
        action="append",
        default=[],
        metavar="PATH",
        help="train, run: file or folder below the current one to copy to the machines; repeatable",
    )
    parser.add_argument("--follow", action="store_true", help="logs: follow the log until the run ends")
    parser.add_argument("--folder", help="fetch: folder on the first machine")
    parser.add_argument("--to", default=".", metavar="DIR", help="fetch: local folder to copy to (default: .)")
    parser.add_argument(
        "--poll_seconds", type=common.seconds, default=30, metavar="S", help="time between queries of the state (default: 30)"
    )
    parser.add_argument(
        "--retry_seconds", type=common.seconds, default=5, metavar="S", help="delay before a failed call is retried (default: 5)"
    )
    common.add_dry_run(parser)
    options, command = common.parse(parser, words)
    for flag, actions in (("slice", ("train", "up", "run")), ("folder", ("fetch",))):
        if options.action in actions and not getattr(options, flag):
            parser.error(f"{options.action} requires --{flag}")
    for word in options.copy:
        path = pathlib.Path(word)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            parser.error(f"--copy={word} is not below the current folder: write a relative path without ..")
        if not path.exists():
            parser.error(f"--copy={word} does not exist")
        # tar copies a link as a link, which leads nowhere on the machines.
        if pathlib.Path.cwd() not in (target := pathlib.Path(os.path.realpath(path))).parents:
            parser.error(f"--copy={word} is a link to {target}, outside of the current folder: copy that here, and name the copy")
    if options.action in ("train", "run"):
        common.check_command(parser, command, slices.alone(parser, options.slice))
        if options.action == "train" and options.restarts and re.search("--model_dir[= ](?!gs://)", " ".join(command)):
            parser.error("--model_dir is on machines that may be preempted: use a folder on gs://, or --restarts=0")
        sent = [pathlib.Path(word) for word in options.copy]
        for flag, word in common.local_folders(command).items():
            path = pathlib.Path(word)
            if flag != "--model_dir" and path.exists() and not path.is_absolute() and not {path, *path.parents} & {*sent}:
                parser.error(f"{flag}={word} is not on the machines: send it by --copy={word}, or use a folder on gs://")
    return options, command


def train(machines: Machines, options: argparse.Namespace) -> int:
    """Run all steps until the run is finished, failed, or used up its restarts; return its exit status."""
    return Training(machines, options).run()


class Training:
    """Run that is restarted, on other machines if necessary."""

    def __init__(self, machines: Machines, options: argparse.Namespace) -> None:
        self._machines, self._options = machines, options
        self._stopped = False  # by the action `stop`

    def run(self) -> int:
        """Run to the end; return the exit status."""
        return common.run_with_restarts(self._once, self._options.restarts, stopped=lambda: self._stopped)

    def _once(self) -> int:
        if self._machines.state(dry_answer="") in GONE:
            down(self._machines, self._options)
        if up(self._machines, self._options):
            return 1 if self._machines.state() == "FAILED" else KILLED  # the request failed or expired; request no more
        try:
            if "running" not in self._machines.jobs():
                start(self._machines, self._options)
            return self._watch()
        except LaunchError:
            if self._machines.state() not in (None, *GONE):
                raise
        common.report(f"the machines of {self._options.name} were preempted")
        return KILLED

    def _watch(self) -> int:
        """Show the log until the run ends; return its exit status.

        Raises:
          LaunchError: if the machines do not respond.
        """
        missed = 0
        self._machines.follow()
        while True:
            try:
                jobs, missed = self._machines.jobs(), 0
                if "running" not in jobs:
                    self._stopped = "stopped" in jobs
                    return exit_status(jobs)
            except LaunchError:
                missed += 1
                if missed == MISSED_POLLS or self._machines.state() in (None, *GONE):
                    raise
            time.sleep(self._options.poll_seconds)  # the connection was lost; the run may still be active
            self._machines.follow(new_only=True)


def exit_status(jobs: list[str]) -> int:
    """Return the exit status of a run from the states of its machines' jobs."""
    if "stopped" in jobs:
        return common.SAVED
    statuses = [int(status or KILLED) for status in jobs] or [KILLED]  # a job without a status: its machine was restarted
    if common.MISTAKE in statuses:
        return common.MISTAKE
    return next(filter(common.restart_reason, statuses), max(statuses))


def up(machines: Machines, options: argparse.Namespace) -> int:
    """Request the machines if necessary and wait until they are ready; return 1 if the request failed."""
    if machines.state(dry_answer="") is None:
        machines.create()
    reported = None
    while (state := machines.state()) != "ACTIVE":
        if state is None or state in GONE:
            common.report(
                f"error: {options.name} is {state or 'gone'} and will get no machines; delete it with launch/tpu_vm.py down"
            )
            return 1
        if state != reported:
            common.report(f"{options.name} is {state}; waiting until it is ACTIVE")
        reported = state
        time.sleep(options.poll_seconds)
    return 0


def run(machines: Machines, options: argparse.Namespace) -> int:
    """Start the command unless a run is active."""
    if "running" in machines.jobs():
        raise LaunchError(
            f"a run is still active on {options.name}; follow it with launch/tpu_vm.py logs, or end it with stop", 1
        )
    return start(machines, options)


def start(machines: Machines, options: argparse.Namespace) -> int:
    """Copy the commit to all machines, install it and start the command."""
    changed = subprocess.run(["git", "-C", common.CHECKOUT, "status", "--porcelain"], capture_output=True, text=True).stdout
    if changed:
        common.report(f"warning: {common.CHECKOUT} has uncommitted changes; the commit runs without them")
    machines.install()
    machines.start()
    return 0


def logs(machines: Machines, options: argparse.Namespace) -> int:
    """Print the log of the first machine so far, or until the run ends."""
    machines.follow() if options.follow else machines.show_log()
    return 0


def status(machines: Machines, options: argparse.Namespace) -> int:
    """Print the state of the queued resource and of each machine's job."""
    state = machines.state()
    jobs = machines.jobs() if state == "ACTIVE" else []
    if not options.dry_run:
        print(": ".join([options.name, state or "not found", *filter(None, [", ".join(job or "no job" for job in jobs)])]))
    return 0


def stop(machines: Machines, options: argparse.Namespace) -> int:
    """Let the run save its state and end; `train` does not restart it."""
    machines.stop()
    return 0


def fetch(machines: Machines, options: argparse.Namespace) -> int:
    """Copy a folder from the first machine to this one."""
    machines.fetch(options.folder, options.to)
    return 0


def down(machines: Machines, options: argparse.Namespace) -> int:
    """Delete the machines and their disks."""
    machines.delete()
    return 0


ACTIONS = {action.__name__: action for action in (train, up, run, logs, status, stop, fetch, down)}

if __name__ == "__main__":
    common.run_main(main)
