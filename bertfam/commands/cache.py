"""`bertfam cache`: text to a token cache."""

import argparse
from pathlib import Path

from bertfam.commands import flags

SUMMARY = "tokenise a corpus once, into a token cache"
EXAMPLE = """\
  bertfam vocab --task=python_docs --size=8192 --output=vocab
  bertfam cache --task=python_docs --vocab=vocab --output=cache
  bertfam pretrain --gin_file=runs/quickstart.gin --cache_dir=cache --model_dir=model"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's flags."""
    flags.add_config(parser)
    flags.add_text(parser)
    parser.add_argument("--output", required=True, metavar="DIR", help="folder of the cache; must not exist")


def main(args: argparse.Namespace) -> int:
    """Builds the cache; returns the exit status."""
    from bertfam.errors import UserError
    from bertfam.training.data import check_buildable

    output = Path(args.output)
    if output.exists():
        raise UserError(f"{output} exists already; delete it, or choose another --output")
    data = flags.load_config(args).build("TextData")
    check_buildable(data)

    from bertfam.data.cache_builder import build
    from bertfam.data.vocabularies import WordPiece

    cache = build(data.corpus, WordPiece.load(data.vocabulary), output)
    print(f"token cache: {cache.directory}")
    return 0
