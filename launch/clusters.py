"""Flags that the launchers for Kubernetes share."""

import argparse
from collections.abc import Sequence

import common
import slices


def add_flags(parser: argparse.ArgumentParser, restarts: int, counted: str) -> None:
    """What `create` makes, and how often it is started again."""
    parser.add_argument("--slice", type=slices.slice_name, metavar="SLICE", help="create: v5e-16, 2xv6e-256, v5p-128")
    parser.add_argument("--image", type=common.word, help="create: the container image, with the command in it")
    parser.add_argument("--spot", action="store_true", help="create: on machines that cost less and may be taken away")
    parser.add_argument(
        "--restarts",
        type=common.count,
        default=restarts,
        metavar="N",
        help=f"create: how often to start again at most, {counted} ({restarts})",
    )
    parser.add_argument("--grace", type=common.count, default=300, metavar="SECONDS", help="create: to save the state in (300)")
    parser.add_argument("--xla_flags", action="store_true", help="create: set the kind's compiler flags of launch/xla_flags.py")
    parser.add_argument(
        "--retry_seconds", type=common.seconds, default=5, metavar="S", help="before a failed call is tried again (5)"
    )
    common.add_dry_run(parser)


def parse(parser: argparse.ArgumentParser, words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The flags, and the command after `--`, which `create` needs."""
    options, command = common.parse(parser, words)
    if options.action == "create":
        for flag in ("slice", "image"):
            if not getattr(options, flag):
                parser.error(f"create needs --{flag}")
        common.need_command(parser, command)
    return options, command
