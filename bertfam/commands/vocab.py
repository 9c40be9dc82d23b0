"""`bertfam vocab`: training of a vocabulary on text."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shlex
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertfam.commands import flags
from bertfam.data.vocabularies.layouts import DEFAULT_LAYOUTS, LAYOUTS
from bertfam.errors import UserError, is_terminal
from bertfam.plurals import plural
from bertfam.storage.buckets import is_remote
from bertfam.storage.files import check_writable, is_used, new_folder, recover, replaced_folder
from bertfam.storage.paths import to_path

if TYPE_CHECKING:
    from collections import Counter

    from bertfam.data.corpora.corpus import Corpus
    from bertfam.data.vocabularies import Vocabulary
    from bertfam.data.vocabularies.corpus_counts import CorpusCounts
    from bertfam.data.vocabularies.layouts import Layout
    from bertfam.data.vocabularies.learners import Learner

SUMMARY = "train a vocabulary on text: WordPiece, whole words, unigram, BPE or byte-level BPE"

EXAMPLE = "  bertfam vocab --task=python_docs --size=8192 --output=vocab"

_MOST_PIECES = 10_000_000
# kind of vocabulary -> its own flags
_OPTIONS = {
    "wordpiece": ("cased", "strip_accents", "split_ideographs", "min_frequency"),
    "words": ("cased", "strip_accents", "split_ideographs", "min_frequency"),
    "unigram": ("normalizer", "keep_spaces", "byte_fallback", "character_coverage"),
    "bpe": ("normalizer", "keep_spaces", "byte_fallback", "character_coverage"),
    "byte_bpe": ("min_frequency",),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    flags.add_config(parser)
    flags.add_source(parser)
    pieces = parser.add_argument_group("pieces")
    pieces.add_argument(
        "--kind", choices=tuple(_OPTIONS), default="wordpiece",
        help="wordpiece: BERT's; words: the most frequent words, for word2vec; unigram, bpe: SentencePiece's; byte_bpe: GPT-2's "
        "and RoBERTa's, without unknown tokens (%(default)s)",
    )  # fmt: skip
    pieces.add_argument(
        "--layout", choices=tuple(LAYOUTS),
        help="control tokens and their ids, as in the family of this name (by default "
        + ", ".join(f"{layout} for {kind}" for kind, layout in DEFAULT_LAYOUTS.items()) + ")",
    )  # fmt: skip
    pieces.add_argument(
        "--sentinels", type=int, metavar="N",
        help="number of sentinels <extra_id_N> after the pieces, for T5's noise (by default 100 with --layout=t5, else none)",
    )  # fmt: skip
    pieces.add_argument(
        "--size", type=int, default=8192, metavar="N", help="pieces, control tokens and sentinels included (%(default)s)"
    )
    pieces.add_argument(
        "--min_frequency", type=int, metavar="N",
        help="wordpiece, byte_bpe: least number of occurrences of a pair of pieces to merge it; words: of a word (2)",
    )  # fmt: skip
    wordpiece = parser.add_argument_group("of --kind=wordpiece and --kind=words")
    wordpiece.add_argument(
        "--cased", action="store_true", default=None, help="keep capitals (and accents, unless --strip_accents=true)"
    )
    wordpiece.add_argument(
        "--strip_accents", choices=("true", "false"),
        help="drop accents, voicing marks and vowel signs; by default when not --cased, as BERT does; "
        "false for languages that need them (Vietnamese, Japanese, Hindi)",
    )  # fmt: skip
    wordpiece.add_argument(
        "--split_ideographs", choices=("true", "false"), help="treat each Chinese character as a word, as BERT does (true)"
    )
    sentencepiece = parser.add_argument_group(
        "of --kind=unigram and --kind=bpe",
        "By default text is normalised and runs of white space become one space, as in T5. With\n"
        "--normalizer=identity --keep_spaces --byte_fallback decoding restores every text exactly, as it does for byte_bpe.",
    )
    sentencepiece.add_argument(
        "--normalizer", choices=("nmt_nfkc", "nmt_nfkc_cf", "nfkc", "nfkc_cf", "identity"),
        help="Unicode normalisation; those in _cf also fold case (nmt_nfkc)",
    )  # fmt: skip
    sentencepiece.add_argument(
        "--keep_spaces", action="store_true", default=None, help="keep runs of spaces, and spaces at the ends"
    )
    sentencepiece.add_argument(
        "--byte_fallback", action="store_true", default=None, help="encode characters without a piece as bytes"
    )
    sentencepiece.add_argument(
        "--character_coverage", type=float, metavar="SHARE", help="share of the characters of the text that get a piece (0.9995)"
    )
    parser.add_argument(
        "--output", type=flags.folder, required=True, metavar="DIR", help="folder to write, which must be empty or new"
    )
    parser.add_argument(
        "--sample",
        type=float,
        default=1.0,
        metavar="SHARE",
        help="learn from this share of the documents, drawn by their text, the same ones anywhere (%(default)s)",
    )
    flags.add_beam(parser, "count words")
    parser.add_argument("--overwrite", action="store_true", help="replace the vocabulary in --output")
    flags.add_json(parser)


def main(args: argparse.Namespace) -> int:
    """Train a vocabulary; return the exit status."""
    # Mistakes are reported before anything heavy is imported or read.
    layout = LAYOUTS[args.layout or DEFAULT_LAYOUTS[args.kind]]
    if args.sentinels is not None:
        layout = dataclasses.replace(layout, sentinels=args.sentinels)
    options = _options(args, layout)
    output = to_path(args.output)
    _check_output(output, args)
    data = flags.load_config(args, reads_text=True).build("TextData")
    if not data.corpora:
        raise UserError(f"no text: give --input=GLOB for text files, or --task={flags.EMBEDDED} for text that comes with Python")
    if output.is_dir() and not is_remote(output):
        _check_kept(output, data.corpora)

    from bertfam.data.rows.mixture import Mixture
    from bertfam.data.vocabularies.counting import weighted
    from bertfam.data.vocabularies.learners import make_learner

    learner = make_learner(args.kind, size=args.size, layout=layout, **options)
    counts = _count(args, {name: corpus.without_held_out() for name, corpus in data.corpora.items()}, learner, options)
    sizes = [count.characters for count in counts.values()]
    # Mixture.limit counts rows and the sizes here are characters, so it does not apply.
    mixture = dataclasses.replace(data.corpus, limit=None) if isinstance(data.corpus, Mixture) and all(sizes) else None
    # The words of each corpus of a mixture count in proportion to its share of the rows.
    words = weighted([count.words for count in counts.values()], mixture.factors(sizes) if mixture else [1.0] * len(sizes))
    vocabulary = _learn(learner, words)
    with (replaced_folder if output.is_dir() else new_folder)(output) as folder:
        vocabulary.save(folder)
    summary: dict[str, Any] = {
        "output": str(output),
        "kind": args.kind,
        "size": vocabulary.size,
        "documents": sum(count.documents for count in counts.values()),
        "characters": sum(sizes),
        **_statistics(vocabulary, words),
    }
    if mixture:
        summary["corpora"] = {
            name: {
                "documents": count.documents,
                "characters": count.characters,
                "share": share,
                **_statistics(vocabulary, count.words),
            }
            for (name, count), share in zip(counts.items(), mixture.shares(sizes), strict=True)
        }
    print(json.dumps(summary) if args.json else _format_summary(summary))
    return 0


def _count(
    args: argparse.Namespace, corpora: dict[str, Corpus], learner: Learner, options: dict[str, Any]
) -> dict[str, CorpusCounts]:
    """Count the words of each corpus; raise UserError if a sample has no documents."""
    from bertfam.data.parallel import beam
    from bertfam.data.vocabularies.corpus_counts import CorpusCounter

    counters = {name: CorpusCounter(corpus, learner, args.sample) for name, corpus in corpora.items()}
    if args.beam is None:
        counts = {name: counter.count(_shown(counter.corpus.texts("train"))) for name, counter in counters.items()}
    else:
        beam.import_beam()
        fingerprint = {name: corpus.fingerprint() for name, corpus in corpora.items()}
        fingerprint |= {"kind": args.kind, "sample": args.sample, **options}
        with beam.parts_folder(to_path(args.output), fingerprint) as folder:
            pipeline = shlex.split(args.beam)
            counts = {name: counter.count_with_beam(folder / name, pipeline) for name, counter in counters.items()}
    empty = next((name for name, count in counts.items() if not count.documents), None)
    if empty and args.sample < 1:
        raise UserError(f"--sample={args.sample} draws no document of the corpus {empty}: raise it")
    return counts


def _shown(documents: Iterator[list[str]]) -> Iterator[list[str]]:
    """Return the documents, with a progress bar on a terminal."""
    from tqdm import tqdm

    return tqdm(documents, "reading", unit=" documents", disable=not is_terminal(sys.stderr), leave=False)


def _learn(learner: Learner, words: Counter[str]) -> Vocabulary:
    """Learn pieces from word counts; report the progress and the learner's warnings."""
    start = time.monotonic()
    _report(f"learning pieces from {plural(words.total(), 'word')}, {len(words):,} of them different")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        vocabulary = learner.learn(words)
    for warning in caught:
        _report(f"warning: {warning.message}")
    _report(f"learnt {plural(vocabulary.size, 'piece')} in {time.monotonic() - start:.1f} s")
    return vocabulary


def _format_summary(summary: dict[str, Any]) -> str:
    """Return the summary as text, with one line for each corpus of a mixture."""
    lines = [
        f"{summary['output']}: {plural(summary['size'], 'piece')} from {plural(summary['documents'], 'document')}, "
        f"{plural(summary['characters'], 'character')}, {plural(summary['words'], 'word')}; "
        f"{summary['pieces_per_word']:.3f} pieces per word, {summary['unk_share']:.3%} unknown"
    ]
    lines += [
        f"  {name}: {corpus['share']:.2%} of the mixture, {corpus['characters'] / summary['characters']:.2%} of the characters; "
        f"{corpus['pieces_per_word']:.3f} pieces per word, {corpus['unk_share']:.3%} unknown"
        for name, corpus in summary.get("corpora", {}).items()
    ]
    return "\n".join(lines)


def _statistics(vocabulary: Vocabulary, words: Counter[str]) -> dict[str, float]:
    """Return the number of words, the mean pieces per word, and the share of unknown pieces."""
    pieces = unknown = 0
    distinct = list(words)
    for word, ids in zip(distinct, vocabulary.encode_batch(distinct), strict=True):
        pieces += words[word] * len(ids)
        unknown += words[word] * int((ids == vocabulary.token_ids.unk).sum())
    total = words.total()
    return {"words": total, "pieces_per_word": pieces / total, "unk_share": unknown / pieces}


def _options(args: argparse.Namespace, layout: Layout) -> dict[str, Any]:
    """Return the options given for the kind; raise UserError for those of another kind, or out of range."""
    names = {name for own in _OPTIONS.values() for name in own}
    given = {name: getattr(args, name) for name in sorted(names) if getattr(args, name) is not None}
    for name in given:
        if name not in _OPTIONS[args.kind]:
            kinds = " and ".join(f"--kind={kind}" for kind, own in _OPTIONS.items() if name in own)
            raise UserError(f"--{name} is a flag of {kinds}: it does not apply to --kind={args.kind}")
    if layout.unk == layout.pad and args.kind != "byte_bpe":
        raise UserError(f"--layout={args.layout} has no token for unknown text, which every kind but --kind=byte_bpe requires")
    if layout.sentinels < 0:
        raise UserError(f"--sentinels={args.sentinels} is negative")
    special = len(layout.controls) + layout.sentinels
    if args.size <= special:
        raise UserError(f"--size={args.size} is too small: it includes {special} special pieces and the characters of the text")
    if args.size > _MOST_PIECES:
        raise UserError(f"--size={args.size} is more than {_MOST_PIECES:,}, the greatest size")
    if not 1 <= given.get("min_frequency", 1) < 2**31:
        raise UserError(f"--min_frequency={args.min_frequency} must be at least 1 and below 2^31")
    if not 0.5 < given.get("character_coverage", 1.0) <= 1:
        raise UserError(f"--character_coverage={args.character_coverage} must be above 0.5 and at most 1")
    if not 0 < args.sample <= 1:
        raise UserError(f"--sample={args.sample} must be above 0 and at most 1")
    return {name: value == "true" if value in ("true", "false") else value for name, value in given.items()}


def _check_output(output: Path, args: argparse.Namespace) -> None:
    """Raise UserError unless a vocabulary may be written there."""
    from bertfam.data.vocabularies.huggingface_files import NAMES

    recover(output)
    for name, owner in (("config.gin", "model"), ("cache.json", "token cache")):
        if output.name == "vocab" and (output.parent / name).is_file():
            raise UserError(
                f"--output={output} is the place of the vocabulary that the {owner} in {output.parent} was made with; name "
                "another folder"
            )
    if output.is_dir():
        files = sorted(path.name for path in output.iterdir()) if is_used(output) else []
        if other := next((name for name in files if name not in NAMES), None):
            raise UserError(f"--output={output} holds {other}, which is not a file of a vocabulary: name another folder")
        for name in files if not is_remote(output) else ():
            if flag := flags.reader_of(args, output / name):
                raise UserError(f"--output={output} holds {name}, which is read too, by --{flag}: name another folder")
        if files and not is_remote(output) and Path.cwd().is_relative_to(os.path.realpath(output)):
            raise UserError(f"--output={output} is the current folder, and is not empty (it holds {files[0]}): name another")
        if files and not args.overwrite:
            raise UserError(f"--output={output} is not empty (it holds {files[0]}): name another, or give --overwrite")
    elif not is_remote(output) and os.path.lexists(output):
        raise UserError(f"--output={output} is a file: name a folder")
    check_writable(output)


def _check_kept(output: Path, corpora: dict[str, Corpus]) -> None:
    """Raise UserError if text that a gin file names lies in the folder, which is replaced."""
    from bertfam.data.corpora.file_corpus import FileCorpus

    for corpus in corpora.values():
        files = [*corpus.files("train"), *corpus.files("validation")] if isinstance(corpus, FileCorpus) else []
        for path in files:
            if os.path.realpath(path).startswith(os.path.realpath(output) + os.sep):
                raise UserError(f"--output={output} holds {path}, which is text to read: name another folder")


def _report(line: str) -> None:
    print(f"vocab: {line}", file=sys.stderr, flush=True)
