"""`bertfam analyze heads`: roles of attention heads, measured on texts, dependencies and pronouns."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from bertfam.commands import flags
from bertfam.commands.finetune import add_records, check_format, text_files
from bertfam.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bertfam.analysis.report_page import Tables
    from bertfam.analysis.subject import Subject

SUMMARY = "measure the roles of attention heads: positions, [SEP], rare tokens, dependencies, coreference"
EXAMPLE = """\
  bertfam analyze heads --model_dir=runs/quickstart/model --input=texts.tsv --text=sentence --random_init --output=heads.html
  bertfam analyze heads --model_dir=t5 --input=pairs.tsv --target=summary
  bertfam analyze heads --model_dir=minilm --dependencies=en_ewt-dev.conllu --coreference=gap-validation.tsv
Heads are named by layer and head from 1, such as 8-10. --dependencies is a file of Universal Dependencies (CoNLL-U), and
--coreference one of GAP's form; all files may be compressed. docs/analysis.md explains each column."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    add_model(parser)
    group = parser.add_argument_group("what is measured, one or more of the three")
    group.add_argument(
        "--input", type=flags.files, action="append", default=[], metavar="GLOB", help="files of texts; repeatable"
    )
    group.add_argument("--text", default="text", metavar="COLUMN", help="column of the text (default: text)")
    group.add_argument(
        "--target",
        metavar="COLUMN",
        help="column of the decoder's text, for the cross-attention of an encoder-decoder, which is measured too",
    )
    add_records(group)
    group.add_argument("--dependencies", type=flags.path, metavar="FILE", help="CoNLL-U file of sentences with syntactic heads")
    group.add_argument("--coreference", type=flags.path, metavar="FILE", help="file of pronouns and names, in GAP's form")
    group.add_argument("--limit", type=int, metavar="N", help="measure only the first N texts, sentences and passages of each")
    group = parser.add_argument_group("output")
    group.add_argument("--random_init", action="store_true", help="measure new parameters of the same network too")
    group.add_argument("--output", type=flags.path, metavar="FILE", help="HTML page to write, with plots")
    group.add_argument("--batch_size", type=int, default=16, metavar="N", help="texts at a time (default: 16)")
    flags.add_json(parser)


def add_model(parser: argparse.ArgumentParser) -> None:
    """Declare the flags about the model."""
    parser.add_argument(
        "--model_dir", type=flags.folder, required=True, metavar="DIR", help="folder of a run, or a Hugging Face folder"
    )
    flags.add_step(parser)
    add_network(parser)


def add_network(parser: argparse.ArgumentParser) -> None:
    """Declare the flags about the network and its rows."""
    parser.add_argument("--network", metavar="NAME", help="network of a folder that has several, such as generator")
    parser.add_argument(
        "--length", type=int, metavar="TOKENS", help="where texts are cut (default: the model's longest row, or 512 tokens)"
    )
    flags.add_module_import(parser)


def main(args: argparse.Namespace) -> int:
    """Measure and print; return the exit status."""
    _check(args)
    flags.check_model_dir(args)
    from bertfam.analysis.head_page import page
    from bertfam.analysis.head_report import RANDOM, TRAINED, notes, tables
    from bertfam.analysis.subject import open_subject
    from bertfam.models.network import DESCRIPTIONS

    flags.prepare_model(args)
    read = _read(args)
    subject = open_subject(args.model_dir, step=flags.step_of(args), network=args.network, length=args.length)
    if args.target and subject.whole is None:
        raise UserError(f"--target: the model is {DESCRIPTIONS[subject.kind]}, without cross-attention; leave the flag out")
    params = {TRAINED: subject.model.params} | ({RANDOM: subject.random_params()} if args.random_init else {})
    report = {"model": str(args.model_dir)} | _measure(subject, params, read, args.batch_size)
    if args.target:
        report["cross_attention"] = _measure_cross(args, subject)
    write_report(args, report, page, tables, notes)
    return 0


def write_report(
    args: argparse.Namespace,
    report: Mapping[str, Any],
    page: Callable[[Mapping[str, Any]], str],
    tables: Callable[[Mapping[str, Any]], Tables],
    notes: Callable[[Mapping[str, Any]], Mapping[str, str]],
) -> None:
    """Write the page of a report to --output, and print its numbers for --json, or else its tables with titles and notes."""
    import json

    from bertfam.analysis.report_page import note_of
    from bertfam.pages.visible import without_controls
    from bertfam.storage.files import new_file
    from bertfam.studies.study_plan import aligned

    if args.output:
        with new_file(args.output) as path:
            path.write_text(page(report), encoding="utf-8")
    if args.json:
        print(json.dumps(report, ensure_ascii=False))
        return
    about = notes(report)
    for title, table in tables(report).items():
        note = note_of(title, about)
        print("\n".join([title, *([note] if note else []), *(without_controls(row).rstrip() for row in aligned(table)), ""]))
    if args.output:
        print(f"wrote {args.output}")


def _check(args: argparse.Namespace) -> None:
    """Raise UserError for flags that do not go together, before anything is read."""
    if not (args.input or args.dependencies or args.coreference):
        raise UserError("nothing to measure: give --input=GLOB, --dependencies=FILE or --coreference=FILE")
    for flag in ("limit", "length", "batch_size"):
        if (number := getattr(args, flag)) is not None and number < 1:
            raise UserError(f"--{flag}={number} is less than 1")
    check_format(args, "texts")
    if args.target and not args.input:
        raise UserError(f"--target={args.target} is a column of --input: give the files too, or leave it out")
    if args.output:
        flags.check_output_file(args, "output")


def _read(args: argparse.Namespace) -> dict[str, list[Any]]:
    """Read the files, before the model is."""
    from itertools import islice

    from bertfam.analysis.coreference import read_passages
    from bertfam.analysis.dependencies import read_sentences

    read: dict[str, list[Any]] = {}
    if args.input:
        corpus = text_files(args, args.input)
        texts = (text for path in corpus.files("train") for _, (text,), _ in corpus.records(path))
        read["statistics"] = list(islice(texts, args.limit))
    if args.dependencies:
        read["dependencies"] = read_sentences(args.dependencies)[: args.limit]
    if args.coreference:
        read["coreference"] = read_passages(args.coreference)[: args.limit]
    return read


def _measure(subject: Subject, params: dict[str, Any], read: dict[str, list[Any]], batch_size: int) -> dict[str, Any]:
    from bertfam.analysis import head_report

    measures: dict[str, Any] = {
        "statistics": head_report.measure_statistics,
        "dependencies": head_report.measure_dependencies,
        "coreference": head_report.measure_coreference,
    }
    return {name: measures[name](subject, params, items, batch_size) for name, items in read.items()}


def _measure_cross(args: argparse.Namespace, subject: Subject) -> dict[str, Any]:
    """Measure the cross-attention on the texts of --input and their targets."""
    import dataclasses
    from itertools import islice

    from bertfam.analysis.cross_attention import measure_cross_attention
    from bertfam.analysis.head_report import RANDOM, TRAINED

    assert (whole := subject.whole) is not None
    corpus = dataclasses.replace(text_files(args, args.input), text_pair=args.target)
    records = (texts for path in corpus.files("train") for _, texts, _ in corpus.records(path))
    pairs = [(text, target) for text, target in islice(records, args.limit)]
    decoder = dataclasses.replace(subject, model=whole, whole=None)
    params = {TRAINED: whole.params} | ({RANDOM: decoder.random_params()} if args.random_init else {})
    return measure_cross_attention(subject, params, pairs, args.batch_size)
