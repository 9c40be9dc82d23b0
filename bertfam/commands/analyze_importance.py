"""`bertfam analyze importance`: importance of attention heads for the loss of a model, and scores as heads are removed."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from bertfam.commands import flags
from bertfam.commands.analyze_heads import write_report
from bertfam.errors import UserError

if TYPE_CHECKING:
    from bertfam.analysis.importance import TextImportance
    from bertfam.training.model_dir import TrainedModel

SUMMARY = "measure the importance of attention heads, and the scores as heads are removed"
EXAMPLE = """\
  bertfam analyze importance --model_dir=runs/sst2 --curve --output=importance.html
  bertfam analyze importance --model_dir=runs/quickstart/model --batches=8 --json
The importance of a head is the mean over rows of |dL/d gate|, with a gate of 1 on the head (Michel et al. 2019, equation 2). L is
the loss that the model was trained with, fine-tuned or pretrained. bertfam prune removes heads; docs/pruning.md has a curve."""

_SHARES = tuple(share / 10 for share in range(11))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument("--model_dir", type=flags.folder, required=True, metavar="DIR", help="folder of a run")
    flags.add_step(parser)
    flags.add_average(parser)
    flags.add_module_import(parser)
    add_text(parser)
    group = parser.add_argument_group("output")
    group.add_argument(
        "--curve", action="store_true", help="score the validation split as heads are removed, a tenth at a time, and at random"
    )
    group.add_argument("--output", type=flags.path, metavar="FILE", help="HTML page to write, with plots")
    flags.add_json(parser)


def add_text(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of the text that importance is measured on."""
    group = parser.add_argument_group("text")
    group.add_argument(
        "--cache_dir",
        type=flags.folder,
        metavar="DIR",
        help="another token cache of the same vocabulary (default: that of the run)",
    )
    group.add_argument(
        "--batches", type=int, default=32, metavar="N", help="batches of the train split for importance (default: 32)"
    )


def main(args: argparse.Namespace) -> int:
    """Measure and print; return the exit status."""
    check_text(args)
    if args.output:
        flags.check_output_file(args, "output")
    flags.check_model_dir(args, huggingface=False)
    from bertfam.analysis.importance_report import head_values, notes, page, tables
    from bertfam.commands.importance_text import open_importance, open_scorer
    from bertfam.training.model_dir import open_model

    flags.prepare_model(args)
    model = open_model(args.model_dir, flags.step_of(args), average=args.average)
    importance = open_importance(args, model.run, model.vocabulary)
    score = open_scorer(args, model.run, model.vocabulary) if args.curve else None
    own = importance(model.params)
    report = {"model": str(args.model_dir), "step": model.step, "split": "train", "rows": own.rows, "heads": head_values(own)}
    if score is not None:
        report["curve"] = _curve(model, importance, score)
    write_report(args, report, page, tables, notes)
    return 0


def check_text(args: argparse.Namespace) -> None:
    """Raise UserError for a number of batches below 1."""
    if args.batches < 1:
        raise UserError(f"--batches={args.batches} is less than 1")


def _curve(model: TrainedModel, importance: TextImportance, score: Any) -> list[dict[str, Any]]:
    """Return the scores with each number of heads removed, in each order, as JSON values."""
    from bertfam.analysis.importance import masks_by_importance, random_masks
    from bertfam.models.pruning import HEADS, masked, sites

    boxed = importance.boxed
    total = sum(layers * heads for layers, heads in sites(boxed, HEADS).values())
    counts = [round(share * total) for share in _SHARES]
    masks = {
        "importance": masks_by_importance(importance, boxed, model.params, counts),
        "random": random_masks(boxed, counts),
    }
    points = []
    for order, own in masks.items():
        for count, removed in zip(counts, own, strict=True):
            scores = score(masked(boxed, model.params, removed, HEADS))
            points.append({"order": order, "removed": count, "share": count / total, "scores": scores})
    return points
