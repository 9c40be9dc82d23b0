"""The corpus that command-line flags name."""

import argparse

from bertfam.data.sources import Corpus, TextFiles
from bertfam.errors import UserError

EMBEDDED = "python_docs"


def corpus_from_flags(args: argparse.Namespace) -> Corpus:
    """The corpus of --input (with its companions) or of --task; files and settings are checked, no text is read.

    Args:
      args: `input` (list of globs) and `task` (a name); and where the command has them, `validation_input`,
        `input_format`, `language` and `module_import`.

    Raises:
      UserError: neither or both are given, or a flag's value is wrong.
    """
    if args.input and args.task:
        raise UserError("--input and --task both say where the text comes from: give one of them")
    if not args.input and not args.task:
        raise UserError(f"no text: give --input=GLOB for text files, or --task={EMBEDDED} for text that comes with Python")
    if args.input:
        return _text_files(args)
    for flag in ("validation_input", "input_format", "language"):
        if getattr(args, flag, None):
            raise UserError(f"--{flag} says how --input is read: it does not go with --task")
    if args.task == EMBEDDED:  # needs neither seqio nor TensorFlow
        from bertfam.data.python_docs import PythonDocs

        return PythonDocs()
    from bertfam.data.seqio_task import SeqioTask

    return SeqioTask(args.task, tuple(getattr(args, "module_import", ())))


def _text_files(args: argparse.Namespace) -> TextFiles:
    settings = {
        "validation": getattr(args, "validation_input", None),
        "input_format": getattr(args, "input_format", None),
        "language": getattr(args, "language", None),
    }
    corpus = TextFiles(tuple(args.input), **{name: value for name, value in settings.items() if value})
    for split in ("train", "validation"):
        corpus.files(split)
    return corpus
