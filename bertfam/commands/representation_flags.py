"""Flags of the commands that analyse vectors of words: texts, and how many of them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from bertfam.errors import UserError


def add_numbers(group: argparse._ArgumentGroup, limit: int) -> None:
    """Add --limit and --batch_size."""
    group.add_argument(
        "--limit",
        type=int,
        default=limit,
        metavar="N",
        help="read N sentences of the text, drawn at random, the same in every run (default: %(default)s)",
    )
    group.add_argument("--batch_size", type=int, default=16, metavar="N", help="sentences at a time (default: 16)")


def check_numbers(args: argparse.Namespace, **least: int) -> None:
    """Raise UserError for a number below its least value, given by flag; lengths, limits and batch sizes are at least 1."""
    for flag, smallest in {"length": 1, "limit": 1, "batch_size": 1, **least}.items():
        number = getattr(args, flag, None)
        if number is not None and number < smallest:
            raise UserError(f"--{flag}={number} is less than {smallest}")


def sentences(args: argparse.Namespace) -> Iterator[str]:
    """Yield the sentences of the files of --input."""
    from bertfam.data.corpora.text_files import TextFiles

    corpus = TextFiles(
        train=tuple(args.input),
        input_format=args.input_format or "sentences",
        text_field=args.text_field or "text",
        encoding=args.encoding or "utf-8",
        validation_fraction=0.0,
    )
    return (sentence for document in corpus.documents("train") for sentence in document)
