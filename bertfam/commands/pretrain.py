"""`bertfam pretrain`: text or a token cache to a trained model."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from bertfam.commands import flags, init_flags

if TYPE_CHECKING:
    from bertfam.session import Teacher

SUMMARY = "train a model"
EXAMPLE = """\
  bertfam vocab --task=python_docs --size=8192 --output=vocab
  bertfam pretrain --gin_file=runs/quickstart.gin --vocab=vocab --model_dir=model

A new run needs a gin file, a vocabulary, and text (quickstart.gin names a task) or a token cache. With --init_from=DIR, or
the --model_dir of an imported model, it needs only text: objective, sizes and vocabulary are those of the folder. With
--branch_from=DIR@STEP it goes on from a checkpoint of another run, and needs nothing else. The same
command again resumes from the newest checkpoint, and so does --model_dir=DIR alone. Exit code 0: the run is finished. 74: its
storage could not be reached. 75: SIGTERM, Ctrl-C or a closed terminal stopped it, and its step is saved. 76: no progress for
Run.watchdog_seconds. 77: another process has exited."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    flags.add_config(parser)
    flags.add_text(parser)
    flags.add_cache_dir(parser)
    flags.add_model_dir(parser)
    init_flags.add(parser)
    init_flags.add_branch(parser)
    parser.add_argument(
        "--profile_steps",
        metavar="FIRST-LAST",
        help="record a profile of these updates, such as 100-104, in MODEL_DIR/plugins/profile, for TensorBoard or Perfetto (of "
        "process I > 0 in MODEL_DIR/process_I)",
    )
    flags.add_processes(parser)


def main(args: argparse.Namespace) -> int:
    """Train; return the exit status."""
    return train(args)


def train(args: argparse.Namespace, teacher: Teacher | None = None) -> int:
    """Train; return the exit status.

    Args:
      args: the flags that `add_arguments` declares.
      teacher: the teacher of a student; it is opened once all processes are connected.
    """
    from bertfam.multihost.preemption import exit_on_sigterm
    from bertfam.multihost.startup import join

    with (
        exit_on_sigterm(),
        join(args.coordinator, args.num_processes, args.process_index, args.initialization_timeout, args.model_dir) as processes,
    ):
        from bertfam.commands import pretrain_run

        return pretrain_run.run(args, processes, teacher)
