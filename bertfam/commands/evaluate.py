"""`bertfam evaluate`: a trained model's scores on held-out text, on minimal pairs of sentences, or on a seqio task."""

from __future__ import annotations

import argparse

from bertfam.commands import flags
from bertfam.errors import UserError

SUMMARY = "measure a trained model on held-out text, on minimal pairs of sentences, or on a seqio task"
EXAMPLE = """
  bertfam evaluate --model_dir=runs/quickstart/model --baselines
  bertfam evaluate --model_dir=runs/quickstart/model --blimp=BLiMP.zip --limit=100
  bertfam evaluate --model_dir=runs/t5/model --task=my_translations --module_import=my_tasks --split=test
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    flags.add_model_dir(parser)
    flags.add_step(parser, "checkpoint to measure")
    flags.add_average(parser)
    parser.add_argument(
        "--split",
        metavar="NAME",
        help="which split of the token cache, validation or train, or any of the task's with --task (default: validation)",
    )
    parser.add_argument(
        "--cache_dir",
        type=flags.folder,
        metavar="DIR",
        help="another token cache of the same vocabulary (default: the run's own); a Hugging Face folder requires one",
    )
    flags.add_module_import(parser, "Python module to import first, which registers the task or the model's family; repeatable")
    parser.add_argument("--batches", type=int, metavar="N", help="at most so many batches (default: all)")
    parser.add_argument("--baselines", action="store_true", help="also score predictors that see no context, on the same targets")
    group = parser.add_argument_group(
        "minimal pairs",
        "Of two sentences that differ in one thing the grammatical one should be likelier: for a decoder by its\n"
        "log-probability after an end-of-text token, for a masked model and for T5 by the sum over its tokens of the\n"
        "log-probability of each when it is hidden. --model_dir may be a Hugging Face folder too. Chance is 0.5, and a tie\n"
        "counts half.",
    )
    group.add_argument(
        "--blimp",
        type=flags.path,
        metavar="PATH",
        help="BLiMP's zip file, or a folder of .jsonl files with sentence_good and sentence_bad in each line",
    )
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N pairs of each file, or examples of each task")
    group = parser.add_argument_group(
        "tasks",
        "Of a registered seqio task with inputs, targets and metric functions, or of each task of a mixture: the model answers\n"
        "the inputs greedily, or scores the targets by log p(targets | inputs), as the metric functions need. The vocabulary is\n"
        "the model's, whatever the task was registered with. --model_dir may be a Hugging Face folder too.",
    )
    group.add_argument("--task", metavar="NAME", help="registered task or mixture; this command then imports seqio")
    group.add_argument(
        "--max_new_tokens", type=int, metavar="N", help="where an answer is cut (default: as many as the longest targets have)"
    )
    group.add_argument("--batch_size", type=int, metavar="N", help="examples at a time (default: 32)")
    flags.add_json(parser)


def main(args: argparse.Namespace) -> int:
    """Evaluate and print; return the exit status."""
    _check_flags(args)
    flags.check_model_dir(args)
    from bertfam.commands import evaluate_run

    split = args.split or _DEFAULT_SPLIT
    if args.blimp is not None:
        return evaluate_run.minimal_pairs(args)
    if args.task is not None:
        return evaluate_run.task(args, split)
    return evaluate_run.held_out_text(args, split)


_DEFAULT_SPLIT = "validation"
# What is measured: the flags that it alone has, and its name in messages.
_OWN = {
    "text": (("split", "cache_dir", "batches", "baselines"), "held-out text"),
    "blimp": ((), "--blimp, which names the sentences"),
    "task": (("split", "max_new_tokens", "batch_size"), "--task"),
}


def _check_flags(args: argparse.Namespace) -> None:
    """Raise UserError for flags that would change nothing, and for numbers below 1."""
    if args.blimp is not None and args.task is not None:
        raise UserError("--blimp and --task both say what to measure: give one of them")
    measured = "blimp" if args.blimp is not None else "task" if args.task is not None else "text"
    own, called = _OWN[measured]
    for names, words in _OWN.values():
        for flag in names:
            if flag not in own and getattr(args, flag) not in (None, False, []):
                raise UserError(f"--{flag} is of {words}: it does not go with {called}")
    if measured == "text" and args.limit is not None:
        raise UserError("--limit is of minimal pairs and tasks: give --blimp=PATH or --task=NAME with it, or --batches=N")
    if measured == "text" and args.split not in (None, "validation", "train"):
        raise UserError(f"--split={args.split} is not one of the choices; one of validation, train")
    for flag in ("batches", "limit", "max_new_tokens", "batch_size"):
        if getattr(args, flag) is not None and getattr(args, flag) < 1:
            raise UserError(f"--{flag}={getattr(args, flag)} is less than 1")
