"""`bertfam merge`: one model from several checkpoints of one architecture."""

from __future__ import annotations

import argparse
import math

from bertfam.commands import flags
from bertfam.commands.checkpoint_names import checkpoint_name, one_checkpoint
from bertfam.errors import UserError

SUMMARY = "merge checkpoints of one or several runs into one model, and score each on held-out text"
EXAMPLE = """\
  bertfam merge --model_dir=run@8000,9000,10000 --output=merged
  bertfam merge --model_dir=run@all --method=exponential --decay=0.8 --output=merged
  bertfam merge --model_dir=seed0 --model_dir=seed1@best --weights=2,1 --output=merged
  bertfam merge --model_dir=law --model_dir=code --method=ties --base=general@10000 --output=merged
--output is a model folder at its step 0, which evaluate, export, finetune and --init_from read like any other."""

# Flag -> its method.
_OWN = {"weights": "average", "decay": "exponential", "base": "ties", "density": "ties", "scale": "ties"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument(
        "--model_dir",
        type=checkpoint_name,
        action="append",
        required=True,
        metavar="DIR[@STEP,...]",
        help="checkpoints of a run: the newest, or those of the steps; best is the one with the best held-out Run.keep_best, all "
        "are all of the run; repeatable. The merge has the configuration of the first",
    )
    parser.add_argument("--output", type=flags.folder, required=True, metavar="DIR", help="model folder to create")
    parser.add_argument(
        "--method",
        choices=("average", "exponential", "ties"),
        default="average",
        help="average: weighted by --weights; exponential: the moving average of the checkpoints in their order; ties: the "
        "largest changes from --base whose signs agree (Yadav et al. 2023) (default: average)",
    )
    parser.add_argument(
        "--weights", type=_weights, metavar="W,W,...", help="weight of each checkpoint, in their order (default: equal weights)"
    )
    parser.add_argument(
        "--decay", type=float, metavar="D", help="share of the exponential average that each further checkpoint leaves of it"
    )
    parser.add_argument(
        "--base",
        type=one_checkpoint,
        metavar="DIR[@STEP]",
        help="checkpoint that the others were trained from, for ties",
    )
    parser.add_argument(
        "--density", type=float, metavar="SHARE", help="share of the changes of a checkpoint that ties keeps (default: 0.2)"
    )
    parser.add_argument("--scale", type=float, metavar="F", help="factor of the merged change of ties (default: 1)")
    flags.add_module_import(parser)
    group = parser.add_argument_group("scores")
    group.add_argument(
        "--cache_dir",
        type=flags.folder,
        metavar="DIR",
        help="another token cache of the same vocabulary, whose held-out text is scored (default: that of the first run)",
    )
    group.add_argument("--batches", type=int, metavar="N", help="at most so many batches (default: all)")
    group.add_argument("--skip_evaluation", action="store_true", help="merge without scores")
    flags.add_json(parser)


def main(args: argparse.Namespace) -> int:
    """Merge and print the scores; return the exit status."""
    from bertfam.interop.folders import check_is_run, check_output
    from bertfam.storage.files import check_unused

    _check_flags(args)
    names = [*args.model_dir, *([args.base] if args.base else [])]
    for name in names:
        check_is_run(name.folder)
        check_output("--output", args.output, name.folder)
    check_unused(args.output)
    from bertfam.commands import merge_run

    return merge_run.merge(args)


def _weights(words: str) -> tuple[float, ...]:
    """Parse --weights."""
    try:
        return tuple(map(float, words.split(",")))
    except ValueError:
        raise argparse.ArgumentTypeError("write numbers with commas between, as 1,1,2") from None


def _check_flags(args: argparse.Namespace) -> None:
    """Raise UserError for flags of other methods, missing ones, and numbers out of range."""
    for name, method in _OWN.items():
        if getattr(args, name) is not None and method != args.method:
            raise UserError(
                f"--{name} is of --method={method}, and the method is {args.method}: give that method, or leave it out"
            )
    if args.method == "exponential" and args.decay is None:
        raise UserError("--method=exponential requires --decay, the share of the average that a further checkpoint leaves of it")
    if args.method == "ties" and args.base is None:
        raise UserError("--method=ties requires --base=DIR[@STEP], the checkpoint that the others were trained from")
    for weight in args.weights or ():
        if not 0 < weight < math.inf:
            raise UserError(f"--weights: {weight:g} is not above 0; leave out a checkpoint that has no weight")
    if args.weights and not sum(args.weights) < math.inf:
        raise UserError("--weights: their sum is infinite; give smaller weights in the same proportions")
    if args.decay is not None and not 0 <= args.decay < 1:
        raise UserError(f"--decay={args.decay:g} is not at least 0 and below 1")
    if args.density is not None and not 0 < args.density <= 1:
        raise UserError(f"--density={args.density:g} is not above 0 and at most 1")
    if args.scale is not None and not 0 < args.scale < math.inf:
        raise UserError(f"--scale={args.scale:g} is not above 0")
    for name in ("cache_dir", "batches"):
        if args.skip_evaluation and getattr(args, name) is not None:
            raise UserError(f"--{name} is of the scores, and --skip_evaluation leaves them out; give one of them")
    if args.batches is not None and args.batches < 1:
        raise UserError(f"--batches={args.batches} is less than 1")
