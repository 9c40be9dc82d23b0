"""Muon: orthogonalized momentum.

`optax.contrib.scale_by_muon` (optax 0.2.8) was considered. It always corrects the momentum's bias, which the original does not.
"""

import math
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import optax
from typing_extensions import override

from bertfam.training.optimizers.base import MomentDtype, Optimizer
from bertfam.training.optimizers.moments import scale_by_moments
from bertfam.training.optimizers.tensors import Tensor, Tree, transform_tensors, weight_decay

# Jordan 2024: the quintic with the steepest start that takes singular values into about [0.7, 1.2].
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_MOST_ITERATIONS = 100  # the loop is unrolled
_TINY = 1e-7


@dataclass(frozen=True)
class Muon(Optimizer):
    """Muon (Jordan et al. 2024, "Muon: an optimizer for hidden layers") for the matrices of stacks, AdamW for all else.

    m = momentum m + g;  o = NewtonSchulz(g + momentum m);  theta -= rate (scale o + weight_decay theta)

    Each layer is a matrix of its own; an attention kernel is the matrix [embed, heads * head_dim]. Embeddings, heads,
    biases and norms are updated by AdamW.

    Attributes:
      momentum: decay of m.
      nesterov: whether the gradient is added once more; False computes o from m alone.
      iterations: number of Newton-Schulz iterations; 5 bring every singular value to about 1.
      scale: "match_adamw" multiplies o by 0.2 sqrt(max(rows, columns)), which makes an update as large as AdamW's and lets both
        share a rate (Liu et al. 2025, "Muon is scalable for LLM training", equation 4); "original" by
        sqrt(max(1, columns / rows)), columns being the outputs.
      adam_rate: rate of AdamW's part as a multiple of the schedule's; with "original", about 0.01 to 0.1 works.
      adam_b1: decay of AdamW's first moment.
      adam_b2: decay of AdamW's second moment.
      adam_epsilon: constant added to the root of AdamW's second moment.
      weight_decay: weight decay of everything but biases and norm scales.
      mu_dtype: dtype of the momentum, and of AdamW's first moment, in memory.
    """

    momentum: float = 0.95
    nesterov: bool = True
    iterations: int = 5
    scale: Literal["match_adamw", "original"] = "match_adamw"
    adam_rate: float = 1.0
    adam_b1: float = 0.9
    adam_b2: float = 0.999
    adam_epsilon: float = 1e-6
    weight_decay: float = 0.01
    mu_dtype: MomentDtype = "float32"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_decays("momentum", "adam_b1", "adam_b2")
        self._check_not_negative("adam_rate", "weight_decay")
        self._check_above_zero("adam_epsilon")
        self._check_dtypes([("momentum", "mu_dtype"), ("adam_b1", "mu_dtype")])
        if not 1 <= self.iterations <= _MOST_ITERATIONS:
            raise ValueError(f"iterations {self.iterations} is not among 1 to {_MOST_ITERATIONS}; 5 are enough")

    @property
    @override
    def largest_rate(self) -> float:
        return 0.1 if self.scale == "match_adamw" else 1.0

    @override
    def direction(self, tensors: Tree) -> optax.GradientTransformation:
        dtypes = {"mu_dtype": self.mu_dtype, "nu_dtype": "float32"}
        adam = scale_by_moments(self.adam_b1, self.adam_b2, self.adam_epsilon, corrected=True, **dtypes)
        momentum = optax.trace(self.momentum, self.nesterov, self.mu_dtype)
        parts = {"matrix": optax.chain(momentum, transform_tensors(self._orthogonal, tensors)), "rest": adam}
        names = jax.tree.map(lambda tensor: "matrix" if _is_ours(tensor) else "rest", tensors)
        rates = transform_tensors(lambda tensor, u, _: u if _is_ours(tensor) else self.adam_rate * u, tensors)
        return optax.chain(optax.partition(parts, names), weight_decay(self.weight_decay, tensors), rates)

    def _orthogonal(self, tensor: Tensor, momentum: jax.Array, _: jax.Array) -> jax.Array:
        assert tensor.matrix is not None
        rows, columns = tensor.matrix
        # [layers, rows..., columns...] -> [layers, rows, columns]
        update = newton_schulz(momentum.reshape(-1, rows, columns), self.iterations)
        scale = 0.2 * math.sqrt(max(rows, columns)) if self.scale == "match_adamw" else math.sqrt(max(1.0, columns / rows))
        return scale * update.reshape(momentum.shape)


def _is_ours(tensor: Tensor) -> bool:
    return tensor.stacked and tensor.decayed


def newton_schulz(matrices: jax.Array, iterations: int) -> jax.Array:
    """Approximate U V^T of matrices U S V^T: X = a X + (b A + c A^2) X with A = X X^T, from X of Frobenius norm 1.

    Args:
      matrices: float32[..., rows, columns].
      iterations: after 5, singular values that began above 1e-2 of the norm are between 0.6 and 1.3.
    """
    a, b, c = _COEFFICIENTS
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.swapaxes(-1, -2) if tall else matrices
    x /= jnp.sqrt(jnp.sum(x * x, axis=(-2, -1), keepdims=True)) + _TINY
    for _ in range(iterations):
        square = x @ x.swapaxes(-1, -2)
        x = a * x + (b * square + c * square @ square) @ x
    return x.swapaxes(-1, -2) if tall else x
