"""--init_from and the flags that go with it: the warm start of a new run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertfam.commands import flags
from bertfam.storage.paths import to_path

if TYPE_CHECKING:
    from bertfam.data.vocabularies import Vocabulary
    from bertfam.training.run import Run
    from bertfam.training.warm_start.parameters import WarmStart

NAMES = ("init_from", "init_parts", "init_new_rows", "init_optimizer")


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the warm-start flags."""
    parser.add_argument(
        "--init_from",
        type=flags.folder,
        metavar="DIR",
        help="model folder or Hugging Face folder whose weights a new run starts from; tokens are matched by their pieces",
    )
    parser.add_argument(
        "--init_parts",
        metavar="NAME[,NAME...]",
        help="what to take of it: encoder, pooler, ... (default: all that both models have)",
    )
    parser.add_argument(
        "--init_new_rows",
        choices=("mean", "random"),
        help="how tokens begin that the vocabulary of --init_from lacks: with the mean of the rows of the pieces that spell them "
        "there, or as in a new model (default: mean)",
    )
    parser.add_argument(
        "--init_optimizer",
        action="store_true",
        help="take the moments of the optimizer of --init_from too, which must be a run with the same one; new tokens' are 0",
    )


def start(
    args: argparse.Namespace, run: Run, aux: Any, vocabulary: Vocabulary, model_dir: Path, *, begun: bool, goes_on: bool
) -> WarmStart | None:
    """What a new run starts from: what they name, or what its objective has of its own; None where there is neither.

    Args:
      args: with all of `NAMES`.
      run: sized.
      aux: what its objective reads and does not train.
      vocabulary: the run's.
      model_dir: where it trains.
      begun: whether there is a model already,
      goes_on: and whether that is of a run, which goes on whatever they say.

    Raises:
      UserError: they do not go together, or with what is there.
    """
    from bertfam.errors import UserError
    from bertfam.training.warm_start.parameters import objective_warm_start, read_warm_start

    for name in NAMES[1:]:
        if getattr(args, name) and not args.init_from:
            raise UserError(f"--{name} says what is taken of --init_from; give that too, or leave it out")
    if args.init_from and begun and not goes_on:
        raise UserError(f"{model_dir} holds a model already, from which it starts; leave --init_from out")
    if begun:
        return None
    if not args.init_from:
        return objective_warm_start(run, aux, vocabulary)
    means = args.init_new_rows != "random"
    return read_warm_start(args.init_from, args.init_parts, run, vocabulary, means=means, optimizer=args.init_optimizer)


def record(args: argparse.Namespace) -> dict[str, Any] | None:
    """Them, for MODEL_DIR to remember; None where they are not given."""
    if not args.init_from:
        return None
    absolute = str(to_path(args.init_from).absolute())  # to go on from elsewhere too
    return {name: getattr(args, name) for name in NAMES} | {"init_from": absolute}
