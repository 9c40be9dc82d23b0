"""`bertfam evaluate`: scores of models on held-out text, minimal pairs, retrieval, a seqio task, or a benchmark."""

from __future__ import annotations

import argparse

from bertfam.arguments import repeated
from bertfam.commands import benchmark_flags, embed, flags
from bertfam.commands.finetune import parse_seeds
from bertfam.commands.retrieve import add_search
from bertfam.errors import UserError

SUMMARY = "measure models on held-out text, minimal pairs of sentences, retrieval, a seqio task, or the tasks of a benchmark"
EXAMPLE = """
  bertfam evaluate --model_dir=runs/quickstart/model --baselines
  bertfam evaluate --model_dir=runs/quickstart/model --blimp=BLiMP.zip --limit=100
  bertfam evaluate --model_dir=exported --retrieval=scifact
  bertfam evaluate --index=index --questions=dev-v2.0.json --baselines
  bertfam evaluate --model_dir=runs/t5/model --task=my_translations --module_import=my_tasks --split=test
  bertfam evaluate --suite=glue --data_dir=GLUE --model_dir=runs/a --model_dir=runs/b --random_init --seeds=0,1,2 --output=report
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument(
        "--model_dir",
        type=flags.folder,
        action="append",
        default=[],
        metavar="DIR",
        help="folder of a run or Hugging Face folder, here or at gs://; repeatable with --suite, for models side by side; with "
        "--index where its model lies now (default: where it lay)",
    )
    flags.add_step(parser, "checkpoint to measure")
    flags.add_average(parser)
    parser.add_argument(
        "--split",
        metavar="NAME",
        help="which split of the token cache, validation or train, or any of the task's with --task (default: validation), or of "
        "the judgements with --retrieval (default: test)",
    )
    parser.add_argument(
        "--cache_dir",
        type=flags.folder,
        metavar="DIR",
        help="another token cache of the same vocabulary (default: the run's own); a Hugging Face folder requires one",
    )
    flags.add_module_import(parser, "Python module to import first, which registers the task or the model's family; repeatable")
    parser.add_argument("--batches", type=int, metavar="N", help="at most so many batches (default: all)")
    parser.add_argument(
        "--baselines",
        action="store_true",
        help="also score predictors that see no context, on the same targets; with --index, BM25 and passages at random",
    )
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
    group.add_argument(
        "--within_word",
        action="store_true",
        help="hide with each token the later pieces of its word too, so that rare words of several pieces are not overrated",
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
    group.add_argument(
        "--batch_size", type=int, metavar="N", help="examples or texts at a time; of --suite: texts of an update (default: 32)"
    )
    _add_retrieval(parser)
    _add_suite(parser)
    flags.add_json(parser)


def _add_retrieval(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of retrieval."""
    group = parser.add_argument_group(
        "retrieval",
        "Of an encoder: queries and documents are embedded as by `bertfam embed`, and each query's documents are ranked by\n"
        "similarity: ndcg@10, mrr@10, recall@10 and recall@100. --model_dir may be a Hugging Face folder too.",
    )
    group.add_argument(
        "--retrieval",
        type=flags.path,
        metavar="FOLDER",
        help="folder of BEIR's form: corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv",
    )
    group.add_argument("--similarity", choices=("cosine", "dot"), help="similarity of vectors (default: cosine)")
    embed.add_pooling(group)
    group = parser.add_argument_group(
        "an index",
        "Of an index that bertfam index wrote: for how many questions a right passage is among the first 1, 5 and 20. recall\n"
        "counts the passage that a question was written for, answer all passages with an answer.",
    )
    group.add_argument("--index", type=flags.path, metavar="DIR", help="folder of the index")
    group.add_argument(
        "--questions",
        type=flags.files,
        action="append",
        default=[],
        metavar="GLOB",
        help='.json files of SQuAD\'s format, or others with {"question": TEXT, "answer": [TEXT, ...]} on each line; repeatable',
    )
    add_search(group)


def _add_suite(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of benchmarks."""
    group = parser.add_argument_group(
        "benchmarks",
        "Each model is fine-tuned on each task with each seed, as by bertfam finetune --task_name, and scored on the held-out\n"
        "texts (blimp: no training; the pairs are those of --blimp). Finished runs are kept: the same command resumes.\n"
        "--gin.NAME=value binds a setting of all runs.",
    )
    group.add_argument("--suite", metavar="NAME", help="glue, superglue, squad, ner, pos, blimp, or one that a module registers")
    benchmark_flags.add_data_dir(group)
    group.add_argument("--output", type=flags.path, metavar="DIR", help="folder of report.html, report.md and report.json")
    group.add_argument("--tasks", metavar="NAME,...", help="tasks of the suite, names or patterns such as 's*' (default: all)")
    group.add_argument("--seeds", type=parse_seeds, metavar="N,N,...", help="seeds of training (default: 0)")
    group.add_argument("--epochs", type=float, metavar="N", help="times that each text is used (default: 3)")
    group.add_argument("--learning_rate", type=float, metavar="RATE", help="highest learning rate (default: 2e-5)")
    group.add_argument(
        "--length", type=int, metavar="N", help="tokens of a row (default: 128; of questions 384), or of --retrieval's texts"
    )
    group.add_argument(
        "--random_init", action="store_true", help="also train from new parameters in the network of the first --model_dir"
    )
    group.add_argument("--keep_models", action="store_true", help="keep the fine-tuned models in DIR/runs")
    parser.set_defaults(gin_bindings=[])


def main(args: argparse.Namespace) -> int:
    """Evaluate and print; return the exit status."""
    _check_flags(args)
    if args.suite is not None:
        from bertfam.commands import evaluate_suite

        return evaluate_suite.main(args)
    args.model_dir = args.model_dir[0] if args.model_dir else None
    if args.model_dir:
        flags.check_model_dir(args)
    if args.index is not None:
        from bertfam.commands import evaluate_index

        return evaluate_index.main(args)
    from bertfam.commands import evaluate_run

    split = args.split or _DEFAULT_SPLIT
    if args.blimp is not None:
        return evaluate_run.minimal_pairs(args)
    if args.retrieval is not None:
        return evaluate_run.retrieval(args)
    if args.task is not None:
        return evaluate_run.task(args, split)
    return evaluate_run.held_out_text(args, split)


_DEFAULT_SPLIT = "validation"
# What is measured: the flags that it alone has, and its name in messages.
_OWN = {
    "text": (("split", "cache_dir", "batches", "baselines"), "held-out text"),
    "index": (("questions", "baselines", "approximate", "batch_size"), "--index"),
    "blimp": (("within_word",), "--blimp, which names the sentences"),
    "task": (("split", "max_new_tokens", "batch_size"), "--task"),
    "retrieval": (("split", "batch_size", "similarity", "pooling", "normalize", "length"), "--retrieval"),
    "suite": (
        (
            *("data_dir", "output", "tasks", "seeds", "epochs", "learning_rate", "batch_size", "length"),
            *("random_init", "keep_models", "gin_bindings"),
        ),
        "--suite",
    ),
}
# Flags of a suite whose models are trained.
_OF_TRAINING = ("seeds", "epochs", "learning_rate", "batch_size", "length", "random_init", "keep_models", "gin_bindings")
_NAMES = {"gin_bindings": "gin.NAME"}


def _check_flags(args: argparse.Namespace) -> None:
    """Raise UserError for flags that would change nothing, and for numbers below 1."""
    kinds = [name for name in ("suite", "blimp", "task", "retrieval", "index") if getattr(args, name) is not None]
    if len(kinds) > 1:
        raise UserError(f"--{kinds[0]} and --{kinds[1]} both say what to measure: give one of them")
    measured = kinds[0] if kinds else "text"
    if not args.model_dir and measured != "index":
        raise UserError("--model_dir is missing: name the folder of a model, or with --questions an index (--index=DIR)")
    if measured == "index" and not args.questions:
        raise UserError(f"--index={args.index} requires --questions=GLOB; give it too")
    if measured == "index" and (args.step is not None or args.average):
        raise UserError("--step and --average are of the model that an index was made with: give them to bertfam index")
    if len(args.model_dir) > 1 and measured != "suite":
        raise repeated(*(f"--model_dir={folder}" for folder in args.model_dir[:2]))
    own, called = _OWN[measured]
    for names, words in _OWN.values():
        for flag in names:
            if flag not in own and getattr(args, flag) not in (None, False, []):
                raise UserError(f"--{_NAMES.get(flag, flag)} is of {words}: it does not go with {called}")
    if measured == "suite":
        _check_suite(args)
    if measured in ("text", "retrieval", "index") and args.limit is not None:
        raise UserError("--limit is of minimal pairs and tasks: give --blimp=PATH or --task=NAME with it, or --batches=N")
    if measured == "text" and args.split not in (None, "validation", "train"):
        raise UserError(f"--split={args.split} is not one of the choices; one of validation, train")
    for flag in ("batches", "limit", "max_new_tokens", "batch_size", "length"):
        if getattr(args, flag) is not None and getattr(args, flag) < 1:
            raise UserError(f"--{flag}={getattr(args, flag)} is less than 1")


def _check_suite(args: argparse.Namespace) -> None:
    """Raise UserError for flags that a suite lacks, or does not have."""
    for name in ("data_dir", "output"):
        if not getattr(args, name):
            raise UserError(f"--suite={args.suite} requires --{name}=DIR; give it too")
    for name in ("step", "average", "json"):
        if getattr(args, name):
            raise UserError(f"--{name} does not go with --suite, which measures the newest checkpoints and writes a report.json")
    if args.suite != "blimp" and args.limit is not None:
        raise UserError("--limit is of minimal pairs: it does not go with a suite whose models are trained")
    given = next((name for name in _OF_TRAINING if getattr(args, name)), None)
    if args.suite == "blimp" and given:
        raise UserError(f"--{_NAMES.get(given, given)} is of training, and --suite=blimp trains nothing; leave it out")
