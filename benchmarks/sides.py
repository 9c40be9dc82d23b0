"""The two sides of benchmarks: bertfam, and Hugging Face's models with torch.compile."""

import argparse
import importlib.util
import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import training_step
from benchmarks.processes import Job, run_all, wait_for_turn
from benchmarks.training_step import OURS, Case

PEER = "peer"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of how cases are measured."""
    add = parser.add_argument
    add("--steps", type=int, default=10, help="updates of a round, of five (default: %(default)s)")
    add("--together", type=int, default=4, help="processes that compile side by side (default: %(default)s)")
    add("--limit", type=float, default=600, help="longest seconds of compiling, and of timing (default: %(default)g)")
    add("--torch_compile", default="default", help='mode of the peer\'s torch.compile, or "none" (default: %(default)s)')
    kernels = "attention kernels that the peer tries first (default: in PyTorch's order)"
    add("--sdpa", choices=("default", "cudnn"), default="default", help=kernels)
    binding = "further binding of every case, of a model as MODEL.num_layers=2; repeatable"
    add("--gin", action="append", default=[], metavar="BINDING", help=binding)
    # The process of a peer has another JAX_PLATFORMS.
    device = "cpu" if os.environ.get("JAX_PLATFORMS") == "cpu" else "cuda"
    add("--peer_device", choices=("cuda", "cpu"), default=device, help=argparse.SUPPRESS)


def check_flags(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Refuse numbers with which nothing can be measured."""
    if args.together < 1 or args.steps < 1 or not args.limit > 0:
        parser.error("--steps and --together must be at least 1, and --limit more than 0")


def job(name: str, words: Sequence[str], side: str, args: argparse.Namespace) -> Job:
    """Return the job of one side of a case: `words` are the module and its own flags."""
    flags = [f"--steps={args.steps}", *(f"--gin={binding}" for binding in args.gin)]
    if side == OURS:
        return Job(f"{name}, {side}", [*words, *flags])
    flags += [f"--torch_compile={args.torch_compile}", f"--sdpa={args.sdpa}", f"--peer_device={args.peer_device}"]
    # JAX builds the rows there, and must leave the card's memory to PyTorch.
    return Job(f"{name}, {side}", [*words, *flags], {"JAX_PLATFORMS": "cpu"})


def measure(case: Case, side: str, args: argparse.Namespace) -> dict[str, Any]:
    """Measure one side of a case in this process."""
    if side == OURS:
        return training_step.measure(case, args.steps, args.gin, wait=wait_for_turn)
    from benchmarks import step_peer

    options = {"device": args.peer_device, "mode": args.torch_compile, "sdpa": args.sdpa}
    return step_peer.measure(case, args.steps, args.gin, wait=wait_for_turn, **options)


def has_peer(device: str) -> bool:
    """Return whether the peer can run on a device, "cuda" or "cpu"; say in a line on stderr why not."""
    reason = _peer_missing(device)
    if reason:
        print(f"no peers: {reason}", file=sys.stderr)
    return reason is None


def _peer_missing(device: str) -> str | None:
    for package in ("torch", "transformers"):
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed"
    from benchmarks import step_peer

    return step_peer.missing(device)


def measure_all(jobs: Sequence[Job], args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure each job, and yield the figures of those that do not fail."""
    for job, record in run_all(jobs, args.together, args.limit):
        if not math.isfinite(record.get("loss", 0.0)):
            print(f"{job.name}: the loss is {record['loss']}", file=sys.stderr)
        print(f"{job.name}: {1e3 * record['seconds']:.1f} ms", file=sys.stderr, flush=True)
        yield record | {"compiled_side_by_side": args.together}


def recorded(records: Iterable[dict[str, Any]], file: Path | None) -> Iterator[dict[str, Any]]:
    """Yield records after appending each to a file, as a line of JSON; None: to no file."""
    for record in records:
        if file:
            with open(file, "a") as lines:
                lines.write(json.dumps(record) + "\n")
        yield record
