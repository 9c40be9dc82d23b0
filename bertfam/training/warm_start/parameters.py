"""Warm start of a run from another model's parameters: all shared parts or some, also across vocabularies."""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from flax import linen as nn
from flax import traverse_util

from bertfam.data.vocabularies import Vocabulary
from bertfam.data.vocabularies.matching import Origins, match, same
from bertfam.errors import UserError
from bertfam.training.networks import read_networks
from bertfam.training.run import Run, check_same_network
from bertfam.training.state import TrainState
from bertfam.training.trainer import Trainer
from bertfam.training.warm_start import optimizer_state, rows


@dataclass(frozen=True)
class WarmStart:
    """Initial parameters, and optionally optimizer moments, from another model.

    A piece that the other vocabulary lacks begins with the mean of the rows, and of the output biases, of its old pieces: its
    logit is then the mean of theirs, whatever the hidden state.

    Attributes:
      folder: of the model that they are of.
      params: the parts that are taken, whole or not, NumPy arrays.
      origins: the rows of the other model's tables that those of this run's tokens begin from.
      optimizer: its optimizer's state, NumPy arrays by path, of which the moments of these parts are taken; None: a new one.
    """

    folder: str
    params: dict[str, Any]
    origins: Origins
    optimizer: dict[tuple[str, ...], np.ndarray] | None = None

    def state(self, trainer: Trainer) -> TrainState:
        """Make a fresh state with them; rows of tokens without origins are new."""
        state, run = trainer.new_state(), trainer.run
        boxed, fresh, given = (
            traverse_util.flatten_dict(tree, sep="/") for tree in (run.boxed_params(), state.params, self.params)
        )

        def take(box: nn.LogicallyPartitioned, fresh: jax.Array, value: np.ndarray) -> jax.Array:
            return rows.taken(box.names, fresh, value, self.origins)

        found = {path: take(boxed[path], fresh[path], value) for path, value in given.items()}
        if self.optimizer is not None:
            moments = optimizer_state.taken_over(trainer, state.opt_state, self.optimizer, self.origins.of_known, self.params)
            state = state._replace(opt_state=moments)
        return trainer.with_params(state, traverse_util.unflatten_dict(fresh | found, sep="/"))

    def told(self) -> str:
        """Describe what is used, as a line of the plan."""
        origins = f"of {self.origins.size:,} tokens {self.origins.describe()}"
        moments = "" if self.optimizer is None else "; the optimizer's moments come along"
        return f"starts from {self.folder}: {', '.join(self.params)}; {origins}{moments}"


def read_warm_start(
    folder: str, parts: str | None, run: Run, vocabulary: Vocabulary, *, means: bool = True, optimizer: bool = False
) -> WarmStart:
    """Read the model that a run starts from.

    Args:
      folder: a MODEL_DIR or a Hugging Face folder.
      parts: what to take, with commas between; None: all that both have.
      run: the sized run.
      vocabulary: the run's.
      means: whether rows of pieces that the other vocabulary lacks begin with the mean of their old pieces' rows, or as new.
      optimizer: whether to take its optimizer's moments too, which only a MODEL_DIR has.

    Raises:
      UserError: there is no such model or part, the networks are not the same, the vocabularies write words otherwise, or there
        are no moments of this run's optimizer.
    """
    step = optimizer_state.step_with_state(folder) if optimizer else None
    models, networks = read_networks(folder, step=step), run.objective.networks
    # Networks of the same names, or the first of theirs for the first of ours.
    model, first = next(iter(models.values())), next(iter(networks))
    found = {name: models[name] for name in networks if name in models} or {first: model}
    theirs = run.objective.joined({name: model.params for name, model in found.items()})
    ours = run.boxed_params()
    names = parts.split(",") if parts else sorted(theirs.keys() & ours.keys())
    for name in names:
        for there, whose in ((theirs, folder), (ours, "this run")):
            if name not in there:
                raise UserError(f"--init_parts={parts}: {whose} has no {name}; it has {', '.join(sorted(there))}")
    for name, other in found.items():
        check_same_network(other.config, networks[name], folder, f"Run.objective.{'model' if name == first else name}")
    if type(model.vocabulary) is not type(vocabulary):
        raise UserError(
            f"the vocabulary of {folder} is a {type(model.vocabulary).__name__} and this run's a {type(vocabulary).__name__}, "
            "whose pieces have other meanings; train with a vocabulary of the same kind, or leave --init_from out"
        )
    origins = match(vocabulary, model.vocabulary)
    params = {name: jax.tree.map(np.asarray, theirs[name]) for name in names}
    state = None if step is None else optimizer_state.read(folder, step, run, model.vocabulary.size, names)
    return WarmStart(folder, params, origins if means else origins.of_known, state)


def objective_warm_start(run: Run, aux: Any, vocabulary: Vocabulary) -> WarmStart | None:
    """Return the warm start that the objective takes from `aux`; None if the run starts from new parameters."""
    begun = run.objective.initial_params(aux)
    if begun is None:
        return None
    return WarmStart(*begun, same(vocabulary.size))
