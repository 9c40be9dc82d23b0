"""`bertfam replay`: recomputation of an update on permuted devices, to find a device that computes wrongly."""

from __future__ import annotations

import argparse

from bertfam.commands import flags

SUMMARY = "recompute an update of a run on permuted devices, to find a device that computes wrongly"
EXAMPLE = """\
  bertfam replay --model_dir=model --step=1200
  bertfam replay --model_dir=model --step=1200 --checkpoint=500 --times=4 --json

The updates after a checkpoint are computed again, --times times, each time with every device in the place of another. Replicated
values must be bitwise equal on all devices. So must all digests that the run recorded (Run.digest_every), if the program and the
kind of devices are the same; otherwise losses are compared, within a thousandth and ten times the difference between
arrangements. Exit code 0: all agree. 1: something differs, and the message names the devices if they are known."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    flags.add_model_dir(parser)
    parser.add_argument("--step", type=int, required=True, metavar="N", help="recompute up to the update that leads to this step")
    parser.add_argument(
        "--checkpoint", type=int, metavar="C", help="the checkpoint to start from (default: the newest whole one before N)"
    )
    parser.add_argument(
        "--times",
        type=int,
        default=2,
        metavar="K",
        help="number of arrangements of the devices (default: 2); with more than there are devices, arrangements repeat",
    )
    flags.add_module_import(parser)
    flags.add_json(parser)
    flags.add_processes(parser)


def main(args: argparse.Namespace) -> int:
    """Recompute, compare and print; return the exit status."""
    from bertfam.multihost.startup import join

    with join(args.coordinator, args.num_processes, args.process_index, args.initialization_timeout, args.model_dir) as processes:
        from bertfam.commands import replay_run

        return replay_run.run(args, processes)
