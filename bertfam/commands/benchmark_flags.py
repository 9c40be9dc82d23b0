"""--task_name and --data_dir: a benchmark task, read from its published files."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from bertfam.commands import flags
from bertfam.errors import UserError

if TYPE_CHECKING:
    from bertfam.finetuning.benchmarks.task import BenchmarkTask

# What a task states itself.
_OF_FILES = (
    *("text", "text_pair", "label", "regression", "multi_label", "tagging", "questions", "choices"),
    *("record_format", "no_header", "record_encoding", "skip_empty"),
)
_NAMES = {"record_format": "format", "record_encoding": "encoding", "seqio_task": "task"}


def add(group: argparse._ArgumentGroup, use: str) -> None:
    """Declare the flags; `use` says what the command does with the task's files."""
    group.add_argument(
        "--task_name",
        metavar="SUITE/TASK",
        help=f"benchmark task, such as glue/cola, superglue/boolq, squad/v1.1, ner/conll2003 or pos/ud; {use}",
    )
    add_data_dir(group)


def add_data_dir(group: argparse._ArgumentGroup) -> None:
    """Declare --data_dir."""
    group.add_argument(
        "--data_dir", type=flags.folder, metavar="DIR", help="folder of the published files, such as CoLA/train.tsv in it"
    )


def find_task(args: argparse.Namespace, *more: str) -> BenchmarkTask | None:
    """Return the task of --task_name, None without it.

    Args:
      args: the flags.
      more: flags that say what the task says, besides those of columns and formats.

    Raises:
      UserError: there is no such task, or flags do not go with it.
    """
    if args.task_name is None:
        if args.data_dir:
            raise UserError("--data_dir has the files of a benchmark task: name it with --task_name")
        return None
    if not args.data_dir:
        raise UserError(f"--task_name={args.task_name} is read from its published files: name their folder with --data_dir")
    for name in (*more, *_OF_FILES):
        if getattr(args, name, None):
            raise UserError(f"--{_NAMES.get(name, name)} does not go with --task_name, whose files are known; leave it out")

    from bertfam.finetuning.benchmarks import registry

    flags.import_modules(args)
    return registry.find(args.task_name)
