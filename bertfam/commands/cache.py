"""`bertfam cache`: text to a token cache."""

import argparse
import os
from pathlib import Path

from bertfam.commands import flags

SUMMARY = "tokenise a corpus once, into a token cache"
EXAMPLE = """\
  test -d vocab || bertfam vocab --task=python_docs --size=8192 --output=vocab
  bertfam cache --task=python_docs --vocab=vocab --output=cache
  bertfam pretrain --gin_file=runs/quickstart.gin --cache_dir=cache --model_dir=model"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's flags."""
    flags.add_config(parser)
    flags.add_text(parser)
    parser.add_argument(
        "--output", type=flags.path, required=True, metavar="DIR", help="folder of the cache; one that is there is checked"
    )


def main(args: argparse.Namespace) -> int:
    """Builds the cache, or checks that the one there is of this text and vocabulary; returns the exit status."""
    from bertfam.training.data import check_buildable

    data = flags.load_config(args).build("TextData")
    check_buildable(data)

    from bertfam.data import vocabularies
    from bertfam.data.cache import TokenCache
    from bertfam.data.cache_builder import build, check_sources

    output, vocabulary = Path(args.output), vocabularies.load(data.vocabulary)
    if os.path.exists(output):
        check_sources(TokenCache(output), data.corpora, vocabulary)
        print(f"token cache: {output}, built already")
    else:
        build(data.corpora, vocabulary, output, least_documents=data.rows.least_documents)
        print(f"token cache: {output}")
    return 0
