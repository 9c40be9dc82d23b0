"""`bertfam ablate`: arms that differ in a few settings, trained at an equal budget with several seeds, and compared."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager

from bertfam.commands import flags
from bertfam.errors import UserError

SUMMARY = "compare recipes at an equal budget, with several seeds, and say what the study decides"
EXAMPLE = """\
  bertfam vocab --task=python_docs --size=4096 --output=vocab
  bertfam ablate studies/roberta_masks.gin --vocab=vocab --task=python_docs --output=study --dry_run
  bertfam ablate studies/roberta_masks.gin --vocab=vocab --task=python_docs --output=study --parallel=2
A study file binds a Study: its arms, a budget, seeds, scores and claims (bertfam explain Study; docs/studies.md). The same
command again resumes, and keeps finished runs. --gin.Study.budget=2e6 changes a setting of the study. Exit code 0: the report
is complete. 1: a run has failed, and the report lacks it. 75: a signal stopped the study, and its runs have saved their state."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    group = parser.add_argument_group("study", "--gin.NAME=value binds one more value of the study file; repeatable.")
    group.add_argument("study", nargs="?", metavar="STUDY", help="gin file, here or shipped with bertfam (studies/...)")
    group.add_argument(
        "--output",
        type=flags.path,
        required=True,
        metavar="DIR",
        help="folder of the runs and of the report",
    )
    group.add_argument("--dry_run", action="store_true", help="print the plan and its price, and write nothing")
    group.add_argument(
        "--flops_per_second",
        type=float,
        metavar="N",
        help="assumed speed of the devices, for the hours of the plan until finished runs tell the speed",
    )
    flags.add_module_import(group)
    group = parser.add_argument_group("devices")
    group.add_argument(
        "--parallel",
        type=int,
        default=1,
        metavar="N",
        help="runs at once, each in a process with its share of the cores and GPUs of this machine; 0: all in this process, one "
        "after another, which saves its start for tiny runs (default: %(default)s)",
    )
    group.add_argument(
        "--prepare",
        action="store_true",
        help="build the token caches, write the runs that can start now, and print how to start them as an array job",
    )
    group.add_argument(
        "--run",
        type=int,
        metavar="I",
        help="train and score only run I of those that --prepare wrote, without STUDY; for array jobs",
    )
    flags.add_text(parser)
    flags.add_cache_dir(parser)
    parser.set_defaults(gin_bindings=[])


def main(args: argparse.Namespace) -> int:
    """Run the study, or a part of it; return the exit status."""
    if args.run is None and args.study is None:
        raise UserError("no study: give a gin file (bertfam configs studies lists some)")
    if args.run is not None and (args.study or args.prepare or args.dry_run):
        raise UserError("--run trains a run that --prepare has written to --output: leave out STUDY, --prepare and --dry_run")
    if args.parallel < 0:
        raise UserError(f"--parallel={args.parallel} is negative")
    if args.flops_per_second is not None and not args.flops_per_second > 0:
        raise UserError(f"--flops_per_second={args.flops_per_second:g} must be above 0")
    with _devices_left(args.run is None and args.parallel > 0) as environment:
        from bertfam.commands import ablate_run

        return ablate_run.run(args, environment) if args.run is None else ablate_run.run_one(args)


@contextmanager
def _devices_left(to_children: bool) -> Iterator[dict[str, str]]:
    """Leave the accelerators to child processes, of which this one would hold the memory; yield the environment of these."""
    environment = dict(os.environ)
    if to_children:
        os.environ["JAX_PLATFORMS"] = "cpu"
    try:
        yield environment
    finally:
        if to_children:
            os.environ.pop("JAX_PLATFORMS")
            os.environ.update({name: value for name, value in environment.items() if name == "JAX_PLATFORMS"})
