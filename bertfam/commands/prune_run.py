"""Body of `bertfam prune`."""

import argparse
import functools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import jax
import numpy as np

from bertfam.analysis.importance import least_important, most_important
from bertfam.commands import flags
from bertfam.commands.importance_text import open_importance, open_scorer
from bertfam.config import Config, load
from bertfam.config.parse import Override
from bertfam.data.vocabularies import Vocabulary
from bertfam.errors import UserError
from bertfam.models import pruning
from bertfam.models.pruning import HEADS, NEURONS
from bertfam.objectives.fine_tuning.gates import GATES, HeadGates
from bertfam.objectives.fine_tuning.lora import ADAPTERS
from bertfam.plurals import plural
from bertfam.storage.files import new_folder, write_text
from bertfam.storage.json_values import json_value
from bertfam.storage.paths import to_path
from bertfam.training.checkpoints.weights import ModelFiles, write_params
from bertfam.training.model_dir import open_model
from bertfam.training.run import Run

RECORD = "prune.json"


@dataclass(frozen=True)
class Model:
    """Model that is pruned.

    Attributes:
      run: its run, with the vocabulary's size.
      params: its parameters.
      step: step of the checkpoint.
      vocabulary: its vocabulary.
      config: the configuration of the run.
    """

    run: Run
    params: Any
    step: int
    vocabulary: Vocabulary
    config: Config

    @property
    def boxed(self) -> Any:
        """Shapes of the parameters, boxed with logical axis names."""
        return {name: part for name, part in self.run.boxed_params.items() if name in self.params}

    @property
    def model(self) -> Any:
        """Config of the network."""
        return self.run.objective.model


def prune(args: argparse.Namespace) -> int:
    """Prune and print the scores; return the exit status."""
    flags.prepare_model(args)
    opened = open_model(args.model_dir, flags.step_of(args), average=args.average)
    _check_networks(args, opened.run, opened.params)
    path = str(to_path(args.model_dir) / "config.gin")
    model = Model(opened.run, opened.params, opened.step, opened.vocabulary, load([path], saved=[path]))
    files = ModelFiles(args.model_dir)
    score = None if args.skip_evaluation else open_scorer(args, model.run, model.vocabulary)
    before = _facts(model, score)
    removed: list[str] = []
    for step in (_close_gates, _drop_layers, _remove_heads, _remove_neurons, _zero_weights):
        pruned = step(args, model)
        if pruned is not None:
            model, words = pruned
            removed.append(words)
    if score is not None:
        score = open_scorer(args, model.run, model.vocabulary)
    after = _facts(model, score)
    record = {"model": str(args.model_dir), "step": model.step, "removed": removed, "before": before, "after": after}
    _write(args.output, files, model, record)
    if args.json:
        print(json.dumps(json_value(record)))
    else:
        print("\n".join([*(f"removed {words}" for words in removed), *_lines(before, after)]))
        print(f"wrote {args.output}, a model at its step 0")
    return 0


def _check_networks(args: argparse.Namespace, run: Run, params: Any) -> None:
    networks = run.objective.networks
    if len(networks) != 1:
        names = ", ".join(networks)
        raise UserError(
            f"{args.model_dir} has several networks, {names}: export it, import the folder of one of them, and prune that"
        )
    if ADAPTERS in params:
        raise UserError(f"{args.model_dir} was trained with --lora, and kernels with adapters cannot be pruned: train without")
    if (GATES in params) != args.gates:
        fix = "--gates removes the closed ones" if GATES in params else "leave --gates out, or fine-tune with FineTuning.gates"
        raise UserError(f"{args.model_dir} has {'' if GATES in params else 'no '}gates of heads: {fix}")


def _close_gates(args: argparse.Namespace, model: Model) -> tuple[Model, str] | None:
    """Multiply the gates of heads into their kernels, and remove the heads whose gates are closed."""
    if not args.gates:
        return None
    objective: Any = model.run.objective
    gates: HeadGates = objective.gates
    values = {site: np.asarray(own) for site, own in gates.values(model.params).items()}
    merged = _configured(model, "FineTuning.gates = None", params=gates.merged(model.params))
    removed = {site: own == 0 for site, own in values.items()}
    params = pruning.masked(merged.boxed, merged.params, removed, HEADS)
    closed, total = (sum(own.size if count else own.sum() for own in removed.values()) for count in (False, True))
    words = f"{closed} of {plural(total, 'head')}, whose gates are closed"
    if args.form == "masked":
        return replace(merged, params=params), f"{words}, as zeros"
    left = max(1, *(int((own > 0).sum(axis=1).max()) for own in values.values()))
    config = pruning.with_heads(merged.model, merged.boxed, left)
    params = pruning.compact(merged.boxed, params, most_important(values, left), HEADS)
    return _changed(merged, config, params), f"{words}; each layer keeps {left}, zeros among them"


def _drop_layers(args: argparse.Namespace, model: Model) -> tuple[Model, str] | None:
    """Remove layers."""
    if args.layers is None:
        return None
    kept = {
        network: kept_layers(count, args.layers, args.drop or "top")
        for network, count in pruning.network_layers(model.model, model.boxed).items()
    }
    config = pruning.with_layers(model.model, kept)
    params = pruning.keep_layers(model.boxed, model.params, kept)
    words = {" ".join(network): ", ".join(str(layer + 1) for layer in layers) for network, layers in kept.items()}
    described = "; ".join(f"the {network} keeps {layers}" for network, layers in words.items())
    return _changed(model, config, params), f"{plural(args.layers, 'layer')}: {described}"


def kept_layers(count: int, removed: int, drop: str) -> list[int]:
    """Return the layers that are left, from 0 (Sajjad et al. 2023, section 3).

    Args:
      count: number of layers.
      removed: number of layers to remove.
      drop: their place: "top", "alternate", "symmetric" or "bottom".

    Raises:
      UserError: there are not as many.
    """
    most = count // 2 if drop == "alternate" else count - 1
    if removed > most:
        raise UserError(f"--layers={removed} is more than {most} of {plural(count, 'layer')}: lower it")
    below = (count - removed + 1) // 2
    dropped = {
        "top": range(count - removed, count),
        "alternate": range(count - 1, count - 1 - 2 * removed, -2),
        "symmetric": range(below, below + removed),
        "bottom": range(removed),
    }[drop]
    return [layer for layer in range(count) if layer not in dropped]


def _remove_heads(args: argparse.Namespace, model: Model) -> tuple[Model, str] | None:
    """Remove or mask the least important heads."""
    if args.heads is None:
        return None
    importance = open_importance(args, model.run, model.vocabulary)
    boxed, own = model.boxed, pruning.sites(model.boxed, HEADS)
    if args.form == "masked":
        total = sum(layers * heads for layers, heads in own.values())
        count = round(args.heads * total)
        _check_removes("heads", args.heads, count, plural(total, "head"))
        params = pruning.masked(boxed, model.params, least_important(importance(model.params).normalised, count), HEADS)
        return replace(model, params=params), f"{count} of {plural(total, 'head')}, which are masked"
    heads = next(iter(own.values()))[1]
    left = pruning.left(heads, args.heads)
    _check_removes("heads", args.heads, heads - left, f"{plural(heads, 'head')} of each layer")
    config = pruning.with_heads(model.model, boxed, left)
    params = pruning.compact(boxed, model.params, most_important(importance(model.params).normalised, left), HEADS)
    return _changed(model, config, params), f"{heads - left} of {plural(heads, 'head')} of each layer"


def _check_removes(flag: str, share: float, removed: int, units: str) -> None:
    """Raise UserError for a share that rounds to no unit."""
    if not removed:
        raise UserError(f"--{flag}={share:g} removes none of {units}: raise it, or leave it out")


def _remove_neurons(args: argparse.Namespace, model: Model) -> tuple[Model, str] | None:
    """Remove the least important neurons of feed-forward networks."""
    if args.neurons is None:
        return None
    importance = open_importance(args, model.run, model.vocabulary, NEURONS)
    config = pruning.with_neurons(model.model, args.neurons)
    before, after = model.model.feed_forward_size, config.feed_forward_size
    units = f"{plural(before, 'neuron')} of each feed-forward network"
    _check_removes("neurons", args.neurons, before - after, units)
    kept = {
        site: most_important({site: values}, pruning.left(values.shape[1], args.neurons))[site]
        for site, values in importance(model.params, NEURONS).normalised.items()
    }
    params = pruning.compact(model.boxed, model.params, kept, NEURONS)
    return _changed(model, config, params), f"{before - after:,} of {units}"


def _zero_weights(args: argparse.Namespace, model: Model) -> tuple[Model, str] | None:
    """Set the weights of the least magnitude to zero."""
    if args.weights is None:
        return None
    scope: pruning.Scope = args.scope or "model"
    params = pruning.smallest_zero(model.params, args.weights, scope)
    return replace(model, params=params), f"{args.weights:.0%} of the weights in the layers' kernels, by magnitude in the {scope}"


def _changed(model: Model, config: Any, params: Any) -> Model:
    """Return the model with another config of its network; raise UserError if its configuration cannot state it."""
    name = type(config).__name__
    edits = [
        f"{name}.{field.name} = {getattr(config, field.name)!r}"
        for field in fields(config)
        if getattr(config, field.name) != getattr(model.model, field.name)
    ]
    changed = _configured(model, *edits, params=params)
    if changed.model != config:
        raise UserError(f"the configuration of this model has several {name}, and pruning would change them all")
    return changed


def _configured(model: Model, *lines: str, params: Any) -> Model:
    """Return the model with other parameters, and lines of gin that change its configuration."""
    edits = [Override(line, "bertfam prune") for line in lines]
    changed = functools.reduce(Config.with_binding, edits, model.config)
    run = changed.build("Run").fitted(model.vocabulary).at(model.step)
    return replace(model, run=run, params=params, config=changed)


def _facts(model: Model, score: Callable[[Any], dict[str, float]] | None) -> dict[str, Any]:
    """Return the size of a model, and its scores."""
    leaves = jax.tree.leaves(model.params)
    count = sum(math.prod(leaf.shape) for leaf in leaves)
    zeros = sum(int((jax.numpy.asarray(leaf) == 0).sum()) for leaf in leaves)
    size = {"parameters": count, "zeros": zeros, "megabytes": sum(leaf.nbytes for leaf in leaves) / 1e6}
    return size | {"scores": score(model.params) if score else {}}


def _lines(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return the table of both models."""
    rows = {name: (f"{before[name]:,}", f"{after[name]:,}") for name in ("parameters", "zeros")}
    rows["megabytes"] = (f"{before['megabytes']:.1f}", f"{after['megabytes']:.1f}")
    scores = after["scores"]  # without the number of open heads, where gates were closed
    rows |= {name: (f"{value:.4f}", f"{scores[name]:.4f}") for name, value in before["scores"].items() if name in scores}
    return [
        f"{'':<16}  {'before':>14}  {'after':>14}",
        *(f"{name:<16}  {old:>14}  {new:>14}" for name, (old, new) in rows.items()),
    ]


def _write(output: str, files: ModelFiles, model: Model, record: dict[str, Any]) -> None:
    """Write the model folder."""
    with new_folder(output) as folder:
        files.write(folder, model.config.complete("Run").text())
        write_text(folder / RECORD, json.dumps(json_value(record), indent=1) + "\n")
        write_params(folder, model.params)
