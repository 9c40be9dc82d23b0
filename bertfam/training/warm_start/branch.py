"""Branch of a run: another run goes on from one of its checkpoints, with its step, parameters and optimizer state."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import jax
from flax import linen as nn

from bertfam.data.vocabularies import Vocabulary
from bertfam.errors import UserError
from bertfam.training.checkpoints import Checkpoints, has_training_state, selection
from bertfam.training.model_dir import read_run
from bertfam.training.run import Run, check_begun_stages, check_same_network
from bertfam.training.state import TrainState
from bertfam.training.trainer import Trainer

FLAG = "--branch_from"
_ITEMS = ("params", "rest")


@dataclass(frozen=True)
class Branch:
    """Checkpoint of a run from which another run goes on.

    Attributes:
      folder: MODEL_DIR of the run.
      step: step of the checkpoint.
    """

    folder: Path
    step: int

    @classmethod
    def open(cls, folder: Path, step: int) -> Self:
        """Open a checkpoint of a run.

        Raises:
          UserError: the folder is no run's, or keeps no checkpoint of that step with its training state.
        """
        named = f"{FLAG}={folder}@{step}"
        read_run(folder)
        try:
            selection.find(folder, step, _ITEMS)
        except UserError as error:
            raise UserError(f"{named}: {error}") from error
        if not has_training_state(folder, step):
            raise UserError(
                f"{named}: it holds an imported model without a training state; start from it by --init_from={folder}"
            )
        return cls(folder, step)

    @property
    def text(self) -> str:
        """DIR@STEP with an absolute folder."""
        return f"{self.folder.absolute()}@{self.step}"

    @property
    def description(self) -> str:
        """Line of the plan that describes the start."""
        return f"goes on from step {self.step:,} of {self.folder}, with its optimizer state"

    def check(self, run: Run, vocabulary: Vocabulary) -> None:
        """Raise UserError if a sized run cannot go on from the checkpoint.

        Args:
          run: the run.
          vocabulary: its vocabulary.
        """
        from bertfam.data import vocabularies

        own = vocabularies.load(self.folder / "vocab")
        otherwise = f"or start from the weights alone by --init_from={self.folder}"
        if own.fingerprint != vocabulary.fingerprint:
            raise UserError(
                f"{FLAG}={self.folder}@{self.step}: that run has another vocabulary; leave --vocab out and name a token cache of "
                f"{self.folder / 'vocab'}, {otherwise}"
            )
        old = read_run(self.folder).fitted(own)
        for name, network in run.objective.networks.items():
            if name in old.objective.networks:
                check_same_network(old.objective.networks[name], network, str(self.folder), flag=FLAG)
        _check_parameters(self, old, run, otherwise)
        _check_optimizer(self, old, run, otherwise)
        if run.total_steps <= self.step:
            raise UserError(
                f"{FLAG}={self.folder}@{self.step}: Run.stages have {run.total_steps:,} updates, which are made already; their "
                f"steps count from the start of {self.folder}, so give more, as --gin.Stage.steps={2 * self.step}"
            )
        check_begun_stages(old, run, self.step, otherwise)

    def state(self, trainer: Trainer) -> TrainState:
        """Restore the state on the mesh of the new run; a moving average that the other run lacks starts from the parameters."""
        has_average = "average" in {path.name for path in (self._checkpoint).iterdir()}
        like = trainer.abstract_state if has_average else trainer.abstract_state._replace(average={})
        checkpoints = Checkpoints(self.folder, read_only=True)
        state = checkpoints.restore(self.step, like)
        checkpoints.close()
        if trainer.abstract_state.average and not has_average:
            return trainer.with_params(state._replace(average=trainer.abstract_state.average), state.params)
        return state

    @property
    def _checkpoint(self) -> Path:
        return selection.folder(self.folder) / str(self.step)


def _check_parameters(branch: Branch, old: Run, run: Run, otherwise: str) -> None:
    """Raise UserError if the runs have other parameters."""
    ours, theirs = _leaves(run.boxed_params), _leaves(old.boxed_params)
    where = f"{FLAG}={branch.folder}@{branch.step}"
    if missing := sorted({name.partition("/")[0] for name in ours.keys() - theirs.keys()}):
        raise UserError(f"{where}: this run has {missing[0]}, which that run lacks; use the objective of that run, {otherwise}")
    if further := sorted({name.partition("/")[0] for name in theirs.keys() - ours.keys()}):
        raise UserError(f"{where}: that run has {further[0]}, which this one lacks; use the objective of that run, {otherwise}")
    for name, shape in ours.items():
        if theirs[name] != shape:
            raise UserError(f"{where}: {name} has the shape {theirs[name][0]} there and {shape[0]} here; {otherwise[3:]}")


def _check_optimizer(branch: Branch, old: Run, run: Run, otherwise: str) -> None:
    """Raise UserError if the optimizers have other states."""
    names = [type(own.optimizer).__name__ for own in (old, run)]
    if names[0] == names[1] and _leaves(old.boxed_state.opt_state) == _leaves(run.boxed_state.opt_state):
        return
    change = (
        f"was {names[0]} there and is {names[1]} now" if names[0] != names[1] else f"is {names[0]} with moments of another form"
    )
    raise UserError(f"{FLAG}={branch.folder}@{branch.step}: Run.optimizer {change}; use that of {branch.folder}, {otherwise}")


def _leaves(boxed: Any) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return the shape and the dtype of each leaf by its path."""
    leaves = jax.tree_util.tree_leaves_with_path(nn.meta.unbox(boxed))
    return {jax.tree_util.keystr(path, simple=True, separator="/"): (leaf.shape, str(leaf.dtype)) for path, leaf in leaves}
