"""Warm start of a run from another model's parameters: all shared parts or some, also across vocabularies."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flax import traverse_util

from bertfam.data.vocabularies import Vocabulary
from bertfam.data.vocabularies.matching import Origins, match, same
from bertfam.errors import UserError
from bertfam.models.conversion import Conversion
from bertfam.models.growth import SIZES, Depth, Growth
from bertfam.objectives.fine_tuning.objective import FineTuning
from bertfam.plurals import plural
from bertfam.training.model_dir import check_floats
from bertfam.training.run import Run, check_same_network
from bertfam.training.state import TrainState
from bertfam.training.trained_networks import Network, read_networks, read_towers
from bertfam.training.trainer import Trainer
from bertfam.training.warm_start import optimizer_state, rows


@dataclass(frozen=True)
class WarmStart:
    """Initial parameters, and optionally optimizer moments, from another model.

    A piece that the other vocabulary lacks starts with the mean of the rows, and of the output biases, of the pieces that spell
    it there. Its logit is then the mean of theirs, whatever the hidden state.

    Attributes:
      folder: folder of the other model.
      params: parts of its parameters that are copied, NumPy arrays.
      origins: rows of its tables from which the rows of this run's tokens start.
      optimizer: its optimizer state, NumPy arrays by path, from which the moments of these parts are copied; None: a new state.
      converted: what has been converted, in words.
      new: parts of this run's parameters that are initialised.
      others: warm starts of networks that start from further models, which have other parts of the parameters.
    """

    folder: str
    params: dict[str, Any]
    origins: Origins
    optimizer: dict[tuple[str, ...], np.ndarray] | None = None
    converted: Sequence[str] = ()
    new: Sequence[str] = ()
    others: Sequence["WarmStart"] = ()

    def state(self, trainer: Trainer) -> TrainState:
        """Make a fresh state with the copied parameters; rows of tokens without origins are initialised."""
        boxed = traverse_util.flatten_dict(trainer.run.boxed_params, sep="/")
        starts = [(start.origins, traverse_util.flatten_dict(start.params, sep="/")) for start in (self, *self.others)]
        state = trainer.new_state([path for _, given in starts for path in given if rows.replaces(boxed[path].names)])
        fresh = traverse_util.flatten_dict(state.params, sep="/")
        copied = {
            path: rows.copied(boxed[path].names, fresh[path], value, origins)
            for origins, given in starts
            for path, value in given.items()
        }
        if self.optimizer is not None:
            moments = optimizer_state.transfer(trainer, state.opt_state, self.optimizer, self.origins.of_known, self.params)
            state = state._replace(opt_state=moments)
        return trainer.with_params(state, traverse_util.unflatten_dict(fresh | copied, sep="/"))

    @property
    def description(self) -> str:
        """Line of the plan that describes the warm start."""
        if not self.params:
            return f"starts with the network and the vocabulary of {self.folder}; new {', '.join(self.new)}"
        new = f"; new {', '.join(self.new)}" if self.new else ""
        origins = f"of {self.origins.size:,} tokens {self.origins.describe()}"
        moments = "" if self.optimizer is None else "; with the optimizer's moments"
        converted = "".join(f"; {words}" for words in self.converted)
        others = "".join(f"; {', '.join(other.params)} from {other.folder}" for other in self.others)
        return f"starts from {self.folder}: {', '.join(self.params)}; {origins}{new}{converted}{moments}{others}"


def read_warm_start(
    folder: str,
    parts: str | None,
    run: Run,
    vocabulary: Vocabulary,
    *,
    means: bool = True,
    optimizer: bool = False,
    grow: Depth | None = None,
) -> WarmStart:
    """Read the model that a run starts from.

    Args:
      folder: MODEL_DIR or Hugging Face folder.
      parts: parts of the parameters to copy, separated by commas; "none": no part, so that the run has the network and the
        vocabulary of the folder with new parameters; None: all that both models have.
      run: sized run to start.
      vocabulary: vocabulary of the run.
      means: whether rows of pieces that the other vocabulary lacks start with the mean of the rows of the pieces that spell them
        there; otherwise they are initialised.
      optimizer: whether to copy the optimizer's moments too, which only a MODEL_DIR has.
      grow: how layers are added to a model that is smaller than that of the run; None: the run has its sizes.

    Raises:
      UserError: if there is no such model or part, the networks or the kinds of vocabularies differ, or there are no moments of
        this run's optimizer.
    """
    step = optimizer_state.step_with_state(folder) if optimizer else None
    models, networks = read_networks(folder, step=step), run.objective.networks
    for trained in (model.trained for model in models.values()):
        if trained is not None:
            check_floats(trained.run, folder, "to train it")
    # Networks with equal names, or else the first network of the other model.
    model, first = next(iter(models.values())), next(iter(networks))
    matched = {name: models[name] for name in networks if name in models}
    matched = matched or dict.fromkeys(run.objective.initialized_networks, model)
    theirs = run.objective.joined({name: model.params for name, model in matched.items()})
    ours = run.boxed_params
    other = _other_labels(run, model)
    names = parts.split(",") if parts else sorted((theirs.keys() & ours.keys()) - ({other.part} if other else set()))
    names = [] if parts == "none" else names
    for name in names:
        for params, owner in ((theirs, folder), (ours, "this run")):
            if name not in params:
                raise UserError(f"--init_parts={parts}: {owner} has no {name}; it has {', '.join(sorted(params))}")
        if other and name == other.part:
            _check_outputs(other, run, f"--init_parts={parts}: the {name} of {folder}")
    growth = Growth(model.config, networks[first], grow) if grow else None
    for name, network in matched.items():
        where = f"Run.objective.{'model' if name == first else name}"
        check_same_network(network.config, networks[name], folder, where, SIZES if grow else ())
    if growth:
        _check_growth(growth, folder, names, networks, optimizer=optimizer)
    if type(model.vocabulary) is not type(vocabulary):
        raise UserError(
            f"the vocabulary of {folder} is a {type(model.vocabulary).__name__} and that of this run a "
            f"{type(vocabulary).__name__}, whose pieces have other meanings; leave --vocab out to use that of {folder}, train "
            "with another of the same kind, or leave --init_from out"
        )
    origins = match(vocabulary, model.vocabulary)
    conversion, boxed = Conversion(model.config, networks[first]), {name: ours[name] for name in names}
    given = {name: theirs[name] for name in names}
    copies = conversion.params(boxed, growth.params(boxed, given) if growth else given)
    state = None if step is None else optimizer_state.read(folder, step, run, model.vocabulary, names, conversion)
    others = _other_starts(run, vocabulary, frozenset(names))
    started = {name for start in others for name in start.params}.union(names)
    new, rows_of = sorted(ours.keys() - started), origins if means else origins.of_known
    converted = [*(growth.describe() if growth else ()), *conversion.describe(boxed)]
    return WarmStart(folder, copies, rows_of, state, converted, new, others)


def _other_starts(run: Run, vocabulary: Vocabulary, copied: Collection[str]) -> list[WarmStart]:
    """Read the warm starts of `Objective.network_sources`, without the parts of parameters that are copied already."""
    starts, configs = [], run.objective.networks
    for name, source in run.objective.network_sources.items():
        networks = read_towers(source.folder, step=source.step, average=source.average)
        network = networks.get(name) or next(iter(networks.values()))
        check_same_network(network.config, configs[name], source.folder, f"the network {name} of Run.objective")
        own = {part: params for part, params in run.objective.joined({name: network.params}).items() if part in run.boxed_params}
        if own := {part: params for part, params in own.items() if part not in copied}:
            has_own = name in run.objective.vocabulary_folders
            origins = same(network.vocabulary.size) if has_own else match(vocabulary, network.vocabulary)
            starts.append(WarmStart(source.folder, own, origins))
    return starts


def _check_growth(growth: Growth, folder: str, names: Sequence[str], networks: Mapping[str, Any], *, optimizer: bool) -> None:
    """Raise UserError if a model cannot grow from the parts of that in `folder`."""
    if not names:
        raise UserError("--init_grow is of the parts that are copied, and --init_parts=none copies none; leave one of them out")
    if optimizer:
        raise UserError("--init_optimizer does not go with --init_grow: the moments of a larger model are new; leave it out")
    if len(networks) > 1:
        raise UserError(f"--init_grow is of models with one network, and this run trains {', '.join(networks)}; leave it out")
    growth.check(folder)


def _other_labels(run: Run, model: Network) -> FineTuning | None:
    """Return the objective of a fine-tuned model that predicts other labels than the run; None for any other model."""
    objective = model.trained and model.trained.run.objective
    if not isinstance(objective, FineTuning) or not isinstance(run.objective, FineTuning):
        return None
    return None if objective.head.predicts_as(run.objective.head) else objective


def _check_outputs(other: FineTuning, run: Run, subject: str) -> None:
    """Raise UserError if another head has not as many outputs as that of the run."""
    assert isinstance(run.objective, FineTuning)
    outputs = run.objective.head.outputs
    if other.head.outputs != outputs:
        raise UserError(
            f"{subject} has {plural(other.head.outputs, 'output')} and that of this run {outputs}; leave {other.part} out, which "
            "is then new"
        )


def objective_warm_start(run: Run, aux: Any, vocabulary: Vocabulary) -> WarmStart | None:
    """Return the warm start that the objective makes from `aux`; None if the run starts from new parameters."""
    initial = run.objective.initial_params(aux)
    if initial is not None:
        return WarmStart(*initial, same(vocabulary.size))
    return next(iter(_other_starts(run, vocabulary, ())), None)
