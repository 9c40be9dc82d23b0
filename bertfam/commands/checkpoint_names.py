"""Checkpoints on the command line: DIR, DIR@STEP, DIR@STEP,STEP."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, NamedTuple

from typing_extensions import override

from bertfam.commands import flags

if TYPE_CHECKING:
    from collections.abc import Iterator

ALL, BEST = "all", "best"


class CheckpointName(NamedTuple):
    """Checkpoints of one MODEL_DIR.

    Attributes:
      folder: the folder.
      steps: its steps, or `ALL` or `BEST` in place of one; () for the newest.
    """

    folder: str
    steps: tuple[int | str, ...] = ()

    @override
    def __str__(self) -> str:
        return "@".join([self.folder, ",".join(map(str, self.steps))] if self.steps else [self.folder])

    def resolve(self) -> Iterator[int | None]:
        """Yield the steps, None for the newest; raise UserError if the folder has no best step, or none at all."""
        from bertfam.training.checkpoints import selection
        from bertfam.training.model_dir import best_step

        if not self.steps:
            yield None
        for step in self.steps:
            if step == ALL:
                yield from selection.complete(selection.existing(self.folder))
            elif step == BEST:
                yield best_step(self.folder)
            else:
                yield int(step)


def checkpoint_name(text: str) -> CheckpointName:
    """Parse DIR[@STEP[,STEP...]], for a flag; a folder that has an @ in its name is that folder."""
    folder, at, steps = text.rpartition("@")
    if not at or os.path.isdir(os.path.expanduser(text)):
        return CheckpointName(flags.folder(text))
    return CheckpointName(flags.folder(folder), tuple(map(_step, steps.split(","))))


def one_checkpoint(text: str) -> CheckpointName:
    """Parse DIR[@STEP], for a flag that names one checkpoint."""
    name = checkpoint_name(text)
    if len(name.steps) > 1 or ALL in name.steps:
        raise argparse.ArgumentTypeError("it must be one checkpoint; write DIR or DIR@STEP")
    return name


def exact_checkpoint(text: str) -> CheckpointName:
    """Parse DIR@STEP, for a flag that a run remembers.

    Raises:
      argparse.ArgumentTypeError: the step is missing.
    """
    name = one_checkpoint(text)
    if not name.steps:
        raise argparse.ArgumentTypeError("it must be DIR@STEP, a model folder and one of its checkpoints, such as base@50000")
    return name


def _step(word: str) -> int | str:
    if word in (ALL, BEST):
        return word
    if not (word.isascii() and word.isdecimal()):
        raise argparse.ArgumentTypeError(f"{word!r} after the @ is no step; write a number, {BEST} or {ALL}")
    return int(word)
