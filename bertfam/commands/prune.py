"""`bertfam prune`: a smaller model from a trained one, without its least important heads, neurons, layers or weights."""

from __future__ import annotations

import argparse

from bertfam.commands import flags
from bertfam.commands.analyze_importance import add_text, check_text
from bertfam.errors import UserError

SUMMARY = "remove attention heads, neurons, layers or weights from a trained model"
EXAMPLE = """\
  bertfam prune --model_dir=runs/sst2 --heads=0.5 --neurons=0.25 --output=smaller
  bertfam prune --model_dir=runs/sst2 --heads=0.3 --form=masked --output=masked
  bertfam prune --model_dir=runs/gated --gates --output=fewer
  bertfam prune --model_dir=runs/bert --layers=6 --drop=top --skip_evaluation --output=half
  bertfam finetune --init_from=half --train=train.tsv --validation=dev.tsv --model_dir=runs/half
--output is a model folder at its step 0, which evaluate, predict, export, finetune and --init_from read like any other. Heads of
closed gates are removed first, then layers, then heads and neurons by their importance (see analyze importance), then weights.
docs/pruning.md has measurements."""

_SHARES = ("heads", "neurons", "weights")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument("--model_dir", type=flags.folder, required=True, metavar="DIR", help="folder of a run")
    flags.add_step(parser)
    flags.add_average(parser)
    parser.add_argument("--output", type=flags.folder, required=True, metavar="DIR", help="model folder to create")
    flags.add_module_import(parser)
    group = parser.add_argument_group("what is removed, one or more")
    group.add_argument("--layers", type=int, metavar="N", help="number of layers, of an encoder-decoder in each of both stacks")
    group.add_argument(
        "--drop",
        choices=("top", "alternate", "symmetric", "bottom"),
        help="which layers: the last, every second from the last down, those in the middle, or the first (default: top)",
    )
    group.add_argument("--heads", type=float, metavar="SHARE", help="share of the attention heads, the least important ones")
    group.add_argument(
        "--gates",
        action="store_true",
        help="the attention heads whose gates are closed, of a model that was fine-tuned with FineTuning.gates",
    )
    group.add_argument(
        "--form",
        choices=("compact", "masked"),
        help="of heads and gates: compact removes equally many in each layer, so that the model is smaller and faster; masked "
        "sets heads of any layer to zero, so that shapes stay (default: compact)",
    )
    group.add_argument(
        "--neurons", type=float, metavar="SHARE", help="share of each feed-forward network's neurons, the least important ones"
    )
    group.add_argument(
        "--weights", type=float, metavar="SHARE", help="share of the weights in the layers' kernels, set to zero by magnitude"
    )
    group.add_argument(
        "--scope",
        choices=("model", "layer"),
        help="of weights: magnitudes are compared in the whole model, or in each kernel of a layer (default: model)",
    )
    add_text(parser)
    parser.add_argument("--skip_evaluation", action="store_true", help="prune without scores")
    flags.add_json(parser)


def main(args: argparse.Namespace) -> int:
    """Prune and print the scores; return the exit status."""
    from bertfam.interop.folders import check_output
    from bertfam.storage.files import check_unused

    _check_flags(args)
    flags.check_model_dir(args, huggingface=False)
    check_output("--output", args.output, args.model_dir)
    check_unused(args.output)
    from bertfam.commands import prune_run

    return prune_run.prune(args)


def _check_flags(args: argparse.Namespace) -> None:
    """Raise UserError for nothing to remove, shares out of range, and flags of what is not removed."""
    check_text(args)
    if not args.gates and all(getattr(args, name) is None for name in ("layers", *_SHARES)):
        raise UserError("nothing is removed: give --heads=SHARE, --gates, --neurons=SHARE, --layers=N or --weights=SHARE")
    if args.gates and args.heads is not None:
        raise UserError("--gates and --heads both say which heads are removed: leave one of them out")
    for name in _SHARES:
        if getattr(args, name) is not None and not 0 < getattr(args, name) < 1:
            raise UserError(f"--{name}={getattr(args, name):g} is not above 0 and below 1")
    if args.layers is not None and args.layers < 1:
        raise UserError(f"--layers={args.layers} is less than 1")
    for flag, name in (("drop", "layers"), ("form", "heads"), ("scope", "weights")):
        if getattr(args, flag) is not None and getattr(args, name) is None and not (flag == "form" and args.gates):
            raise UserError(f"--{flag} is of --{name}: give that too, or leave it out")
    needs_text = args.heads is not None or args.neurons is not None or not args.skip_evaluation
    if args.cache_dir is not None and not needs_text:
        raise UserError("--cache_dir is of scores and importance, and neither is measured: leave it out")
