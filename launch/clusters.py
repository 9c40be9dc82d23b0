"""Flags of the launchers for Kubernetes."""

import argparse
import pathlib
from collections.abc import Sequence

import common
import slices


def add_flags(parser: argparse.ArgumentParser, restarts: int, counted: str) -> None:
    """Declare the flags of `create`.

    Args:
      parser: parser of the launcher.
      restarts: default of --restarts.
      counted: which restarts are counted, for the help.
    """
    parser.add_argument("--slice", type=slices.slice_name, metavar="SLICE", help="create: v5e-16, 2xv6e-256, v5p-128")
    parser.add_argument("--image", type=common.word, help="create: container image that contains the command")
    parser.add_argument("--spot", action="store_true", help="create: use machines that cost less and may be preempted")
    parser.add_argument(
        "--restarts",
        type=common.count,
        default=restarts,
        metavar="N",
        help=f"create: largest number of restarts, {counted} (default: {restarts})",
    )
    parser.add_argument(
        "--grace", type=common.count, default=300, metavar="SECONDS", help="create: time to save the state (default: 300)"
    )
    parser.add_argument(
        "--xla_flags", action="store_true", help="create: set the compiler flags for the chips from launch/xla_flags.py"
    )
    parser.add_argument(
        "--retry_seconds", type=common.seconds, default=5, metavar="S", help="delay before a failed call is retried (default: 5)"
    )
    common.add_dry_run(parser)


def parse(parser: argparse.ArgumentParser, words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the flags, and the command after `--`, which `create` requires."""
    options, command = common.parse(parser, words)
    if options.action == "create":
        for flag in ("slice", "image"):
            if not getattr(options, flag):
                parser.error(f"create requires --{flag}")
        common.check_command(parser, command, slices.alone(parser, options.slice))
        for flag, folder in common.local_folders(command).items():
            if flag == "--model_dir":
                parser.error(f"{flag}={folder} would be in a pod, which no other sees and a restart loses: use a folder on gs://")
            if not pathlib.PurePosixPath(folder).is_absolute():
                parser.error(
                    f"{flag}={folder} is not in the pods: use a folder on gs://, or the absolute path of one in the image"
                )
    return options, command
