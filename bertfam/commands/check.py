"""`bertfam check`: validation of a run before anything is compiled."""

from __future__ import annotations

import argparse

from bertfam.commands import flags

SUMMARY = "validate a configuration without compiling"
EXAMPLE = """\
  test -d vocab || bertfam vocab --task=python_docs --size=8192 --output=vocab
  bertfam check --gin_file=runs/quickstart.gin --vocab=vocab --show

A mistake ends the command with status 2; with --model_dir, so does anything that would keep a run from resuming there.
Suspicious input is a warning on stderr, with status 0: every warning of pretrain, text with many unknown tokens for its
vocabulary (over 1 %), few documents (under 50), and rows that are mostly padding (over a third). A token cache that is
built (--cache_dir, or MODEL_DIR/cache) is checked as a whole. Of text in files a sample is read, at most 1 million
characters of 16 files. --duplicates reads all of the text, or the cache: it finds held-out documents that are training
text too if they are equal (but for case and spaces), or if half of their passages (64 letters; 16 tokens) are in one
training document."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    flags.add_config(parser)
    flags.add_text(parser)
    flags.add_cache_dir(parser)
    flags.add_model_dir(parser, required=False)
    parser.add_argument("--show", action="store_true", help="print the merged configuration with the origin of every value")
    parser.add_argument(
        "--duplicates",
        action="store_true",
        help="find held-out documents that are in the training text too; reads all of the text (about 15 MB/s), in 100 MB "
        "of memory and 24 bytes for each held-out document",
    )
    flags.add_json(parser)


def main(args: argparse.Namespace) -> int:
    """Check; return the exit status."""
    from bertfam.commands import check_run

    return check_run.run(args)
