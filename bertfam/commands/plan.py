"""`bertfam plan`: memory, communication and least step time of a run on slices that are not at hand."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

from bertfam.commands import flags, plan_search
from bertfam.errors import UserError
from bertfam.planning.slices import HERE, Slice, parse, prepare

SUMMARY = "compile a run for any TPU slice ahead of time and report memory, cost and fit"
EXAMPLE = """\
  bertfam plan --gin_file=runs/bert_base.gin --gin_file=models/bert_tiny.gin --slice=v5e-4 --gin.BATCH_SIZE=8
  bertfam plan --gin_file=runs/bert_base.gin --gin_file=meshes/fsdp.gin --slice=v5e-16 --slice=v5p-128 --slice=2xv5e-256

The training step (one for each length of rows), the evaluation step, and for models with a decoder the greedy decoding of 8
prompts per device are compiled by the compiler of the slice's machines. Nothing is run, and no text is read. Bytes are the
compiler's; FLOPs are computed from the model's sizes; times are lower bounds from published speeds, and for a training step on
one H200 also a prediction from measured ones, which is printed before compiling. Slices have Google's names: v5e-16 (or
v5litepod-16) and v6e-256 count chips, v5p-128 counts TensorCores, which are 64 chips; 2xv5e-256 is two slices. The compiler's
own names are v5e:4x4, v5p:4x4x4, 2xv5e:4x4, and for TPU7x tpu7x:4x4x4. --slice=here compiles for the devices of this machine.
TPU slices require `pip install 'bertfam[tpu]'`, which installs their compiler, but no TPU.
The exit status is 0 if everything was compiled, even if it does not fit; see "fits" in the output of --json."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    flags.add_config(parser)
    group = parser.add_argument_group("programs and slices")
    group.add_argument(
        "--slice",
        action="append",
        required=True,
        metavar="NAME",
        help=f"a slice, such as v5e-16, v5p-128, 2xv5e-256 or v5e:4x4, or {HERE}; repeatable",
    )
    group.add_argument(
        "--vocab_size", type=int, metavar="N", help="vocabulary size (default: that of the family's published models)"
    )
    group.add_argument("--vocab", type=flags.folder, metavar="DIR", help="vocabulary folder, instead of --vocab_size")
    group.add_argument(
        "--program",
        action="append",
        choices=("train", "evaluate", "decode"),
        help="compile only this program; repeatable (default: all programs of the run)",
    )
    group.add_argument("--shardings", action="store_true", help="also print the sharding of every parameter, moment and feature")
    parser.add_argument(
        "--no_advice",
        action="store_true",
        help="do not search for a change that makes a training step fit (the search compiles more programs)",
    )
    parser.add_argument(
        "--advice_minutes",
        type=float,
        default=10.0,
        metavar="N",
        help="stop that search after so many minutes, for each slice (default: %(default)g)",
    )
    parser.add_argument(
        "--most_rows",
        action="store_true",
        help="also find how many rows of the last stage fit on a device at once, to an eighth (this compiles more programs)",
    )
    group = parser.add_argument_group("the fastest layout")
    group.add_argument(
        "--search",
        action="store_true",
        help="estimate all meshes, levels of recomputation and numbers of microbatches, compile the best five, write the fastest",
    )
    group.add_argument("--output", type=flags.path, metavar="FILE", help="gin file to write; for --search")
    flags.add_json(parser)


def main(args: argparse.Namespace) -> int:
    """Plan; return the exit status."""
    if not 0 < args.advice_minutes < math.inf:
        raise UserError(f"--advice_minutes={args.advice_minutes} must be above 0")
    slices = _parse_slices(args.slice)
    plan_search.check(args, slices)
    prepare(slices)  # before JAX is imported

    from bertfam.commands import plan_run

    return plan_run.run(args, slices)


def _parse_slices(names: Sequence[str]) -> list[Slice]:
    slices = [parse(name) for name in dict.fromkeys(names)]
    if len(slices) > 1 and any(slice.is_here for slice in slices):
        raise UserError(
            f"--slice={HERE} uses the accelerators of this machine and other slices none; plan them in separate commands"
        )
    return slices
