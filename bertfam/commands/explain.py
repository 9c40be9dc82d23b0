"""`bertfam explain`: a class that gin can bind, its fields, their defaults, and where they are bound."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import textwrap
from typing import TYPE_CHECKING

from bertfam.commands import flags
from bertfam.errors import warn
from bertfam.storage.paths import to_path

if TYPE_CHECKING:
    from bertfam.config import Config
    from bertfam.config.explain import Explanation, Field

SUMMARY = "explain a class that gin can bind: its fields, their defaults, and where they are bound"
EXAMPLE = """\
  bertfam explain AdamW
  bertfam explain TextData --gin_file=runs/roberta_base.gin
  bertfam explain

Without a NAME it lists all classes. With --gin_file or --model_dir it shows where that configuration binds the fields;
without, which files shipped with bertfam do."""
_MOST_PLACES = 4
_WIDTH = 120


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="class, as gin files write it (default: list all)")
    flags.add_config(parser)
    flags.add_model_dir(parser, required=False)
    flags.add_json(parser)


def main(args: argparse.Namespace) -> int:
    """Explain a class, or list all; return the exit status."""
    from bertfam.config import registry
    from bertfam.config.explain import explain
    from bertfam.config.shipped import first_sentence

    config = _open(args)
    if args.name is None:
        names = sorted(registry.names())
        if args.json:
            print(json.dumps(names))
        else:
            width = max(map(len, names))
            print("\n".join(f"{name:{width}}  {first_sentence(explain(name).summary)}".rstrip() for name in names))
        return 0
    explanation = explain(args.name, config)
    if sys.flags.optimize > 1:
        warn(["python -OO (or PYTHONOPTIMIZE) leaves the descriptions out, which are docstrings: run without it to see them"])
    if args.json:
        print(json.dumps(dataclasses.asdict(explanation), ensure_ascii=False, indent=1))
    else:
        _show(explanation, shipped=config is None)
    return 0


def _open(args: argparse.Namespace) -> Config | None:
    """Load the configuration that the flags name; None if they name none."""
    from bertfam.config import load

    if args.model_dir:
        flags.check_model_dir(args, huggingface=False)
    saved = [str(to_path(args.model_dir) / "config.gin")] if args.model_dir else []
    config = load([*saved, *args.gin_file], args.gin_bindings, args.module_import, saved=saved)
    return config if saved or args.gin_file or args.gin_bindings else None


def _show(explanation: Explanation, *, shipped: bool) -> None:
    print(f"{explanation.name}  ({explanation.selector})")
    print(textwrap.fill(explanation.summary, _WIDTH))
    for field in explanation.fields:
        default = "must be bound" if field.default is None else f"default {field.default}"
        print(f"\n  {field.name}: {field.type}; {default}")
        if field.description:
            print(textwrap.fill(field.description, _WIDTH, initial_indent="      ", subsequent_indent="      "))
        for line in _places(field, shipped=shipped):
            print(f"      {line}")


def _places(field: Field, *, shipped: bool) -> list[str]:
    most = _MOST_PLACES if shipped else len(field.places)
    lines = [f"{place.name} = {place.value}  # {place.where}" for place in field.places[:most]]
    if len(field.places) > most:
        lines.append(f"... and {len(field.places) - most} more of the shipped files")
    return lines
