"""Lion: sign of an interpolated momentum."""

from dataclasses import dataclass

import optax
from typing_extensions import override

from bertfam.training.optimizers.base import MomentDtype, Optimizer
from bertfam.training.optimizers.tensors import Tree, weight_decay


@dataclass(frozen=True)
class Lion(Optimizer):
    """Lion (Chen et al. 2023, algorithm 2): one moment; rates 3 to 10 times lower, and weight decays higher, than AdamW's.

    theta -= rate (sign(b1 m + (1 - b1) g) + weight_decay theta);  m = b2 m + (1 - b2) g

    Attributes:
      b1: share of the momentum in the direction of the update.
      b2: decay of the momentum.
      weight_decay: weight decay of everything but biases and norm scales.
      mu_dtype: dtype of the momentum in memory.
    """

    b1: float = 0.9
    b2: float = 0.99
    weight_decay: float = 0.1
    mu_dtype: MomentDtype = "float32"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_decays("b1", "b2")
        self._check_not_negative("weight_decay")
        self._check_dtypes([("b2", "mu_dtype")])

    @property
    @override
    def largest_rate(self) -> float:
        return 0.1  # each weight moves by about the rate, and initial weights are some 0.02 large

    @override
    def direction(self, tensors: Tree) -> optax.GradientTransformation:
        return optax.chain(optax.scale_by_lion(self.b1, self.b2, self.mu_dtype), weight_decay(self.weight_decay, tensors))
