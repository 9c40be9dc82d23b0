"""Removal of attention heads, of neurons of feed-forward networks and of layers from a trained model.

Heads and neurons are the units of a site, a module in all layers of a stack. Units are removed in two forms. In the compact form
every layer of every site loses equally many, and the arrays become smaller. In the masked form the units of any layer are
zero, and the arrays keep their shapes. The gradient of a masked head is zero too, as its values and its rows of the
output's kernel are both zero, so it stays masked when the model is trained further.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import jax
import numpy as np
from flax import traverse_util

from bertfam.errors import UserError
from bertfam.layers.stack import AXIS, FIRST

HEADS, NEURONS = "heads", "mlp"  # logical axes of the units
Site = tuple[str, ...]  # path of a module in all layers of a stack, such as ("encoder", "layers", "attention")
Path = tuple[str, ...]
Scope = Literal["model", "layer"]
_OUTPUT = ("output", "kernel")
_LAYERS = {"encoder": "num_encoder_layers"}  # fields of models with two stacks


def sites(boxed: Any, axis: str) -> dict[Site, tuple[int, int]]:
    """Return the numbers of layers and of units of each site.

    Args:
      boxed: parameters or their shapes, boxed with logical axis names.
      axis: `HEADS` or `NEURONS`.
    """
    flat = traverse_util.flatten_dict(boxed)
    outputs = {path[:-2]: box for path, box in flat.items() if path[-2:] == _OUTPUT and path[-4:-3] in ((AXIS,), (FIRST,))}
    # [layers, units, ..., embed]
    return {site: (_shape(box)[0], _shape(box)[1]) for site, box in outputs.items() if box.names[1] == axis}


def masked(boxed: Any, params: Any, removed: Mapping[Site, np.ndarray], axis: str) -> Any:
    """Return parameters in which units are zero.

    Args:
      boxed: shapes of the parameters, boxed with logical axis names.
      params: the parameters.
      removed: bool[layers, units] of each site.
      axis: logical axis of the units.
    """
    flat = traverse_util.flatten_dict(params)
    for path, place, site in _leaves(boxed, removed, axis):
        value = np.asarray(flat[path])
        # [layers, units] -> [layers, 1, ..., units, 1, ...]
        flat[path] = np.where(_along(removed[site], value.ndim, place), np.zeros((), value.dtype), value)
    return traverse_util.unflatten_dict(flat)


def compact(boxed: Any, params: Any, kept: Mapping[Site, np.ndarray], axis: str) -> Any:
    """Return parameters with some units alone; see `masked`. `kept` has the indices int[layers, units to keep] of each site."""
    flat = traverse_util.flatten_dict(params)
    for path, place, site in _leaves(boxed, kept, axis):
        value = np.asarray(flat[path])
        flat[path] = np.take_along_axis(value, _along(kept[site], value.ndim, place), place)
    return traverse_util.unflatten_dict(flat)


def smallest_zero(params: Any, share: float, scope: Scope) -> Any:
    """Return parameters in which a share of the weights in the kernels of all layers is zero, those of the least magnitude.

    Args:
      params: the parameters.
      share: share of the weights.
      scope: the weights among which magnitudes are compared: of the "model", or of each kernel of a "layer".
    """
    flat = traverse_util.flatten_dict(params)
    kernels = {path: np.asarray(value) for path, value in flat.items() if is_layer_kernel(path)}
    everywhere = np.concatenate([np.abs(value).ravel() for value in kernels.values()]) if scope == "model" else None
    for path, value in kernels.items():
        compared = np.abs(value).reshape(len(value), -1) if everywhere is None else everywhere[None]
        count = round(share * compared.shape[1])
        if count:
            threshold = np.partition(compared, count - 1, axis=1)[:, count - 1].reshape(-1, *(1,) * (value.ndim - 1))
            flat[path] = np.where(np.abs(value) <= threshold, np.zeros((), value.dtype), value)
    return traverse_util.unflatten_dict(flat)


def is_layer_kernel(path: Path) -> bool:
    """Return True for the path of a kernel in the layers of a stack."""
    return path[-1] == _OUTPUT[-1] and bool({AXIS, FIRST} & set(path))


def with_zero_heads(boxed: Any, params: Any) -> Any:
    """Return parameters with all heads of a larger model, whose boxed shapes are given; the heads that they lack are zero."""
    flat, own = traverse_util.flatten_dict(params), sites(boxed, HEADS)
    for path, place, site in _leaves(boxed, own, HEADS):
        value = np.asarray(flat[path])
        padding = [(0, own[site][1] - size if axis == place else 0) for axis, size in enumerate(value.shape)]
        flat[path] = np.pad(value, padding)
    return traverse_util.unflatten_dict(flat)


def keep_layers(boxed: Any, params: Any, kept: Mapping[Path, Sequence[int]]) -> Any:
    """Return parameters with some layers alone; parameters that all layers share stay as they are.

    Args:
      boxed: shapes of the parameters, boxed with logical axis names.
      params: the parameters.
      kept: layers to keep, from 0 in each network, by the path of the network.

    Raises:
      UserError: first layers of a stack of their own would be removed.
    """
    flat, boxes = traverse_util.flatten_dict(params), traverse_util.flatten_dict(boxed)
    counts = layer_counts(boxed)
    for path, box in boxes.items():
        stack = next((name for name in (FIRST, AXIS) if name in path), None)
        if stack is None or path not in flat:
            continue
        network = path[: path.index(stack)]
        first = counts[network].get(FIRST, 0)
        if list(kept[network][:first]) != list(range(first)):
            raise UserError("the first layer of this model has other parameters than the rest, and cannot be removed")
        if stack == AXIS and _shape(box)[0] == counts[network][AXIS] > 1:
            flat[path] = np.take(np.asarray(flat[path]), np.array(kept[network][first:]) - first, 0)
    return traverse_util.unflatten_dict(flat)


def layer_counts(boxed: Any) -> dict[Path, dict[str, int]]:
    """Return the number of layers of each stack whose layers have parameters of their own, by the path of the network."""
    counts: dict[Path, dict[str, int]] = {}
    for path, box in traverse_util.flatten_dict(boxed).items():
        for stack in (FIRST, AXIS):
            if stack in path:
                own = counts.setdefault(path[: path.index(stack)], {})
                own[stack] = max(own.get(stack, 0), _shape(box)[0])
    return counts


def network_layers(config: Any, boxed: Any) -> dict[Path, int]:
    """Return the number of layers of each network of a model, by its path; those that share all parameters count too."""
    counts = {network: sum(own.values()) for network, own in layer_counts(boxed).items()}
    return {network: config.num_layers if count == 1 else count for network, count in counts.items()}


def with_heads(config: Any, boxed: Any, heads: int) -> Any:
    """Return the config of the model with this number of heads in every attention, as wide as before.

    Raises:
      UserError: the family computes with the place of a head in its layer.
    """
    problem = _fixed_heads(config, boxed)
    if problem:
        raise UserError(f"heads of this model cannot be removed, since {problem}; give --form=masked")
    fields = {field.name for field in dataclasses.fields(config)}
    changes = {"num_heads": heads} | ({"head_size": config.head_dim} if "head_size" in fields else {})
    for name in ("num_encoder_heads", "num_key_value_heads"):
        if getattr(config, name, None) == config.num_heads:
            changes[name] = heads
    return dataclasses.replace(config, **changes)


def with_all_heads(config: Any, heads: int) -> Any:
    """Return the config of a model of `head_size` with `heads` heads in every attention, which fill the hidden states."""
    encoder = {"num_encoder_heads": heads} if getattr(config, "num_encoder_heads", None) else {}
    return dataclasses.replace(config, num_heads=heads, head_size=None, **encoder)


def _fixed_heads(config: Any, boxed: Any) -> str | None:
    """Say why no layer can have fewer heads; None if it can."""
    own = sites(boxed, HEADS)
    if len({heads for _, heads in own.values()}) > 1:
        return "encoder and decoder have other numbers of them"
    for path, box in traverse_util.flatten_dict(boxed).items():
        for place, name in enumerate(box.names):
            if name == HEADS:
                site = next((site for site in own if path[: len(site)] == site), None)
                if site is None:
                    return "all layers share the position biases of their heads"
                if _shape(box)[place] != own[site][1]:
                    return "several heads of queries share one of keys"
    return "its blocks are drawn for each layer and head" if _has_drawn_blocks(config) else None


def with_neurons(config: Any, share: float) -> Any:
    """Return the config of the model without a share of the neurons of each feed-forward network."""
    names = ("feed_forward_size", "encoder_feed_forward_size")
    changes = {name: left(size, share) for name in names if (size := getattr(config, name, None)) is not None}
    return dataclasses.replace(config, **changes)


def left(count: int, share: float) -> int:
    """Return how many of `count` units are left, at least one, when a share of them is removed."""
    return max(1, round(count * (1 - share)))


def _has_drawn_blocks(config: Any) -> bool:
    arrays = getattr(config, "layer_arrays", None)
    return arrays is not None and arrays(config.max_length) is not None


def with_layers(config: Any, kept: Mapping[Path, Sequence[int]]) -> Any:
    """Return the config of the model with some layers alone, by the path of their network, whose last name is its own.

    Raises:
      UserError: the family computes with the number of a layer.
    """
    if _has_drawn_blocks(config):
        raise UserError("layers of this model cannot be removed, since its blocks are drawn for each layer")
    changes: dict[str, Any] = {}
    for network, layers in kept.items():
        name = _LAYERS.get(network[-1], "")
        changes[name if hasattr(config, name) else "num_layers"] = len(layers)
        for field, values in getattr(config, "layer_fields", {}).items():
            changes[field] = tuple(values[layer] for layer in layers)
    return dataclasses.replace(config, **changes)


def _leaves(boxed: Any, wanted: Mapping[Site, Any], axis: str) -> Iterator[tuple[Path, int, Site]]:
    """Yield the path of each array of a site with the units along an axis, the number of that axis, and the site."""
    own = sites(boxed, axis)
    for path, box in traverse_util.flatten_dict(boxed).items():
        site = next((site for site in wanted if path[: len(site)] == site), None)
        if site is not None and axis in box.names:
            place = box.names.index(axis)
            if _shape(box)[place] == own[site][1]:
                yield path, place, site


def _along(values: np.ndarray, ndim: int, place: int) -> np.ndarray:
    """Reshape [layers, n] to `ndim` axes, with n along axis `place`."""
    shape = [1] * ndim
    shape[0], shape[place] = values.shape
    return values.reshape(shape)


def _shape(box: Any) -> tuple[int, ...]:
    value = box.value
    return tuple(value.shape) if isinstance(value, jax.ShapeDtypeStruct) else np.shape(value)
