"""Inspection of a step: norms of gradients, parameters and updates, and sizes of activations, by layer."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bertfam.objectives.objective import Batch
from bertfam.sharding.pieces import interleaved
from bertfam.training.optimizers.tensors import AXIS, Tensor, Tree
from bertfam.training.stages.phases import Phase
from bertfam.training.state import TrainState
from bertfam.training.step import make_gradient

Inspection = Callable[[TrainState, Batch, Any], dict[str, jax.Array]]


def make_inspection(phase: Phase, optimizer: optax.GradientTransformation, tensors: Tree, *, microbatches: int) -> Inspection:
    """Build `inspect(state, batch, seed) -> {name: float32[] or float32[layers]}`, a pure function; see `make_train_step`.

    It computes the step's gradient once more, so that the step itself is the same program whether it is inspected or not. The
    names are gradient_norm/PLACE, parameter_norm/PLACE and update_norm/PLACE, where a place is a stack or a module outside of
    stacks, and activation_rms/NETWORK and activation_max/NETWORK, computed over the real tokens of the first microbatch without
    dropout: float32[layers + 1], the embeddings first.

    Args:
      phase: what is trained; the updates of idle parameters are 0.
      optimizer: optimizer of the run.
      tensors: description of the trained parameters (see `describe`).
      microbatches: number of microbatches of the run.
    """
    gradient_of = make_gradient(phase, microbatches=microbatches)
    update, frozen = optax.with_extra_args_support(optimizer).update, phase.frozen

    def inspect(state: TrainState, batch: Batch, seed: Any) -> dict[str, jax.Array]:
        gradient, _, _ = gradient_of(state, batch, seed)
        trained = frozen.trained(state.params)
        updates, _ = update(gradient, state.opt_state, trained, step=state.step)
        updates = phase.idle.kept(updates, jax.tree.map(jnp.zeros_like, updates), state.params)
        found: dict[str, jax.Array] = {}
        for name, tree in (("gradient", gradient), ("parameter", trained), ("update", updates)):
            found |= {f"{name}_norm/{place}": norm for place, norm in _norms(tensors, tree).items()}
        first = {name: value[0] for name, value in interleaved(batch, microbatches).items()}
        for network, (hidden, real) in phase.objective.activations(phase.used(state.params), first).items():
            sizes = jnp.abs(hidden.astype(jnp.float32)) * real[None, :, :, None]
            # [layers + 1, batch, length, embed] -> [layers + 1]
            values = jnp.maximum(jnp.sum(real), 1) * hidden.shape[-1]
            found[f"activation_rms/{network}"] = jnp.sqrt(jnp.sum(sizes * sizes, axis=(1, 2, 3)) / values)
            found[f"activation_max/{network}"] = jnp.max(sizes, axis=(1, 2, 3))
        return found

    return inspect


def scalars(found: Mapping[str, Any]) -> dict[str, float]:
    """Flatten to one number per name for the log; values by layer become NAME/00, NAME/01, ..."""
    result: dict[str, float] = {}
    for name, values in found.items():
        numbers = np.asarray(values)
        if numbers.ndim:
            result |= {f"{name}/{layer:02}": float(number) for layer, number in enumerate(numbers)}
        else:
            result[name] = float(numbers)
    return result


def _norms(tensors: Tree, tree: Tree) -> dict[str, jax.Array]:
    """Compute norms by place: float32[layers] for a stack, float32[] for a module outside of stacks."""
    squares: dict[str, list[jax.Array]] = defaultdict(list)
    for tensor, leaf in zip(jax.tree.leaves(tensors), jax.tree.leaves(tree), strict=True):
        square = jnp.sum(jnp.square(leaf.astype(jnp.float32)), axis=tensor.own)
        # [layers of its stack] -> [layers]
        squares[_place(tensor)].append(jnp.pad(square, (tensor.before, tensor.after)) if tensor.stacked else square)
    return {place: jnp.sqrt(sum(values[1:], values[0])) for place, values in squares.items()}


def _place(tensor: Tensor) -> str:
    """Return the place of a tensor, such as encoder/layers, encoder/embeddings, pooler/dense or mlm_head."""
    if tensor.stacked:
        # First layers, which are stored separately, are reported with the layers that follow them.
        return tensor.path[0] if tensor.network is None else "/".join((*tensor.network, AXIS))
    return "/".join(tensor.path[:-1][:2])
