"""`bertfam vocab`: learn a WordPiece vocabulary from text."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from bertfam.commands import flags
from bertfam.errors import UserError
from bertfam.files import check_writable, new_folder

if TYPE_CHECKING:
    from collections import Counter

    from bertfam.data.sources import Corpus
    from bertfam.data.vocabularies import Vocabulary

SUMMARY = "train a WordPiece vocabulary on text"

EXAMPLE = "  bertfam vocab --task=python_docs --size=8192 --output=vocab"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's flags."""
    flags.add_config(parser)
    flags.add_source(parser)
    pieces = parser.add_argument_group("pieces")
    pieces.add_argument("--size", type=int, default=8192, metavar="N", help="pieces, the 5 special ones included (%(default)s)")
    pieces.add_argument("--cased", action="store_true", help="keep capitals (and accents, unless --strip_accents=true)")
    pieces.add_argument(
        "--strip_accents", choices=("true", "false"),
        help="drop accents, voicing marks and vowel signs; by default when not --cased, as BERT does; "
        "false for languages that need them (Vietnamese, Japanese, Hindi)",
    )  # fmt: skip
    pieces.add_argument(
        "--min_frequency", type=int, default=2, metavar="N",
        help="how often two pieces must stand side by side to be joined (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--output", type=flags.path, required=True, metavar="DIR", help="folder to write, which must be empty or new"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a vocabulary that is in --output")
    flags.add_json(parser)


def main(args: argparse.Namespace) -> int:
    """Learns a vocabulary; returns the exit status."""
    # What can be wrong, before anything heavy is imported or read.
    if args.size <= 5:
        raise UserError(f"--size={args.size} is too small: 5 special pieces and the characters of the text go in")
    if args.min_frequency < 1:
        raise UserError(f"--min_frequency={args.min_frequency} must be at least 1")
    output = Path(args.output)
    _check_output(output, args.overwrite)
    corpus = flags.load_config(args).build("TextData").corpus
    if corpus is None:
        raise UserError(f"no text: give --input=GLOB for text files, or --task={flags.EMBEDDED} for text that comes with Python")

    from bertfam.data.seqio_task import SeqioTask
    from bertfam.data.sources import TextFiles

    if isinstance(corpus, TextFiles | SeqioTask):
        corpus = dataclasses.replace(corpus, validation_fraction=0.0)  # all of it: nothing is evaluated here

    # Count words.
    from bertfam.data.vocabularies.wordpiece import WordPiece, make_normalizer
    from bertfam.data.vocabularies.wordpiece_training import count_words

    lowercase = not args.cased
    strip_accents = None if args.strip_accents is None else args.strip_accents == "true"
    reading = _Reading(corpus)
    words = count_words(reading.sentences(), make_normalizer(lowercase, strip_accents, True))

    # Learn pieces.
    begin = time.monotonic()
    _report(f"learning pieces from {words.total():,} words, {len(words):,} of them different")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        vocabulary = WordPiece.from_words(
            words, size=args.size, lowercase=lowercase, strip_accents=strip_accents, min_frequency=args.min_frequency
        )
    for warning in caught:
        _report(f"warning: {warning.message}")
    _report(f"learnt {vocabulary.size:,} pieces in {time.monotonic() - begin:.1f} s")

    # Write and summarise.
    if output.is_dir():
        vocabulary.save(output)
    else:
        with new_folder(output) as folder:
            vocabulary.save(folder)
    summary = {
        "output": str(output),
        "size": vocabulary.size,
        "documents": reading.documents,
        "characters": reading.characters,
        **_statistics(vocabulary, words),
    }
    if args.json:
        print(json.dumps(summary))
    else:
        print(
            f"{output}: {summary['size']:,} pieces from {summary['documents']:,} documents, "
            f"{summary['characters']:,} characters, {summary['words']:,} words; "
            f"{summary['pieces_per_word']:.3f} pieces per word, {summary['unk_share']:.3%} [UNK]"
        )
    return 0


class _Reading:
    """Counts documents and characters on the way, with progress on a terminal."""

    def __init__(self, corpus: Corpus) -> None:
        self.documents = self.characters = 0
        self._corpus = corpus

    def sentences(self) -> Iterator[str]:
        from tqdm import tqdm

        documents = self._corpus.documents("train")
        for document in tqdm(documents, "reading", unit=" documents", disable=not sys.stderr.isatty(), leave=False):
            self.documents += 1
            self.characters += sum(map(len, document))
            yield from document


def _statistics(vocabulary: Vocabulary, words: Counter[str]) -> dict[str, float]:
    """Words of the text, mean pieces per word, and the share of [UNK] among all pieces."""
    pieces = unknown = 0
    distinct = list(words)
    for word, ids in zip(distinct, vocabulary.encode_batch(distinct), strict=True):
        pieces += words[word] * len(ids)
        unknown += words[word] * int((ids == vocabulary.token_ids.unk).sum())
    total = words.total()
    return {"words": total, "pieces_per_word": pieces / total, "unk_share": unknown / pieces}


def _check_output(output: Path, overwrite: bool) -> None:
    """Raises UserError unless a vocabulary may be written there."""
    if output.is_dir():
        files = sorted(path.name for path in output.iterdir())
        if files and not overwrite:
            raise UserError(f"--output={output} is not empty (it holds {files[0]}): name another, or give --overwrite")
    elif os.path.lexists(output):
        raise UserError(f"--output={output} is a file: name a folder")
    check_writable(output)


def _report(line: str) -> None:
    print(f"vocab: {line}", file=sys.stderr, flush=True)
