"""`bertfam analyze cloze`: knowledge of a pretrained model, measured by blanks, facts and pairs about bias."""

from __future__ import annotations

import argparse
from typing import Any

from bertfam.commands import flags
from bertfam.errors import UserError

SUMMARY = "measure what a pretrained model knows: blanks of eight kinds, facts, pairs about bias"
EXAMPLE = """\
  bertfam analyze cloze --model_dir=runs/quickstart/model
  bertfam analyze cloze --model_dir=runs/quickstart/model --kinds=syntax,arithmetic --show_items
  bertfam analyze cloze --model_dir=exported --input=mine.jsonl --facts=trex.jsonl --bias=crows_pairs.csv --cache_dir=cache
Of two grammatical alternatives, `bertfam evaluate --blimp` measures which is likelier. docs/cloze.md explains each column."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument(
        "--model_dir", type=flags.folder, required=True, metavar="DIR", help="folder of a run, or a Hugging Face folder"
    )
    flags.add_step(parser)
    group = parser.add_argument_group("what is measured (default: all kinds of items that come with bertfam)")
    group.add_argument("--kinds", metavar="NAME,...", help="kinds of these items, or all")
    group.add_argument(
        "--input",
        type=flags.files,
        action="append",
        default=[],
        metavar="GLOB",
        help='files of items of your own, JSON lines {"text": "... ___ ...", "answers": [...], "distractors": [...]}; repeatable',
    )
    group.add_argument("--facts", type=flags.path, metavar="FILE", help="JSON lines with relation, template, subject and object")
    group.add_argument("--bias", type=flags.path, metavar="FILE", help="pairs of sentences with the columns of CrowS-Pairs")
    group.add_argument("--coreference", type=flags.path, metavar="FILE", help="passages with a pronoun, in GAP's form")
    group.add_argument(
        "--limit", type=int, metavar="N", help="only the first N items of each kind, facts of each relation, pairs of each type"
    )
    parser.add_argument(
        "--cache_dir", type=flags.folder, metavar="DIR", help="token cache for the unigram baseline (default: the run's own)"
    )
    parser.add_argument("--batch_size", type=int, default=32, metavar="N", help="texts at a time (default: 32)")
    parser.add_argument("--show_items", action="store_true", help="print each item with the likeliest tokens too")
    flags.add_module_import(parser)
    flags.add_json(parser)


def main(args: argparse.Namespace) -> int:
    """Measure and print; return the exit status."""
    import json

    for flag in ("limit", "batch_size"):
        if (number := getattr(args, flag)) is not None and number < 1:
            raise UserError(f"--{flag}={number} is less than 1")
    kinds = _kinds(args)
    flags.check_model_dir(args)
    from bertfam.analysis.cloze.report import tables
    from bertfam.analysis.cloze.unigram import unigram_predictor
    from bertfam.api import load_networks
    from bertfam.evaluation.sentence_scores import token_predictor
    from bertfam.pages.visible import without_controls
    from bertfam.plurals import plural
    from bertfam.studies.study_plan import aligned

    flags.prepare_model(args)
    read = _read(args, kinds)
    networks = load_networks(args.model_dir, step=flags.step_of(args))
    predictor = token_predictor(networks)
    unigram = unigram_predictor(predictor, args.model_dir, args.cache_dir)
    if not args.json:
        print(f"{args.model_dir}: " + ", ".join(plural(len(items), name) for name, items in read.items() if items))
        print(f"each token {predictor.description}, {'beside' if unigram else 'without'} a unigram baseline", flush=True)
    report = _measure(read, networks, predictor, unigram, args.batch_size)
    report = {"model": str(args.model_dir), "hidden": predictor.description} | report
    if args.json:
        print(json.dumps(report, ensure_ascii=False))
        return 0
    for title, table in tables(report, show_items=args.show_items).items():
        print("\n".join(["", title, *(without_controls(row).rstrip() for row in aligned(table))]))
    return 0


def _kinds(args: argparse.Namespace) -> list[str]:
    """Return the kinds of --kinds; by default all, if no file is given."""
    from bertfam.analysis.cloze.items import KINDS
    from bertfam.suggest import did_you_mean

    if args.kinds is None:
        return [] if args.input or args.facts or args.bias or args.coreference else list(KINDS)
    if args.kinds == "all":
        return list(KINDS)
    names = args.kinds.split(",")
    for name in names:
        if name not in KINDS:
            hint = did_you_mean(name, KINDS, f"one of {', '.join(KINDS)}, or all")
            raise UserError(f"--kinds={args.kinds}: there is no kind {name!r}{hint}")
    return list(dict.fromkeys(names))


def _read(args: argparse.Namespace, kinds: list[str]) -> dict[str, list[Any]]:
    """Read the items, facts and pairs, before the model is."""
    from bertfam.analysis.cloze.bias_pairs import read_bias_pairs
    from bertfam.analysis.cloze.facts import read_facts
    from bertfam.analysis.cloze.items import gap_items, read_items, shipped_items
    from bertfam.data.corpora.input_files import find_files

    items = [item for kind in kinds for item in shipped_items(kind)]
    items += [item for path in find_files(tuple(args.input)) for item in read_items(path)]
    items += gap_items(args.coreference) if args.coreference else []
    counts: dict[str, int] = {}
    kept = []
    for item in items:
        counts[item.kind] = counts.get(item.kind, 0) + 1
        if args.limit is None or counts[item.kind] <= args.limit:
            kept.append(item)
    return {
        "item": kept,
        "fact": read_facts(args.facts, args.limit) if args.facts else [],
        "pair": read_bias_pairs(args.bias, args.limit) if args.bias else [],
    }


def _measure(read: dict[str, list[Any]], networks: Any, predictor: Any, unigram: Any, batch_size: int) -> dict[str, Any]:
    """Measure what was read, as JSON values."""
    from bertfam.analysis.cloze.bias_pairs import bias_report, score_bias_pairs
    from bertfam.analysis.cloze.blanks import score_blanks
    from bertfam.analysis.cloze.facts import fact_report, score_facts
    from bertfam.analysis.cloze.report import MODEL, UNIGRAM, blank_report
    from bertfam.errors import warn
    from bertfam.plurals import plural

    predictors = {MODEL: predictor} | ({UNIGRAM: unigram} if unigram else {})
    report: dict[str, Any] = {}
    if items := read["item"]:
        scores = {
            name: score_blanks(own, items, batch_size=batch_size, progress=f"blanks, {name}") for name, own in predictors.items()
        }
        report["blanks"] = blank_report(scores, len(items))
        if skipped := report["blanks"]["skipped"]:
            warn(
                [f"{skipped:,} of {plural(len(items), 'item')} left out, longer than the {predictor.max_length} tokens of a row"]
            )
    if facts := read["fact"]:
        report["facts"] = {
            name: fact_report(score_facts(own, facts, batch_size=batch_size, progress=f"facts, {name}"))
            for name, own in predictors.items()
        }
    if pairs := read["pair"]:
        report["bias"] = bias_report(pairs, score_bias_pairs(predictor, networks, pairs))
    return report
