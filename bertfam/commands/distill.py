"""`bertfam distill`: distillation of a trained model into a smaller one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bertfam.commands import flags, pretrain
from bertfam.errors import UserError

if TYPE_CHECKING:
    from bertfam.config import Config, Defaults, Override
    from bertfam.session import OpenTeacher

SUMMARY = "distill a trained model into a smaller one"
EXAMPLE = """\
  bertfam vocab --task=python_docs --size=8192 --output=vocab
  bertfam pretrain --gin_file=runs/quickstart.gin --vocab=vocab --model_dir=model
  bertfam distill --teacher=model --gin_file=runs/quickstart_student.gin --cache_dir=model/cache --model_dir=student
The student is the model of the gin files, and has the teacher's vocabulary. It starts from layers of the teacher, spread evenly
from the first to the last (0, 2, 4, 7, 9, 11 of twelve), with its embeddings and its head. Everything else is as in `bertfam
pretrain`: the same command again resumes from the newest checkpoint, with the same teacher, and so does --model_dir=DIR alone.
The terms of the loss have weights: --gin.Distillation.soft=0, .mlm=0, .cosine=0, .mse=1. Hinton's form is
--gin.Distillation.alpha=0.5."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    group = parser.add_argument_group("teacher")
    group.add_argument(
        "--teacher",
        type=flags.folder,
        metavar="DIR",
        help="model folder or Hugging Face folder of any encoder; a run that resumes knows it already",
    )
    group.add_argument(
        "--teacher_step",
        type=int,
        metavar="N",
        help="checkpoint of the teacher's run (default: the newest, or the one that the student started with)",
    )
    group.add_argument(
        "--teacher_network",
        metavar="NAME",
        help="the network of the folder to use, if there are several, such as ELECTRA's generator (default: the first)",
    )
    group.add_argument(
        "--layers",
        type=_layers,
        metavar="N,N,...",
        help="the teacher's layers that the student's layers start from, counted from 0, one for each; random: a new student "
        "(default: spread evenly from the first to the last)",
    )
    pretrain.add_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Train; return the exit status."""
    return pretrain.train(args, TeacherFlags(args))


@dataclass(frozen=True)
class TeacherFlags:
    """Teacher that the command's flags name; see `bertfam.session.Teacher`."""

    args: argparse.Namespace

    def open(self, gin_files: Sequence[str], defaults: Defaults) -> OpenTeacher:
        """Read the teacher, once the gin files of the student, and what they may leave out, are known.

        Raises:
          UserError: the flags do not go together, or name no teacher of this student.
        """
        from bertfam.config import Override
        from bertfam.session import OpenTeacher
        from bertfam.training.teachers import reopen_teacher, teacher_bindings
        from bertfam.training.trained_networks import vocabulary_folder

        args = self.args
        config = flags.load_config(args, gin_files, defaults=defaults)
        self._check(config, gin_files)
        bindings = self._layer_bindings()
        if not args.teacher:
            return OpenTeacher(bindings)
        opened = reopen_teacher(args.model_dir, args.teacher, args.teacher_step, args.teacher_network)
        origin = f"--teacher={args.teacher}"
        bindings += teacher_bindings(opened, origin)
        if not args.vocab and not config.binds("TextData.vocabulary"):
            folder = vocabulary_folder(args.teacher).absolute()
            bindings.append(Override(f"TextData.vocabulary = {str(folder)!r}", origin))
        return OpenTeacher(bindings, (opened,))

    def _check(self, config: Config, gin_files: Sequence[str]) -> None:
        """Raise UserError for flags that do not go together, or a configuration that does not distill."""
        args = self.args
        if not config.refers_to("Distillation"):
            raise UserError(
                f"{' '.join(map(str, gin_files)) or 'the configuration'} does not distill: add "
                "--gin_file=objectives/distillation.gin, which makes @Distillation() the objective"
            )
        for flag in ("teacher_step", "teacher_network"):
            if getattr(args, flag) is not None and not args.teacher:
                raise UserError(f"--{flag} says which of --teacher; give that too, or leave it out")
        if args.layers is not None and args.init_from:
            raise UserError("--layers and --init_from both say what the student starts as; give one of them")

    def _layer_bindings(self) -> list[Override]:
        from bertfam.config import Override

        layers = self.args.layers
        if layers is None:
            return []
        words = layers if isinstance(layers, str) else ",".join(map(str, layers))
        return [Override(f"Distillation.layers = {layers!r}", f"--layers={words}")]


def _layers(words: str) -> tuple[int, ...] | str:
    """Parse --layers."""
    if words == "random":
        return words
    try:
        return tuple(int(word) for word in words.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError("write numbers with commas between, as 0,2,4, or random") from None
