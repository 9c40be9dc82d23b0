"""`bertfam distill`: distillation of a trained model into a smaller one."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from bertfam.commands import flags, pretrain

if TYPE_CHECKING:
    from bertfam.config import Override
    from bertfam.training.teachers import LoadedTeacher

SUMMARY = "distill a trained model into a smaller one"
EXAMPLE = """\
  bertfam vocab --task=python_docs --size=8192 --output=vocab
  bertfam pretrain --gin_file=runs/quickstart.gin --vocab=vocab --model_dir=model
  bertfam distill --teacher=model --gin_file=runs/quickstart_student.gin --cache_dir=model/cache --model_dir=student
The student is the model of the gin files, and has the teacher's vocabulary. It starts as layers of the teacher, evenly from the
first to the last (0, 2, 4, 7, 9, 11 of twelve), with its embeddings and its head. Everything else is as in `bertfam pretrain`:
the same command again goes on from the newest checkpoint, with the same teacher, and so does --model_dir=DIR alone. Terms of the
loss are switched by --gin.Distillation.soft=0, .mlm=0, .cosine=0, .mse=1; Hinton's form is --gin.Distillation.alpha=0.5."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    group = parser.add_argument_group("teacher")
    group.add_argument(
        "--teacher",
        type=flags.folder,
        metavar="DIR",
        help="model folder or Hugging Face folder of any encoder; a run that goes on knows it already",
    )
    group.add_argument(
        "--teacher_step",
        type=int,
        metavar="N",
        help="checkpoint of the teacher's run (default: the newest, or that with which the student has begun)",
    )
    group.add_argument(
        "--teacher_network",
        metavar="NAME",
        help="which of several in the folder: generator, of ELECTRA (default: the first)",
    )
    group.add_argument(
        "--layers",
        type=_layers,
        metavar="N,N,...",
        help="the teacher's layers that the student's start as, from 0, one for each; random: nothing is taken of the teacher "
        "(default: evenly from the first to the last)",
    )
    pretrain.add_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Train; return the exit status."""

    teachers: list[LoadedTeacher] = []

    def teacher() -> list[Override]:
        from bertfam.config import Override
        from bertfam.errors import UserError
        from bertfam.training.teachers import reopen_teacher, teacher_bindings, teacher_vocabulary

        config = flags.load_config(args)
        if not config.refers_to("Distillation"):
            raise UserError(
                f"{' '.join(map(str, args.gin_file))} does not distill: add --gin_file=objectives/distillation.gin, which makes "
                "@Distillation() the objective"
            )
        for flag in ("teacher_step", "teacher_network"):
            if getattr(args, flag) is not None and not args.teacher:
                raise UserError(f"--{flag} says which of --teacher; give that too, or leave it out")
        if args.layers is not None and args.init_from:
            raise UserError("--layers and --init_from both say what the student starts as; give one of them")
        found = []
        if args.layers is not None:
            words = args.layers if isinstance(args.layers, str) else ",".join(map(str, args.layers))
            found.append(Override(f"Distillation.layers = {args.layers!r}", f"--layers={words}"))
        if args.teacher:
            teachers.append(reopen_teacher(args.model_dir, args.teacher, args.teacher_step, args.teacher_network))
            opened, origin = teachers[0], f"--teacher={args.teacher}"
            found += teacher_bindings(opened, origin)
            if not args.vocab and not config.binds("TextData.vocabulary"):
                found.append(Override(f"TextData.vocabulary = {str(teacher_vocabulary(args.teacher).absolute())!r}", origin))
        return found

    return pretrain.train(args, teacher, teachers)


def _layers(words: str) -> tuple[int, ...] | str:
    """The type of --layers."""
    if words == "random":
        return words
    try:
        return tuple(int(word) for word in words.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError("write numbers with commas between, as 0,2,4, or random") from None
