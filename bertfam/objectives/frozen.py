"""Frozen parameters, which training leaves as they are: they have no gradient and no optimizer state."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import traverse_util

from bertfam.errors import UserError
from bertfam.layers.stack import AXIS, FIRST
from bertfam.plurals import plural

Tree = Any
_EMBEDDINGS = "embeddings"


@dataclass(frozen=True)
class Frozen:
    """Parts of the parameters that are not trained.

    Attributes:
      parts: number of the lowest layers of each part that are frozen, with the embeddings below them; None: all of the part.
    """

    parts: Mapping[str, int | None] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash(frozenset(self.parts.items()))

    def trained(self, params: Tree) -> Tree:
        """Return the trained parameters, boxed or not: a tree without the frozen ones; of a stack the trained layers.

        Raises:
          UserError: a part has fewer layers than are to be frozen.
        """
        if not self.parts:
            return params
        flat, kept = traverse_util.flatten_dict(params), {}
        for path, leaf in flat.items():
            layers = self._frozen_layers(path, flat)
            if layers == 0:
                kept[path] = leaf
            elif layers is not None:
                kept[path] = _above(leaf, layers)
        return traverse_util.unflatten_dict(kept)

    def joined(self, trained: Tree, params: Tree) -> Tree:
        """Return parameters with those of a tree that `trained` made in their place; gradients flow into these alone."""
        if not self.parts:
            return trained
        flat, replaced = traverse_util.flatten_dict(params), traverse_util.flatten_dict(trained)
        for path, leaf in replaced.items():
            layers = self._frozen_layers(path, flat)
            flat[path] = jnp.concatenate([flat[path][:layers], leaf]) if layers else leaf
        return traverse_util.unflatten_dict(flat)

    def stopped(self, params: Tree) -> Tree:
        """Return the parameters without gradients into the frozen ones."""
        return self.joined(self.trained(params), jax.lax.stop_gradient(params)) if self.parts else params

    def kept(self, new: Tree, old: Tree, params: Tree) -> Tree:
        """Return a tree with the values of `old` at frozen parameters and those of `new` elsewhere.

        Args:
          new: tree that has subtrees with the structure of `params`, or with the nodes of a moment at each of its leaves, such as
            the state of an optimizer; leaves that belong to no parameter are never frozen.
          old: tree of the same structure.
          params: parameters without layers cut off.
        """
        if not self.parts:
            return new
        flat = traverse_util.flatten_dict(params)

        def leaf(path: tuple[Any, ...], new: Any, old: Any) -> Any:
            place = _place(path, flat)
            layers = self._frozen_layers(place, flat) if place else 0
            if layers == 0:
                return new
            return old if layers is None else jnp.concatenate([old[:layers], new[layers:]])

        return jax.tree_util.tree_map_with_path(leaf, new, old)

    def _frozen_layers(self, path: tuple[str, ...], flat: Mapping[tuple[str, ...], Any]) -> int | None:
        """Return the number of frozen layers of a parameter's stack, 0 where it is trained and None where all of it is frozen."""
        if path[0] not in self.parts:
            return 0
        count = self.parts[path[0]]
        if count is None or _EMBEDDINGS in path:
            return None
        stack = next((name for name in (FIRST, AXIS) if name in path), None)
        if stack is None:
            return 0
        sizes = {name: _layers(flat, path[: path.index(stack)], name) for name in (FIRST, AXIS)}
        if count > sum(sizes.values()):
            raise UserError(
                f"{count} layers of the {path[0]} are to be frozen, which has {plural(sum(sizes.values()), 'layer')} with "
                "parameters of its own; freeze fewer"
            )
        own = count - sizes[FIRST] if stack == AXIS else count
        if own >= sizes[stack]:
            return None
        is_shared = nn.meta.unbox(flat[path]).shape[0] < sizes[stack]  # by all layers, of which some are trained
        return 0 if is_shared else max(own, 0)


def _place(path: tuple[Any, ...], flat: Mapping[tuple[str, ...], Any]) -> tuple[str, ...] | None:
    """Return the path of the parameter that a leaf of another tree belongs to; None if it belongs to none."""
    names = [str(key.key) if isinstance(key, jax.tree_util.DictKey) else "" for key in path]
    ranges = ((start, stop) for start in range(len(names)) for stop in range(len(names), start, -1))
    return next((place for start, stop in ranges if (place := tuple(names[start:stop])) in flat), None)


def at_trained(tree: Tree, trained: Tree) -> Tree:
    """Return the leaves of a tree with the structure of the parameters, such as their shardings, at the trained parameters."""
    flat = traverse_util.flatten_dict(tree)
    return traverse_util.unflatten_dict({path: flat[path] for path in traverse_util.flatten_dict(trained)})


def _layers(flat: Mapping[tuple[str, ...], Any], network: tuple[str, ...], stack: str) -> int:
    """Return the number of layers of a stack of a network, 0 if it has no such stack."""
    prefix = (*network, stack)
    return max((nn.meta.unbox(leaf).shape[0] for path, leaf in flat.items() if path[: len(prefix)] == prefix), default=0)


def _above(leaf: Any, layers: int) -> Any:
    if isinstance(leaf, nn.LogicallyPartitioned):
        return leaf.replace_boxed(leaf.unbox(apply_constraint=False)[layers:])
    return leaf[layers:]
