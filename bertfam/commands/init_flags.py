"""--init_from and the flags that go with it: the warm start of a new run."""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from bertfam.commands import flags
from bertfam.commands.checkpoint_names import CheckpointName, exact_checkpoint
from bertfam.storage.paths import identity, to_path

if TYPE_CHECKING:
    from pathlib import Path

    from bertfam.data.vocabularies import Vocabulary
    from bertfam.training.run import Run
    from bertfam.training.warm_start.branch import Branch
    from bertfam.training.warm_start.parameters import WarmStart

NAMES = ("init_from", "init_parts", "init_new_rows", "init_optimizer", "init_grow")
BRANCH = "branch_from"
_DEFAULTS = {"init_new_rows": "mean"}


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the warm-start flags."""
    parser.add_argument(
        "--init_from",
        type=flags.folder,
        metavar="DIR",
        help="model folder or Hugging Face folder whose weights a new run starts from, with its architecture and sizes. A run "
        "without an objective in --gin_file has that of its family, and one without --vocab, token cache or TextData.vocabulary "
        "has its vocabulary. Tokens of another vocabulary are matched by their pieces",
    )
    parser.add_argument(
        "--init_parts",
        metavar="NAME[,NAME...]",
        help="the parts to use: encoder, pooler, ... (default: all that both models have); none: new parameters in the network "
        "of --init_from, with its vocabulary",
    )
    parser.add_argument(
        "--init_new_rows",
        choices=("mean", "random"),
        help="initial embeddings of tokens that the vocabulary of --init_from lacks: the mean of the rows of the pieces that "
        "spell them there, or those of a new model (default: mean)",
    )
    parser.add_argument(
        "--init_optimizer",
        action="store_true",
        help="use the optimizer's moments of --init_from too, which must be a run with the same optimizer; moments of new tokens "
        "are 0",
    )
    parser.add_argument(
        "--init_grow",
        choices=("stack", "repeat"),
        help="start a larger model of the family, whose sizes --gin_file or --gin.NAME=value state: layers are stacked, 0 to n-1 "
        "and again from 0 (Gong et al. 2019), or each is repeated in its place, as in ModernBERT-large; widths are tiled",
    )


def add_branch(parser: argparse.ArgumentParser) -> None:
    """Declare --branch_from."""
    parser.add_argument(
        "--branch_from",
        type=exact_checkpoint,
        metavar="DIR@STEP",
        help="checkpoint of another run from which a new run goes on: with its parameters, optimizer state, step and place in "
        "the text, and under its configuration, over which --gin_file and --gin.NAME=value are laid",
    )


def check_other_folder(start: str, model_dir: Path, flag: str = "--init_from") -> None:
    """Raise UserError if a run is to start from its own folder."""
    from bertfam.errors import UserError

    if identity(model_dir) == identity(start):
        raise UserError(
            f"{flag}={start} is the --model_dir of this run: leave {flag} out to resume it, or name another "
            "--model_dir to start a new run from it"
        )


def open_branch(args: argparse.Namespace, model_dir: Path) -> Branch | None:
    """Return the branch that the flags name, or that MODEL_DIR remembers until its first checkpoint; None if there is none.

    Raises:
      UserError: there is no such checkpoint, or the flag does not go with another.
    """
    from bertfam.errors import UserError
    from bertfam.training.checkpoints import selection
    from bertfam.training.model_dir import saved_init_flags
    from bertfam.training.warm_start.branch import Branch

    given, saved = getattr(args, BRANCH, None), saved_init_flags(model_dir).get(BRANCH)
    if given and args.init_from:
        raise UserError("--branch_from and --init_from both say what a new run starts from; give one of them")
    if selection.newest(model_dir) is not None:
        if given:
            _check_branched(given, saved, model_dir)
        return None
    name = given or _saved_branch(saved, model_dir)
    if name is None:
        return None
    flags.import_modules(args)
    check_other_folder(name.folder, model_dir, "--branch_from")
    (step,) = name.resolve()
    assert step is not None
    return Branch.open(to_path(name.folder), step)


def _saved_branch(text: str | None, model_dir: Path) -> CheckpointName | None:
    """Parse the branch that MODEL_DIR remembers."""
    from bertfam.errors import UserError

    try:
        return exact_checkpoint(text) if text else None
    except argparse.ArgumentTypeError as error:
        raise UserError(f"{model_dir}: --branch_from={text}: {error}") from error


def _check_branched(given: CheckpointName, saved: str | None, model_dir: Path) -> None:
    """Raise UserError if a run with a checkpoint is no branch of the given one."""
    from bertfam.errors import UserError

    fix = "leave --branch_from out to resume it, or name another --model_dir to start a new run"
    own = _saved_branch(saved, model_dir)
    if own is None:
        raise UserError(f"--branch_from={given}: the run in {model_dir} was started without it; {fix}")
    if (*given.resolve(),) != own.steps or os.path.basename(own.folder) != os.path.basename(identity(given.folder)):
        raise UserError(f"--branch_from={given}: the run in {model_dir} goes on from {saved}; {fix}")


@dataclass(frozen=True)
class InitFlags:
    """Values of the warm-start flags.

    Attributes:
      init_from: the folder of the model to start from.
      init_parts: the parts to use, with commas between; None: all that both models have.
      init_new_rows: "mean" or "random"; None: "mean".
      init_optimizer: whether to use the optimizer's moments too.
      init_grow: "stack" or "repeat", to start a larger model; None: the run has the sizes of the folder's.
    """

    init_from: str | None
    init_parts: str | None
    init_new_rows: str | None
    init_optimizer: bool
    init_grow: Literal["stack", "repeat"] | None = None

    @classmethod
    def from_args(cls, args: argparse.Namespace) -> InitFlags:
        """Read the flags of a command."""
        return cls(*(getattr(args, name) for name in NAMES))

    @property
    def is_given(self) -> bool:
        """True if the command has any of these flags."""
        return any(getattr(self, name) for name in NAMES)

    def updated(self, saved: Mapping[str, Any]) -> InitFlags:
        """Return these flags with those that MODEL_DIR has saved in their place."""
        return dataclasses.replace(self, **{name: saved[name] for name in NAMES if name in saved})

    def open(
        self, run: Run, aux: Any, vocabulary: Vocabulary, model_dir: Path, *, has_model: bool, resumes: bool
    ) -> WarmStart | None:
        """Read the warm start of a run: that of the flags, or else the objective's own; None if there is neither.

        Args:
          run: the sized run.
          aux: what its objective reads and does not train.
          vocabulary: the run's vocabulary.
          model_dir: the folder of the run.
          has_model: True if the folder has a checkpoint; there is no warm start then.
          resumes: True if that checkpoint has the state of training, so that the run resumes whatever the flags say.

        Raises:
          UserError: the flags do not go together, or do not fit MODEL_DIR.
        """
        from bertfam.errors import UserError
        from bertfam.training.warm_start.parameters import objective_warm_start, read_warm_start

        for name in NAMES[1:]:
            if getattr(self, name) and not self.init_from:
                raise UserError(f"--{name} requires --init_from; give that too, or leave it out")
        if self.init_from and has_model and not resumes:
            raise UserError(f"{model_dir} already holds a model to start from; leave --init_from out")
        if has_model:
            return None
        if not self.init_from:
            return objective_warm_start(run, aux, vocabulary)
        means = self.init_new_rows != "random"
        optimizer, grow = self.init_optimizer, self.init_grow
        return read_warm_start(self.init_from, self.init_parts, run, vocabulary, means=means, optimizer=optimizer, grow=grow)

    def check_resumes(self, model_dir: Path, saved: Mapping[str, Any]) -> None:
        """Raise UserError if a run with a checkpoint was started otherwise than these flags say.

        Args:
          model_dir: the folder of the run.
          saved: the flags that it was started with, {} without --init_from. A folder that has been moved since may have any path.
        """
        from bertfam.errors import UserError, warn

        if not self.init_from:
            return
        fix = "leave --init_from out to resume it, or name another --model_dir to start a new run"
        if not saved:
            raise UserError(f"--init_from={self.init_from}: the run in {model_dir} started from a new model; {fix}")
        first = str(saved["init_from"])
        for name in NAMES[1:]:
            given, before = getattr(self, name), saved.get(name) or _DEFAULTS.get(name)
            if given and given != before:
                flag, value = f"--{name}", "" if given is True else f"={given}"
                start = f"with {flag}={before}" if before else f"without {flag}"
                raise UserError(f"{flag}{value}: the run in {model_dir} started from {first} {start}; {fix}")
        if identity(first) == identity(self.init_from):
            return
        if to_path(first).exists():
            raise UserError(f"--init_from={self.init_from}: the run in {model_dir} started from {first}; {fix}")
        if os.path.basename(first) != os.path.basename(identity(self.init_from)):
            warn([f"the run in {model_dir} started from {first}, which is gone, and resumes; {self.init_from} is not used"])

    def record(self) -> dict[str, Any] | None:
        """Return the flags to save in MODEL_DIR; None if --init_from is not given."""
        if not self.init_from:
            return None
        absolute = str(to_path(self.init_from).absolute())  # to resume from another working folder too
        return {name: getattr(self, name) for name in NAMES} | {"init_from": absolute}
