"""Flags that several commands share, so that they are spelt and explained alike."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from bertfam.errors import UserError

if TYPE_CHECKING:
    from bertfam.config import Config, Override
    from bertfam.data.text_data import TextData

INPUT_FORMATS = ("sentences", "paragraphs", "lines")
EMBEDDED = "python_docs"  # a task that needs no seqio


def add_config(parser: argparse.ArgumentParser) -> None:
    """--gin_file, --module_import, and args.gin_bindings, filled from the --gin.NAME=value flags; read by `load_config`."""
    group = parser.add_argument_group(
        "configuration",
        "--gin.NAME=value binds one more value, over those of the files; repeatable:\n"
        "--gin.TRAIN_STEPS=100 --gin.Execution.dtype='\"bfloat16\"'",
    )
    group.add_argument(
        "--gin_file",
        action="append",
        default=[],
        metavar="FILE",
        help="gin file, here or among those that come with bertfam (runs/...); repeatable, the later wins",
    )
    group.add_argument(
        "--module_import",
        action="append",
        default=[],
        metavar="MODULE",
        help="Python module to import first: one that registers your own configurables, or the one that registers --task; "
        "repeatable",
    )
    parser.set_defaults(gin_bindings=[])


def add_model_dir(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    parser.add_argument(
        "--model_dir",
        required=required,
        metavar="DIR",
        help="folder of the run: config.gin, vocab/, cache/, checkpoints/, metrics.jsonl",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def add_text(parser: argparse.ArgumentParser) -> None:
    """Where the text comes from: files, a registered task, or a cache that is already built."""
    group = parser.add_argument_group("text")
    group.add_argument("--input", action="append", default=[], metavar="GLOB", help="text files to train on (UTF-8); repeatable")
    group.add_argument(
        "--validation_input",
        action="append",
        default=[],
        metavar="GLOB",
        help="text files held out; without them a share of --input is held out; repeatable",
    )
    group.add_argument(
        "--input_format",
        choices=INPUT_FORMATS,
        default=None,
        help="sentences: one a line, an empty line ends a document (default); "
        "paragraphs: running text, an empty line ends a document; lines: every line is a document",
    )
    group.add_argument("--language", metavar="CODE", help="language of the text, for sentence splitting (en)")
    group.add_argument(
        "--task",
        metavar="NAME",
        help="registered seqio task, instead of --input; --module_import=MODULE names the module that registers it; "
        "python_docs: the documentation of installed Python packages",
    )
    group.add_argument("--vocab", metavar="DIR", help="vocabulary folder, as bertfam vocab writes it")


def add_cache_dir(parser: argparse.ArgumentParser) -> None:
    """Where the token cache lies."""
    parser.add_argument(
        "--cache_dir",
        metavar="DIR",
        help="token cache: one that bertfam cache has built needs no text and no --vocab; a missing one is built there "
        "(default: MODEL_DIR/cache)",
    )


def load_config(args: argparse.Namespace) -> Config:
    """The configuration that the flags of add_config and add_text describe.

    With a seqio task the modules are those that register it: they import TensorFlow, so only the process that reads the text
    imports them.
    """
    from bertfam.config import load

    modules = () if args.task and args.task != EMBEDDED else args.module_import
    return load(args.gin_file, [*text_bindings(args), *args.gin_bindings], modules)


def named_text(args: argparse.Namespace, data: TextData) -> TextData:
    """`data` with only the corpus and the vocabulary that the flags of add_text name."""
    import dataclasses

    corpus = data.corpus if args.input or args.task else None
    return dataclasses.replace(data, corpus=corpus, vocabulary=data.vocabulary if args.vocab else None)


def text_bindings(args: argparse.Namespace) -> list[Override]:
    """The gin bindings that the flags of add_text stand for, each with its flag as origin."""
    from bertfam.config import Override

    if args.input and args.task:
        raise UserError("--input and --task both say where the text comes from; give one of them")
    # (flag, its value, what it binds)
    table = [
        ("input", args.input, {"TextData.corpus": "@TextFiles()", "TextFiles.train": repr(tuple(args.input))}),
        ("task", args.task, _task(args) if args.task else {}),
        ("validation_input", args.validation_input, {"TextFiles.validation": repr(tuple(args.validation_input))}),
        ("input_format", args.input_format, {"TextFiles.input_format": repr(args.input_format)}),
        ("language", args.language, {"TextFiles.language": repr(args.language)}),
        ("vocab", args.vocab, {"TextData.vocabulary": repr(args.vocab)}),
        ("cache_dir", getattr(args, "cache_dir", None), {"TextData.cache_dir": repr(getattr(args, "cache_dir", None))}),
    ]
    return [
        Override(f"{name} = {value}", f"--{flag}={given if isinstance(given, str) else given[0]}")
        for flag, given, bindings in table
        if given
        for name, value in bindings.items()
    ]


def _task(args: argparse.Namespace) -> dict[str, str]:
    if args.task == EMBEDDED:
        return {"TextData.corpus": "@PythonDocs()"}
    return {
        "TextData.corpus": "@SeqioTask()",
        "SeqioTask.name": repr(args.task),
        "SeqioTask.modules": repr(tuple(args.module_import)),
    }
