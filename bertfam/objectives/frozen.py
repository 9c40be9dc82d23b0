"""Frozen parameters, which training leaves as they are: they have no gradient and no optimizer state."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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
