"""`bertfam plan --search`: search for the fastest layout of a run on a slice, written as a gin file."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from bertfam.commands import flags
from bertfam.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bertfam.planning.advice import Builder, Report
    from bertfam.planning.slices import Slice

# Flags of `bertfam plan` without effect on a search, which compiles only the training step.
_OTHERS = ("program", "shardings", "no_advice", "most_rows")


def check(args: argparse.Namespace, slices: Sequence[Slice]) -> None:
    """Raise UserError for incompatible flags and for a file that cannot be written."""
    if args.search != bool(args.output) or (args.search and len(slices) > 1):
        raise UserError("--search requires --output=FILE and a single --slice, and --output requires --search")
    if not args.search:
        return
    if other := next((flag for flag in _OTHERS if getattr(args, flag)), None):
        raise UserError(f"--{other} has no effect with --search, which plans the training step only: remove it")
    flags.check_output_file(args, "output")


def search(args: argparse.Namespace, build: Builder, slice: Slice, report: Report) -> int:
    """Write the fastest layout of the run's training step on the slice; return the exit status."""
    import json

    from bertfam.planning.search import fits, gin_text, rows, search, table
    from bertfam.sharding.chips import chip_of, memory_bytes
    from bertfam.storage.files import write_text

    devices = slice.devices()
    chip, memory = chip_of(devices[0]), memory_bytes(devices[0])
    if chip is None or memory is None:
        raise UserError(f"--search: the speed and memory of {devices[0].device_kind} are unknown; choose another --slice")
    layouts = search(build, devices, chip, memory, report)
    table_rows, best = rows(layouts, chip, memory), layouts[0]
    if not fits(best, memory):
        raise UserError(f"--search: none of the {len(layouts)} compiled layouts fits {slice.name}; use more chips")
    write_text(Path(args.output), gin_text(best, slice.name, memory, _command(args)))
    print(
        json.dumps({"layouts": table_rows, "output": args.output})
        if args.json
        else f"{table(table_rows)}\n\nwritten to {args.output}"
    )
    return 0


def _command(args: argparse.Namespace) -> str:
    """Return the search's command line, quoted for a shell, on one line."""
    words = [f"--{flag}={value}" for flag in ("gin_file", "module_import") for value in getattr(args, flag)]
    words += ["--gin." + "=".join(binding.split(" = ", 1)) for binding in args.gin_bindings]
    words += [f"--slice={name}" for name in args.slice]
    words += [f"--{flag}={value}" for flag in ("vocab_size", "vocab") if (value := getattr(args, flag)) is not None]
    return " ".join(shlex.join(["bertfam", "plan", *words, "--search", f"--output={args.output}"]).splitlines())
