"""`bertfam configs`: the gin files that are shipped with bertfam."""

from __future__ import annotations

import argparse
import json

from bertfam.commands import flags
from bertfam.errors import UserError

SUMMARY = "list the gin files shipped with bertfam: runs, models, objectives, tasks and meshes"
EXAMPLE = """\
  bertfam configs
  bertfam configs runs
  bertfam configs modernbert"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument("words", nargs="*", metavar="WORD", help="list only files with all of these words in their paths")
    flags.add_json(parser)


def main(args: argparse.Namespace) -> int:
    """List the files; return the exit status."""
    from bertfam.config.shipped import shipped_files, summary

    names = [name for name in shipped_files() if all(word in name for word in args.words)]
    if not names:
        raise UserError(f"no gin file shipped with bertfam has {' and '.join(args.words)} in its path; bertfam configs lists all")
    summaries = {name: summary(name) for name in names}
    if args.json:
        print(json.dumps(summaries, ensure_ascii=False, indent=1))
        return 0
    width = max(map(len, names))
    for name, text in summaries.items():
        print(f"{name:{width}}  {text}")
    return 0
