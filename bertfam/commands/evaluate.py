"""`bertfam evaluate`: a trained model's scores on held-out text, on minimal pairs of sentences, or on a seqio task."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, cast

from bertfam.commands import flags
from bertfam.storage.paths import to_path

if TYPE_CHECKING:
    from bertfam.data.vocabularies import Vocabulary
    from bertfam.training.run import Run

SUMMARY = "measure a trained model on held-out text, on minimal pairs of sentences, or on a seqio task"
EXAMPLE = """
  bertfam evaluate --model_dir=runs/quickstart/model --baselines
  bertfam evaluate --model_dir=runs/quickstart/model --blimp=BLiMP.zip --limit=100
  bertfam evaluate --model_dir=runs/t5/model --task=my_translations --module_import=my_tasks --split=test
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    flags.add_model_dir(parser)
    parser.add_argument("--step", type=int, metavar="N", help="checkpoint to measure (default: the newest)")
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
        help="another token cache of the same vocabulary (default: the run's own)",
    )
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
        "--module_import", action="append", default=[], metavar="MODULE", help="module that registers the task; repeatable"
    )
    group.add_argument(
        "--max_new_tokens", type=int, metavar="N", help="where an answer is cut (default: as many as the longest targets have)"
    )
    group.add_argument("--batch_size", type=int, metavar="N", help="examples at a time (default: 32)")
    flags.add_json(parser)


def main(args: argparse.Namespace) -> int:
    """Evaluate and print; return the exit status."""
    _check_flags(args)
    if args.blimp is not None:
        return _minimal_pairs(args)
    if args.task is not None:
        return _task(args)

    import dataclasses
    import json

    from bertfam.data import vocabularies
    from bertfam.data.token_cache.cache import TokenCache
    from bertfam.errors import UserError
    from bertfam.training.model_dir import open_model, read_run

    # -- What to evaluate on
    run = read_run(args.model_dir)
    cache = TokenCache(args.cache_dir or run.data.cache_directory(args.model_dir))
    opened = open_model(args.model_dir, args.step, average=args.average)
    if vocabularies.load(cache.vocabulary_directory).fingerprint != opened.vocabulary.fingerprint:
        raise UserError(f"{cache.directory} was built with another vocabulary than {args.model_dir}; build one with its vocab/")

    # -- How: on all devices here, whatever mesh the run was trained on
    import jax

    from bertfam.errors import warn
    from bertfam.evaluation.perplexity import lacks_words, perplexities
    from bertfam.sharding.mesh import MeshShape
    from bertfam.training.trainer import Trainer

    mesh = MeshShape().build()
    last = run.stages[-1]
    # Rows fill the devices; they are the same in batches of any size.
    stage = dataclasses.replace(last, batch_size=-(-last.batch_size // mesh.size) * mesh.size)
    sizes = (cache, opened.vocabulary.token_ids, stage.length, stage.batch_size)
    held_out = run.data.held_out(*sizes, split=args.split, at_most=args.batches)
    if held_out is None:
        raise UserError(
            f"the {args.split} split of {cache.directory} has too few documents; build a cache of other text by `bertfam cache "
            f"--vocab={args.model_dir}/vocab` and give it with --cache_dir"
        )
    # A backend that the run names may not be for these devices.
    execution = dataclasses.replace(opened.run.objective.execution, attention="auto")
    objective: Any = dataclasses.replace(cast(Any, opened.run.objective), execution=execution)
    trainer = Trainer(dataclasses.replace(opened.run, objective=objective, stages=(stage,), microbatches=1), mesh)
    missing = sorted(trainer.shardings.params.keys() - opened.params.keys())
    if missing:
        raise UserError(f"{args.model_dir} was imported without {', '.join(missing)}; train them with `bertfam pretrain` first")
    aux = _aux(opened.run, opened.vocabulary)
    params = jax.device_put(opened.params, trainer.shardings.params)
    scores = trainer.scores(params, held_out, 0, aux=aux and trainer.placed_aux(aux))
    assert scores is not None  # nobody cuts it short
    if opened.run.objective.teachers and not aux:
        del scores["loss"]  # of which the teacher's terms are a part
    scores |= perplexities(scores, run.data, cache, args.split)
    if lacks_words(run.data, cache, args.split):
        warn([f"{cache.directory} has no counts of words and bytes, by which perplexity is told too: build it again"])

    # -- Beside what
    if args.baselines:
        from bertfam.evaluation.baselines import baselines, training_counts

        counts = training_counts(run.data, cache, *sizes[1:])
        scores |= baselines(held_out.source, held_out.steps, held_out.batch_size, counts)

    if args.json:
        print(json.dumps({"step": opened.step, "split": args.split, **scores}))
        return 0
    print(f"step {opened.step:,} of {args.model_dir} on the {args.split} split of {cache.directory}")
    print(f"{held_out.steps:,} batches of {held_out.batch_size:,} rows of {stage.length} tokens")
    for name, value in scores.items():
        print(f"  {name:<24} {value:.4f}" if value < 1e6 else f"  {name:<24} {value:.4g}")
    return 0


# What is measured -> the flags that are of it alone, and what to call it.
_OWN = {
    "text": (("split", "cache_dir", "batches", "baselines"), "held-out text"),
    "blimp": ((), "--blimp, which names the sentences"),
    "task": (("split", "module_import", "max_new_tokens", "batch_size"), "--task"),
}


def _check_flags(args: argparse.Namespace) -> None:
    """Refuse flags that would change nothing, and numbers below 1."""
    from bertfam.errors import UserError

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
    args.split = args.split or "validation"
    if measured == "text" and args.split not in ("validation", "train"):
        raise UserError(f"--split={args.split} is no choice; one of validation, train")
    for flag in ("batches", "limit", "max_new_tokens", "batch_size"):
        if getattr(args, flag) is not None and getattr(args, flag) < 1:
            raise UserError(f"--{flag}={getattr(args, flag)} is less than 1")


def _task(args: argparse.Namespace) -> int:
    """Measure and print; return the exit status."""
    import json

    import jax

    from bertfam.api import LanguageModel, load_networks
    from bertfam.data.seqio_tasks.corpus import fill_registry
    from bertfam.errors import UserError
    from bertfam.sharding.mesh import MeshShape
    from bertfam.training.checkpoints import selection

    step = args.step
    if (to_path(args.model_dir) / "config.gin").is_file():
        step = selection.find(args.model_dir, step, ("average" if args.average else "params",))
    found = load_networks(args.model_dir, step=step, average=args.average).values()
    model = next((network for network in found if isinstance(network, LanguageModel)), None)
    if model is None:
        raise UserError(f"{args.model_dir} holds an encoder, which writes no text: --task is for models that do")
    fill_registry(args.module_import)

    from bertfam.evaluation.seqio_tasks import evaluate, format_results

    results = evaluate(
        model,
        args.task,
        args.split,
        examples=args.limit,
        max_new_tokens=args.max_new_tokens,
        batch_size=args.batch_size or 32,
        mesh=MeshShape().build() if len(jax.devices()) > 1 else None,
    )
    if args.json:
        print(json.dumps({"step": step, "split": args.split, "tasks": results}))
    else:
        at = "" if step is None else f"step {step:,} of "
        print(f"{at}{args.model_dir} on the {args.split} split of --task={args.task}", *format_results(results), sep="\n")
    return 0


def _minimal_pairs(args: argparse.Namespace) -> int:
    """Compare and print; return the exit status."""
    import json
    from pathlib import Path

    from bertfam.evaluation.minimal_pairs import CHANCE, PairCounts, compare, read_pairs

    files = read_pairs(Path(args.blimp), args.limit)

    from bertfam.api import load_networks
    from bertfam.evaluation.sentence_scores import scorer
    from bertfam.training.checkpoints import selection

    step = args.step
    if (to_path(args.model_dir) / "config.gin").is_file():
        step = selection.find(args.model_dir, step, ("average" if args.average else "params",))
    scores = scorer(load_networks(args.model_dir, step=step, average=args.average))
    if not args.json:
        at = "" if step is None else f"step {step:,} of "
        print(f"{at}{args.model_dir} on the minimal pairs of {args.blimp}, by {scores.description}")
    width = max(24, *map(len, files))
    results = {}
    for name, pairs in files.items():
        results[name] = compare(pairs, scores.score)
        if not args.json:
            print(f"  {name:<{width}} {results[name].accuracy:.4f}", flush=True)
    whole = sum(results.values(), PairCounts())
    if args.json:
        numbers = {name: found.numbers() for name, found in results.items()}
        print(json.dumps({"step": step, "score": scores.description, **whole.numbers(), "chance": CHANCE, "files": numbers}))
    else:
        print(f"  {'all':<{width}} {whole.accuracy:.4f}  of {whole.pairs:,} pairs, {whole.ties:,} ties; chance is {CHANCE}")
    return 0


def _aux(run: Run, vocabulary: Vocabulary) -> Any:
    """What the objective reads; {} where that is not here any more, for a model is measured without its teacher, too."""
    from bertfam.errors import UserError, warn
    from bertfam.training.teachers import read_teachers

    try:
        return read_teachers(run, vocabulary)
    except UserError as error:
        warn([f"measured without the teacher, the model's own scores alone: {error}"])
        return {}
