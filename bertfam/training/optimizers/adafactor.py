"""Adafactor: second moments of a matrix from the means of its rows and columns.

`optax.scale_by_factored_rms` (optax 0.2.8) was considered. It factors the two largest axes of a leaf, which are not the rows and
columns of an attention kernel [layers, embed, heads, head_dim].
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from typing_extensions import override

from bertfam.training.optimizers.base import Optimizer
from bertfam.training.optimizers.tensors import Tensor, Tree, is_boxed, map_tensors, rms, transform_tensors, weight_decay
from bertfam.training.schedules import InverseSquareRoot, Schedule


@dataclass(frozen=True)
class Adafactor(Optimizer):
    """Adafactor (Shazeer and Stern 2018, algorithms 4 and 5), by default as T5 was trained with it.

    u = g / sqrt(v);  u /= max(1, rms(u) / clipping_threshold);  theta -= rate (max(epsilon_scale, rms(theta)) u + decay theta)

    with v = beta v + (1 - beta) (g^2 + epsilon), beta = 1 - t^-decay_power, and for a matrix only the means of v over rows r
    and columns c are kept: v = r c / mean(r). Each layer is a tensor of its own; an attention kernel is the matrix
    [embed, heads * head_dim]. The default schedule is the relative step of the paper; any other turns it off. The global norm
    is not clipped: the clipping of u takes its place.

    Attributes:
      factored: whether matrices keep only the means of their rows and columns.
      min_size_to_factor: matrices with fewer rows or columns are not factored.
      decay_power: exponent of the decay of v, beta = 1 - t^-decay_power.
      clipping_threshold: largest root mean square of u; None does not clip.
      scale_by_parameter: whether u is multiplied by the root mean square of the tensor.
      epsilon: constant added to squared gradients.
      epsilon_scale: smallest factor that u is multiplied by.
      b1: decay of a momentum of u; None keeps no momentum.
      weight_decay: weight decay of everything but biases and norm scales.
    """

    schedule: Schedule = InverseSquareRoot()
    clip_norm: float | None = None
    factored: bool = True
    min_size_to_factor: int = 128
    decay_power: float = 0.8
    clipping_threshold: float | None = 1.0
    scale_by_parameter: bool = True
    epsilon: float = 1e-30
    epsilon_scale: float = 1e-3
    b1: float | None = None
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.b1 is not None:
            self._check_decays("b1")
        self._check_not_negative("weight_decay", "epsilon_scale", "min_size_to_factor")
        self._check_above_zero("epsilon")
        for name in ("decay_power", "clipping_threshold"):
            if getattr(self, name) is not None and not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} {getattr(self, name)} is not above 0")

    @override
    def direction(self, tensors: Tree) -> optax.GradientTransformation:
        parts = [self._second_moment(tensors)]
        if (threshold := self.clipping_threshold) is not None:
            parts.append(transform_tensors(lambda tensor, u, _: u / jnp.maximum(1.0, rms(tensor, u) / threshold), tensors))
        if self.scale_by_parameter:
            parts.append(
                transform_tensors(lambda tensor, u, theta: u * jnp.maximum(self.epsilon_scale, rms(tensor, theta)), tensors)
            )
        if self.b1 is not None:
            parts.append(optax.ema(self.b1, debias=False))
        return optax.chain(*parts, weight_decay(self.weight_decay, tensors))

    def _second_moment(self, tensors: Tree) -> optax.GradientTransformation:
        def init(params: Tree) -> _State:
            return _State(jnp.zeros((), jnp.int32), map_tensors(self._zeros, tensors, params))

        def update(gradient: Tree, state: _State, params: Tree = None) -> tuple[Tree, _State]:
            count = state.updates + 1
            beta = 1.0 - count.astype(jnp.float32) ** -self.decay_power
            pairs = map_tensors(lambda tensor, g, v: self._divided(tensor, g, v, beta), tensors, gradient, state.v)
            updates, v = (map_tensors(lambda _, pair, part=part: pair[part], tensors, pairs) for part in (0, 1))
            return updates, _State(count, v)

        return optax.GradientTransformation(init, update)

    def _zeros(self, tensor: Tensor, param: Any) -> "_Factors | _Whole":
        """Return new moments, boxed like the parameter with the names of the axes that they keep."""

        def zeros(dropped: tuple[int, ...]) -> Any:
            kept = [axis for axis in range(len(tensor.shape)) if axis not in dropped]
            value = jnp.zeros([tensor.shape[axis] for axis in kept], jnp.float32)
            return nn.LogicallyPartitioned(value, tuple(tensor.axes[axis] for axis in kept)) if is_boxed(param) else value

        if self.factored and tensor.matrix is not None and min(tensor.matrix) >= self.min_size_to_factor:
            return _Factors(zeros(tensor.columns), zeros(tensor.rows))
        return _Whole(zeros(()))

    def _divided(self, tensor: Tensor, gradient: jax.Array, v: Any, beta: jax.Array) -> tuple[jax.Array, Any]:
        """Return g / sqrt(v) and the new v."""
        square = gradient * gradient + self.epsilon
        if isinstance(v, _Whole):
            whole = beta * v.whole + (1 - beta) * square
            return gradient * jax.lax.rsqrt(whole), _Whole(whole)
        row = beta * v.row + (1 - beta) * jnp.mean(square, axis=tensor.columns)
        column = beta * v.column + (1 - beta) * jnp.mean(square, axis=tensor.rows)
        # [layers, rows..., 1...] and [layers, 1..., columns...]
        tall, wide = jnp.expand_dims(row, tensor.columns), jnp.expand_dims(column, tensor.rows)
        tall /= jnp.mean(tall, axis=tensor.rows, keepdims=True)
        return gradient * jax.lax.rsqrt(tall) * jax.lax.rsqrt(wide), _Factors(row, column)


class _Factors(NamedTuple):
    """Means of a matrix's second moments: row [layers, rows...] over the columns, column [layers, columns...] over the rows."""

    row: Any
    column: Any


class _Whole(NamedTuple):
    """Second moments shaped like the parameter."""

    whole: Any


class _State(NamedTuple):
    """State of Adafactor; updates: int32[], the number of updates; v: `_Factors` or `_Whole` for every parameter."""

    updates: jax.Array
    v: Tree
