"""A new run that starts from another model's parameters: all that both have, or some parts, over another vocabulary too."""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from flax import linen as nn
from flax import traverse_util

from bertfam import api
from bertfam.data.vocabularies import Vocabulary
from bertfam.errors import UserError
from bertfam.training.run import Run, check_same_network
from bertfam.training.state import TrainState
from bertfam.training.trainer import Trainer


@dataclass(frozen=True)
class Start:
    """Parameters that a run takes over.

    Attributes:
      folder: of the model that they are of.
      params: the parts that are taken, whole or not, NumPy arrays.
      known: int32[tokens, 2], the rows of the tokens that both vocabularies have: theirs, ours.
    """

    folder: str
    params: dict[str, Any]
    known: np.ndarray

    def state(self, trainer: Trainer) -> TrainState:
        """A fresh state with them; rows of tokens that the other model does not know are new."""
        state, run = trainer.new_state(), trainer.run
        boxed, fresh, given = (traverse_util.flatten_dict(tree, sep="/") for tree in (_boxed(run), state.params, self.params))
        theirs, ours = self.known.T

        def take(box: nn.LogicallyPartitioned, fresh: jax.Array, value: np.ndarray) -> jax.Array:
            if "vocab" not in box.names:
                return jax.make_array_from_callback(fresh.shape, fresh.sharding, lambda index: value[index])
            axis = box.names.index("vocab")
            put = jax.jit(lambda fresh, rows: fresh.at[(*[slice(None)] * axis, ours)].set(rows), out_shardings=fresh.sharding)
            return put(fresh, value.take(theirs, axis))

        taken = {path: take(boxed[path], fresh[path], value) for path, value in given.items()}
        return trainer.with_params(state, traverse_util.unflatten_dict(fresh | taken, sep="/"))


def read_start(folder: str, parts: str | None, run: Run, vocabulary: Vocabulary) -> Start:
    """Reads the model that a run starts from.

    Args:
      folder: a MODEL_DIR or a Hugging Face folder.
      parts: what to take, with commas between; None: all that both have.
      run: the sized run.
      vocabulary: the run's.

    Raises:
      UserError: there is no such model or part, the networks are not the same, or the vocabularies write words otherwise.
    """
    models, networks = api.load_networks(folder), run.objective.networks
    # Networks of the same names, or the first of theirs for the first of ours.
    model, first = next(iter(models.values())), next(iter(networks))
    taken = {name: models[name] for name in networks if name in models} or {first: model}
    theirs = run.objective.joined({name: model.params for name, model in taken.items()})
    ours = _boxed(run)
    names = parts.split(",") if parts else sorted(theirs.keys() & ours.keys())
    for name in names:
        for there, whose in ((theirs, folder), (ours, "this run")):
            if name not in there:
                raise UserError(f"--init_parts={parts}: {whose} has no {name}; it has {', '.join(sorted(there))}")
    for name, other in taken.items():
        check_same_network(other.config, networks[name], folder, f"Run.objective.{'model' if name == first else name}")
    if type(model.vocabulary) is not type(vocabulary):
        raise UserError(
            f"the vocabulary of {folder} is a {type(model.vocabulary).__name__} and this run's a {type(vocabulary).__name__}, "
            "whose pieces have other meanings; train with a vocabulary of the same kind, or leave --init_from out"
        )
    rows = {piece: row for row, piece in enumerate(model.vocabulary.pieces(range(model.vocabulary.size)))}
    pieces = vocabulary.pieces(range(vocabulary.size))
    known = np.array([(rows[piece], row) for row, piece in enumerate(pieces) if piece in rows], np.int32)
    return Start(folder, {name: jax.tree.map(np.asarray, theirs[name]) for name in names}, known.reshape(-1, 2))


def own_start(run: Run, aux: Any, vocabulary: Vocabulary) -> Start | None:
    """What a sized run takes of its `aux`, whose vocabulary is its own; None where it begins with new parameters."""
    begun = run.objective.begun(aux)
    if begun is None:
        return None
    return Start(*begun, np.repeat(np.arange(vocabulary.size, dtype=np.int32)[:, None], 2, axis=1))


def _boxed(run: Run) -> Any:
    """The shapes of a run's parameters with their logical axis names."""
    return jax.eval_shape(lambda key: run.objective.init(key, run.shape(0))[0], jax.random.key(0))
