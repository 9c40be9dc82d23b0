"""Gradual pruning of weights by magnitude during training (Zhu and Gupta 2017, arXiv 1710.01878).

JaxPruner (0.1, of 2023) was considered; it is no longer developed, and compares magnitudes over all layers of a stack.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bertfam.training.optimizers.tensors import Tensor, Tree, map_tensors


@dataclass(frozen=True)
class Sparsity:
    """Zeros among the weights in the kernels of all layers; a weight that is zero stays zero.

    From update t_0 to t_n the share of zeros in each layer's kernel is

        s(t) = final + (initial - final) (1 - (t - t_0) / (t_n - t_0))^3

    (equation 1). The smallest weights become zero at every multiple of `every` between them, and at t_n.

    Attributes:
      final: share of zeros at the end; 0: the zeros that a run starts with stay, and no more are made.
      initial: share of zeros at the beginning.
      begin, end: shares of the run's updates after which pruning begins and ends.
      every: updates between two prunings.
    """

    final: float = 0.0
    initial: float = 0.0
    begin: float = 0.0
    end: float = 0.5
    every: int = 100

    def __post_init__(self) -> None:
        if not 0 <= self.initial <= self.final < 1:
            raise ValueError(f"initial {self.initial} and final {self.final} must be at least 0 and below 1, in this order")
        if not 0 <= self.begin < self.end <= 1:
            raise ValueError(f"begin {self.begin} and end {self.end} must be shares of the run, begin below end")
        if self.every < 1:
            raise ValueError(f"every {self.every} must be at least 1")

    def share(self, step: jax.Array | float, total_steps: int) -> jax.Array:
        """Return s(step): float32[]."""
        first, last = self.begin * total_steps, self.end * total_steps
        progress = jnp.clip((step - first) / (last - first), 0.0, 1.0)
        return self.final + (self.initial - self.final) * (1 - progress) ** 3

    def build(self, total_steps: int, tensors: Tree) -> optax.GradientTransformationExtraArgs:
        """Build the last transformation of an update, to which `update` passes the `step`."""

        def update(updates: Tree, state: Any, params: Tree = None, *, step: jax.Array, **_: Any) -> tuple[Tree, Any]:
            first, last = self.begin * total_steps, math.ceil(self.end * total_steps)
            is_due = (step >= first) & (step < last) & (step % self.every == 0) | (step == last)
            share = jnp.where(is_due, self.share(step, total_steps), 0.0) if self.final else None

            def pruned(tensor: Tensor, change: jax.Array, weights: jax.Array) -> jax.Array:
                if tensor.network is None or tensor.path[-1] != "kernel":
                    return change
                change = jnp.where(weights == 0, 0.0, change)
                return change if share is None else _without_smallest(tensor, change, weights, share)

            return map_tensors(pruned, tensors, updates, params), state

        return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)


def _without_smallest(tensor: Tensor, change: jax.Array, weights: jax.Array, share: jax.Array) -> jax.Array:
    """Return the update after which a share of the weights of each layer is zero, or `change` for a share of 0."""

    def prune(change: jax.Array) -> jax.Array:
        # [layers or 1, weights of a layer]
        sizes = jnp.abs(weights + change).reshape(tensor.shape[0] if tensor.stacked else 1, -1)
        count = jnp.round(share * sizes.shape[1]).astype(jnp.int32)
        threshold = jnp.sort(sizes, axis=1)[:, jnp.maximum(count - 1, 0)]
        removed = (sizes <= threshold[:, None]) & (count > 0)
        return jnp.where(removed.reshape(weights.shape), -weights, change)

    return jax.lax.cond(share > 0, prune, lambda change: change, change)
