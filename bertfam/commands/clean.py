"""`bertfam clean`: cleaning of web text by C4's rules."""

from __future__ import annotations

import argparse
import gzip
import io
import json
import os
import shlex
import sys
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from bertfam.commands import flags
from bertfam.data.corpora.c4.rules import RULES, PageRules, check_rules
from bertfam.data.corpora.c4.tally import Tally
from bertfam.data.corpora.sentences import LANGUAGES, UNDETERMINED
from bertfam.errors import UserError, is_terminal, warn
from bertfam.plurals import plural
from bertfam.storage.files import new_file, write_text

if TYPE_CHECKING:
    from bertfam.data.corpora.c4.pages import PageBatch
    from bertfam.data.corpora.text_files import TextFiles

SUMMARY = "clean web text as C4 was, with a report of what each rule removed"
EXAMPLE = """\
  bertfam clean --input='pages/*.jsonl.zst' --input_format=jsonl --language=en --output=cleaned.jsonl.gz --report=report.json
  bertfam vocab --input=cleaned.jsonl.gz --input_format=jsonl --kind=unigram --output=vocab
The pages are the documents of the files, as --input_format defines them. What remains of each page is written in order, one JSON
object with "text" per line. The same text gives the same bytes, for any number of processes. The output is complete or absent."""

_ENDINGS = (".jsonl", ".jsonl.gz", ".jsonl.zst")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    group = flags.add_files(parser)
    group.add_argument(
        "--language",
        metavar="CODE",
        help="keep only pages in this language, such as en, de or zh (needs py3langid, of 'bertfam[clean]'), and split them into "
        "sentences by its rules (default: pages in all languages, with the rules of English)",
    )
    rules = parser.add_argument_group(
        "rules",
        f"All of them are applied by default, in this order: {', '.join(RULES)}\n(Raffel et al. 2020, section 2.2).",
    )
    rules.add_argument("--rules", metavar="NAME,NAME", help="apply only these rules")
    rules.add_argument("--no_rules", metavar="NAME,NAME", help="do not apply these rules")
    rules.add_argument(
        "--bad_words",
        type=flags.path,
        metavar="FILE",
        help="one word or phrase per line; pages with one are removed (whole words; in scripts without spaces anywhere)",
    )
    for name, default, kind, what in (
        ("min_words", PageRules.min_words, int, "least number of words in a line"),
        ("min_sentences", PageRules.min_sentences, int, "least number of sentences in a page"),
        ("max_word_length", PageRules.max_word, int, "greatest number of characters in a word"),
        ("min_probability", 0.99, float, "least probability that a page is in --language"),
    ):
        rules.add_argument(f"--{name}", type=kind, default=default, metavar="N", help=f"{what} (%(default)s)")
    parser.add_argument(
        "--output", type=flags.path, required=True, metavar="FILE", help=f"file to write; its name ends in {', '.join(_ENDINGS)}"
    )
    parser.add_argument("--report", type=flags.path, metavar="FILE", help="also write the report to this file, as JSON")
    flags.add_workers(parser, "apply the rules to pages")
    flags.add_json(parser)


def main(args: argparse.Namespace) -> int:
    """Clean the text and report on each rule; return the exit status."""
    from bertfam.data.corpora.c4.pages import clean
    from bertfam.data.corpora.text_files import TextFiles

    output, report = Path(args.output), Path(args.report) if args.report else None
    _check_outputs(args)
    flags.check_workers(args)
    rules = _rules(args)
    corpus = TextFiles(
        train=tuple(args.input),
        input_format=args.input_format or "sentences",
        text_field=args.text_field or "text",
        encoding=args.encoding or "utf-8",
        validation_fraction=0.0,
    )

    tally = Tally(rules.counted)
    with new_file(output) as partial, _opened(partial, output.name) as file, closing(_batches(args, corpus, rules)) as batches:
        for lines in clean(batches, rules, tally):
            file.write(json.dumps({"text": "\n".join(lines)}, ensure_ascii=False) + "\n")
    results: dict[str, Any] = {
        "input": [path.name for path in corpus.files("train")],
        "output": output.name,
        "settings": _settings(args, rules),
        **tally.as_json(),
    }
    if report:
        write_text(report, json.dumps(results, ensure_ascii=False, indent=1) + "\n")
    if not tally.kept.pages:
        warn([f"{output} is empty: no page of {tally.seen.pages:,} is left; see what the rules removed, and --input_format"])
    if args.json:
        print(json.dumps(results, ensure_ascii=False))
    else:
        print(f"{tally.table()}\n{output}: {tally.kept.pages:,} of {plural(tally.seen.pages, 'page')}")
    return 0


def _batches(args: argparse.Namespace, corpus: TextFiles, rules: PageRules) -> Generator[PageBatch]:
    """Yield the pages after the rules for single pages, with a progress bar on a terminal."""
    from tqdm import tqdm

    from bertfam.data.corpora.c4.pages import page_batches, page_batches_with_beam
    from bertfam.subprocesses import cores

    if args.beam is None:
        batches = page_batches(corpus, rules, cores() if args.processes is None else args.processes)
    else:
        settings = {"corpus": corpus.fingerprint(), **_settings(args, rules), "bad_words": rules.bad_words}
        batches = page_batches_with_beam(corpus, rules, Path(args.output), settings, shlex.split(args.beam))
    with closing(batches), tqdm(desc="cleaning", unit=" pages", disable=not is_terminal(sys.stderr), leave=False) as progress:
        for batch in batches:
            progress.update(batch.tally.seen.pages)
            yield batch


def _rules(args: argparse.Namespace) -> PageRules:
    """Return the rules that the flags select; raise UserError for an invalid flag or one without effect."""
    if args.rules and args.no_rules:
        raise UserError("--rules names those that are applied and --no_rules those that are not: give one of them")
    named = [name.strip() for name in (args.rules or args.no_rules or "").split(",") if name.strip()]
    check_rules(named)
    rules = frozenset(RULES) - set(named) if args.no_rules else frozenset(named or RULES)
    for flag, rule in (("bad_words", "bad_word"), ("language", "language")):
        if getattr(args, flag) and rule not in rules and (flag == "bad_words" or args.rules):
            raise UserError(f"--{flag} is for the rule {rule}, which is left out: leave the flag out too, or apply the rule")
        if args.rules and rule in named and not getattr(args, flag):
            raise UserError(f"--rules names {rule}, which does nothing by itself: give --{flag} with it")
    for flag in ("min_words", "min_sentences", "max_word_length"):
        if getattr(args, flag) < 1:
            raise UserError(f"--{flag}={getattr(args, flag)} must be at least 1; --no_rules leaves a rule out")
    if not 0 < args.min_probability <= 1:
        raise UserError(f"--min_probability={args.min_probability} must be above 0 and at most 1")
    is_wanted = None
    if args.language and "language" in rules:
        from bertfam.data.corpora.c4.language import language_filter

        is_wanted = language_filter(args.language, args.min_probability)
    else:
        rules -= {"language"}
    language = args.language or "en"
    return PageRules(
        rules if args.bad_words else rules - {"bad_word"},
        _bad_words(args.bad_words) if args.bad_words else (),
        args.min_words,
        args.min_sentences,
        args.max_word_length,
        language if language in LANGUAGES else UNDETERMINED,
        is_wanted,
    )


def _bad_words(name: str) -> tuple[str, ...]:
    from bertfam.data.corpora.text_lines import read_lines

    words = dict.fromkeys(line.lower() for line in read_lines(name) if line)
    if not words:
        raise UserError(f"--bad_words={name} has no word in it: write one a line")
    return tuple(words)


def _settings(args: argparse.Namespace, rules: PageRules) -> dict[str, Any]:
    """Return the settings that, with the text, determine the output."""
    settings = {
        "rules": [rule for rule in RULES if rule in rules.rules],
        "min_words": rules.min_words,
        "min_sentences": rules.min_sentences,
        "max_word_length": rules.max_word,
        "sentences": rules.language,
    }
    if rules.bad_words:
        settings["bad_words"] = len(rules.bad_words)
    if rules.is_wanted:
        from importlib.metadata import version

        settings |= {"language": args.language, "min_probability": args.min_probability, "py3langid": version("py3langid")}
    return settings


def _check_outputs(args: argparse.Namespace) -> None:
    if not args.output.endswith(_ENDINGS):
        raise UserError(f"--output={args.output} must end in {', '.join(_ENDINGS)}, which says whether it is compressed")
    flags.check_output_file(args, "output")
    if args.report:
        if os.path.abspath(args.report) == os.path.abspath(args.output):
            raise UserError(f"--report={args.report} is --output too: name another file")
        flags.check_output_file(args, "report")


@contextmanager
def _opened(path: Path, name: str) -> Iterator[IO[str]]:
    """Open a text file, compressed by its final name; the bytes contain no time and no name."""
    with open(path, "wb") as raw:
        if name.endswith(".gz"):
            packed: Any = gzip.GzipFile("", "wb", fileobj=raw, mtime=0)
        elif name.endswith(".zst"):
            import zstandard

            packed = zstandard.ZstdCompressor(level=10).stream_writer(raw, closefd=False)
        else:
            packed = raw
        with packed, io.TextIOWrapper(packed, "utf-8", newline="\n") as text:
            yield text
