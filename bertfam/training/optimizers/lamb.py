"""LAMB: Adam with a trust ratio for every tensor.

`optax.lamb` and `optax.scale_by_trust_ratio` (optax 0.2.8) were considered. They take the norm of a whole leaf, which holds all
layers of a stack here, and scale biases and norm scales too.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax
from typing_extensions import override

from bertfam.training.optimizers.adam import AdamW
from bertfam.training.optimizers.tensors import Tensor, Tree, transform_tensors


@dataclass(frozen=True)
class Lamb(AdamW):
    """LAMB (You et al. 2020, algorithm 2) as ALBERT was trained with it; the other attributes are those of `AdamW`.

    `u = m / (sqrt(v) + epsilon) + weight_decay theta;  theta -= rate (|theta| / |u|) u`

    The norms are of one layer's tensor, heads and their features together. The ratio is not clipped; it is 1 if a norm is 0, and
    for biases and norm scales.

    Attributes:
      bias_correction: whether the bias of m and v is corrected, as in the paper; ALBERT's code does not.
    """

    bias_correction: bool = False

    @property
    @override
    def largest_rate(self) -> float:
        return 1.0

    @override
    def direction(self, tensors: Tree) -> optax.GradientTransformation:
        return optax.chain(self._direction(tensors, corrected=self.bias_correction), transform_tensors(_trusted, tensors))


def _trusted(tensor: Tensor, update: jax.Array, param: jax.Array) -> jax.Array:
    if not tensor.decayed:
        return update
    # [...] -> [layers or nothing, 1, ...]
    size, length = (jnp.sqrt(jnp.sum(leaf * leaf, axis=tensor.own, keepdims=True)) for leaf in (param, update))
    return update * jnp.where((size > 0) & (length > 0), size / jnp.where(length > 0, length, 1.0), 1.0)
