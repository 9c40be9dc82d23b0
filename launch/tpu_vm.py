#!/usr/bin/env python3
"""Trains on Cloud TPU VMs: one slice or several, of one machine or many, got by a queued resource.

  launch/tpu_vm.py train bert --zone=us-west4-a --slice=v5e-16 --spot -- bertfam pretrain --gin_file=runs/bert_base.gin \\
    --vocab=gs://my-bucket/vocab --cache_dir=gs://my-bucket/cache --model_dir=gs://my-bucket/bert

`train` does what other actions do one by one: `up` asks for the slices and waits for them; `run` copies the commit that is
checked out to every machine, installs it, and starts the command on all so that it outlives the connection; `logs --follow` shows
what process 0 prints. Where the machines are taken away, or the run ends preempted (75: its state is saved), stuck (76),
killed, or without one of its processes (77), `train` gets new machines if need be, and the run goes on from its newest
checkpoint, which must be on gs://. Called again, it joins a run that is still on. `status`, `stop` (the run saves its state and
ends), `fetch` (copies a folder from the first machine to here) and `down` (deletes the machines and disks) are for any time.

On the machines everything is in the home folder: job.log, job.status, venv. Their Python must be 3.11 or newer.
"""

import argparse
import re
import subprocess
import sys
import time

import common
import slices
from common import Failed
from tpu_machines import GONE, Machines

LOST = 128 + 9  # as what ends the processes of a machine that is taken away
PATIENCE = 20  # looks at machines that do not answer before they are given up


def main() -> int:
    """Does one of the actions; returns the exit status."""
    options, command = parse(sys.argv[1:])
    return ACTIONS[options.action](Machines(options, command), options)


def parse(words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The flags, and the command after `--`."""
    parser = common.make_parser(__file__, __doc__, "ACTION NAME --zone=ZONE [flags] [-- COMMAND ...]")
    parser.add_argument("action", choices=ACTIONS, metavar="ACTION", help=", ".join(ACTIONS))
    parser.add_argument("name", type=common.name, metavar="NAME", help="of the queued resource and its machines")
    parser.add_argument("--zone", type=common.word, required=True, help="us-west4-a, say")
    parser.add_argument("--project", type=common.word, help="(gcloud's)")
    parser.add_argument("--slice", type=slices.slice_name, metavar="SLICE", help="train, up, run: v5e-16, 2xv6e-256, v5p-128")
    tier = parser.add_mutually_exclusive_group()
    tier.add_argument("--spot", action="store_true", help="ask for machines that cost less and may be taken away")
    tier.add_argument("--guaranteed", action="store_true", help="ask for machines that are not taken away")
    parser.add_argument("--valid_until", type=common.word, metavar="DURATION", help="how long the request may wait: 6h")
    parser.add_argument(
        "--runtime", type=common.word, metavar="VERSION", help="software of the machines (that of the kind of chip)"
    )
    parser.add_argument("--xla_flags", action="store_true", help="set the kind's compiler flags of launch/xla_flags.py")
    parser.add_argument("--restarts", type=common.count, default=10, metavar="N", help="train: start again so often at most (10)")
    parser.add_argument("--follow", action="store_true", help="logs: until the run ends")
    parser.add_argument("--folder", help="fetch: what to copy, on the first machine")
    parser.add_argument("--to", default=".", metavar="DIR", help="fetch: where to (.)")
    parser.add_argument("--poll_seconds", type=common.seconds, default=30, metavar="S", help="between looks at the state (30)")
    parser.add_argument(
        "--retry_seconds", type=common.seconds, default=5, metavar="S", help="before a failed call is tried again (5)"
    )
    common.add_dry_run(parser)
    options, command = common.parse(parser, words)
    for flag, takers in (("slice", ("train", "up", "run")), ("folder", ("fetch",))):
        if options.action in takers and not getattr(options, flag):
            parser.error(f"{options.action} needs --{flag}")
    if options.action in ("train", "run"):
        common.need_command(parser, command)
    if options.action == "train" and options.restarts and re.search("--model_dir[= ](?!gs://)", " ".join(command)):
        parser.error("--model_dir is on machines that may be taken away: give a folder on gs://, or --restarts=0")
    return options, command


def train(machines: Machines, options: argparse.Namespace) -> int:
    """Everything, until the run is finished, has failed, or has been started again too often."""
    return Training(machines, options).run()


class Training:
    """A run that is started again, on other machines if need be."""

    def __init__(self, machines: Machines, options: argparse.Namespace) -> None:
        self._machines, self._options = machines, options
        self._stopped = False  # by `stop`

    def run(self) -> int:
        """Returns the exit status of the run."""
        return common.again(self._once, self._options.restarts, stopped=lambda: self._stopped)

    def _once(self) -> int:
        if self._machines.state(supposed="") in GONE:
            down(self._machines, self._options)
        if up(self._machines, self._options):
            return 1 if self._machines.state() == "FAILED" else LOST  # the request is refused or too old: no more of them
        try:
            if "running" not in self._machines.jobs():
                start(self._machines, self._options)
            return self._watch()
        except Failed:
            if self._machines.state() not in (None, *GONE):
                raise
        common.tell(f"the machines of {self._options.name} were taken away")
        return LOST

    def _watch(self) -> int:
        """Shows the log until the run ends; returns its exit status.

        Raises:
          Failed: the machines do not answer.
        """
        missed = 0
        self._machines.follow()
        while True:
            try:
                found, missed = self._machines.jobs(), 0
                if "running" not in found:
                    self._stopped = "stopped" in found
                    return verdict(found)
            except Failed:
                missed += 1
                if missed == PATIENCE or self._machines.state() in (None, *GONE):
                    raise
            time.sleep(self._options.poll_seconds)  # the connection is lost, the run perhaps not
            self._machines.follow(again=True)


def verdict(found: list[str]) -> int:
    """The exit status of a run from its machines' jobs."""
    if "stopped" in found:
        return common.SAVED
    statuses = [int(status or LOST) for status in found] or [LOST]  # no status: the machine was started anew
    if common.MISTAKE in statuses:
        return common.MISTAKE
    return next(filter(common.why_again, statuses), max(statuses))


def up(machines: Machines, options: argparse.Namespace) -> int:
    """Asks for the machines unless that was done before, and waits until they are there; 1 where they will not come."""
    if machines.state(supposed="") is None:
        machines.create()
    told = None
    while (state := machines.state()) != "ACTIVE":
        if state is None or state in GONE:
            common.tell(f"error: {options.name} is {state or 'gone'} and gets no machines; launch/tpu_vm.py down deletes it")
            return 1
        if state != told:
            common.tell(f"{options.name} is {state}: waits until it is ACTIVE")
        told = state
        time.sleep(options.poll_seconds)
    return 0


def run(machines: Machines, options: argparse.Namespace) -> int:
    """Starts the command, unless a run is on."""
    if "running" in machines.jobs():
        raise Failed(f"a run is still on at {options.name}, nothing was started; see launch/tpu_vm.py logs, stop", 1)
    return start(machines, options)


def start(machines: Machines, options: argparse.Namespace) -> int:
    """Copies the commit to all machines, installs it and starts the command."""
    changed = subprocess.run(["git", "-C", common.CHECKOUT, "status", "--porcelain"], capture_output=True, text=True).stdout
    if changed:
        common.tell(f"warning: {common.CHECKOUT} has changes that are not committed; the commit without them runs")
    machines.install()
    machines.start()
    return 0


def logs(machines: Machines, options: argparse.Namespace) -> int:
    """Prints the log of the first machine so far, or to its end."""
    machines.follow() if options.follow else machines.show_log()
    return 0


def status(machines: Machines, options: argparse.Namespace) -> int:
    """Prints the state of the machines and of each one's job."""
    state = machines.state()
    found = machines.jobs() if state == "ACTIVE" else []
    if not options.dry_run:
        print(": ".join([options.name, state or "there is none", *filter(None, [", ".join(job or "no job" for job in found)])]))
    return 0


def stop(machines: Machines, options: argparse.Namespace) -> int:
    """Has the run save its state and end; `train` does not start it again."""
    machines.stop()
    return 0


def fetch(machines: Machines, options: argparse.Namespace) -> int:
    """Copies a folder from the first machine to here."""
    machines.fetch(options.folder, options.to)
    return 0


def down(machines: Machines, options: argparse.Namespace) -> int:
    """Deletes the machines with their disks."""
    machines.delete()
    return 0


ACTIONS = {action.__name__: action for action in (train, up, run, logs, status, stop, fetch, down)}

if __name__ == "__main__":
    common.run_main(main)
