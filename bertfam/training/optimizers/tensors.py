"""Description of parameters for optimizers: stacked layers, vectors and matrices.

Parameters of a stack are stored [layers, ...]. An optimizer whose update depends on a whole tensor treats each layer as a
tensor of its own, so that its updates are those of separately stored layers. The axes of an attention kernel group into two:
[embed, heads, head_dim] is the matrix [embed, heads * head_dim], and [heads, head_dim, embed] is [heads * head_dim, embed].
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from bertfam.layers.stack import AXIS, FIRST

Tree = Any
# Parameters that are never decayed, by the last name of their path, whatever their shape.
_NOT_DECAYED = ("bias", "scale")


@dataclass(frozen=True)
class Tensor:
    """Description of a parameter; not a pytree node, so that trees of it can be mapped over together with trees of arrays.

    Attributes:
      path: names from the outermost module to the parameter: ("encoder", "layers", "attention", "query", "kernel").
      shape: shape, with the layers first if it is stacked.
      axes: logical names of the axes.
      before: number of layers of the same network before those of its stack.
      after: number of layers of the same network after those of its stack.
    """

    path: tuple[str, ...]
    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    before: int = 0
    after: int = 0

    @property
    def stacked(self) -> bool:
        """True if the first axis counts layers."""
        return self.axes[:1] == (AXIS,)

    @property
    def network(self) -> tuple[str, ...] | None:
        """Path of the module with "layers" or "first_layers", which are counted together; None outside of such a stack."""
        return next((self.path[:place] for place, name in enumerate(self.path) if name in (FIRST, AXIS)), None)

    @property
    def own(self) -> tuple[int, ...]:
        """Axes of one layer's tensor: all except that of the layers."""
        return tuple(range(int(self.stacked), len(self.shape)))

    @property
    def columns(self) -> tuple[int, ...]:
        """Axes of a matrix's columns, the outputs: the last axis, or heads and head_dim together."""
        both = self.axes[-2:] == ("heads", "head_dim")
        return self.own[-2:] if both else self.own[-1:]

    @property
    def rows(self) -> tuple[int, ...]:
        """Axes of a matrix's rows, the inputs; () for a vector."""
        return tuple(axis for axis in self.own if axis not in self.columns)

    @property
    def matrix(self) -> tuple[int, int] | None:
        """Rows and columns of one layer's matrix; None for a vector."""
        if not self.rows:
            return None
        return math.prod(self.shape[axis] for axis in self.rows), math.prod(self.shape[axis] for axis in self.columns)

    @property
    def decayed(self) -> bool:
        """True if weight decay applies: to matrices and tables, never to biases and norm scales."""
        return bool(self.rows) and self.path[-1] not in _NOT_DECAYED


def describe(params: Tree) -> Tree:
    """Return a tree of `Tensor`s for boxed parameters or their shapes; unboxed leaves have no axis names."""

    def tensor(path: tuple[Any, ...], leaf: Any) -> Tensor:
        names = tuple(str(getattr(key, "key", key)) for key in path)
        value = nn.meta.unbox(leaf)
        return Tensor(names, value.shape, leaf.names if is_boxed(leaf) else (None,) * len(value.shape))

    tensors = jax.tree_util.tree_map_with_path(tensor, params, is_leaf=is_boxed)
    lengths: dict[tuple[str, ...], int] = {}
    for leaf in jax.tree.leaves(tensors):
        if leaf.stacked and leaf.network is not None:
            stack = leaf.path[: len(leaf.network) + 1]
            lengths[stack] = max(lengths.get(stack, 0), leaf.shape[0])

    def placed(tensor: Tensor) -> Tensor:
        network = tensor.network
        if not tensor.stacked or network is None:
            return tensor
        if tensor.path[len(network)] == FIRST:
            return dataclasses.replace(tensor, after=lengths.get((*network, AXIS), 0))
        return dataclasses.replace(tensor, before=lengths.get((*network, FIRST), 0))

    return jax.tree.map(placed, tensors)


def is_boxed(leaf: Any) -> bool:
    """Return whether a leaf carries logical axis names."""
    return isinstance(leaf, nn.LogicallyPartitioned)


def map_tensors(function: Callable[..., Any], tensors: Tree, tree: Tree, *trees: Tree) -> Tree:
    """Map `function(tensor, leaf, *leaves)` over all tensors, except those that `optax.partition` masks."""

    def call(tensor: Tensor, leaf: Any, *leaves: Any) -> Any:
        return leaf if isinstance(leaf, optax.MaskedNode) else function(tensor, leaf, *leaves)

    return jax.tree.map(call, tensors, tree, *trees)


def transform_tensors(
    function: Callable[[Tensor, jax.Array, jax.Array], jax.Array], tensors: Tree
) -> optax.GradientTransformation:
    """Build the stateless transformation that replaces an update by `function(tensor, update, parameter)`."""
    return optax.stateless(lambda updates, params: map_tensors(function, tensors, updates, params))


def rms(tensor: Tensor, leaf: jax.Array) -> jax.Array:
    """Compute the root mean square of each layer's tensor: [layers or nothing, 1, ...]."""
    return jnp.sqrt(jnp.mean(leaf * leaf, axis=tensor.own, keepdims=True))


def weight_decay(rate: float, tensors: Tree) -> optax.GradientTransformation:
    """Add rate * theta to the updates of all decayed tensors."""
    return optax.add_decayed_weights(rate, jax.tree.map(lambda tensor: tensor.decayed, tensors))
