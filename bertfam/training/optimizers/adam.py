"""Adam with decoupled weight decay, and the variant that BERT was trained with.

`optax.scale_by_adam` (optax 0.2.8) was considered for the moments. It always corrects the bias, which BERT's optimizer does not,
has no dtype for the second moment, and names its counter `count` where existing checkpoints have `updates`.
"""

from dataclasses import dataclass

import optax
from typing_extensions import override

from bertfam.training.optimizers.base import MomentDtype, Optimizer
from bertfam.training.optimizers.moments import scale_by_moments
from bertfam.training.optimizers.tensors import Tree, weight_decay
from bertfam.training.schedules import LinearDecay, Schedule


@dataclass(frozen=True)
class AdamW(Optimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019), after clipping by the global norm.

    m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  theta -= rate (m^ / (sqrt(v^) + epsilon) + weight_decay theta)

    Attributes:
      b1: decay of the first moment.
      b2: decay of the second moment.
      epsilon: constant added to the root of the second moment.
      weight_decay: weight decay of everything but biases and norm scales.
      mu_dtype: dtype of the first moment in memory.
      nu_dtype: dtype of the second moment in memory; bfloat16 is refused if it would round the changes away (b2 above 0.99).
    """

    b1: float = 0.9
    b2: float = 0.999
    epsilon: float = 1e-6
    weight_decay: float = 0.01
    mu_dtype: MomentDtype = "float32"
    nu_dtype: MomentDtype = "float32"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_decays("b1", "b2")
        self._check_not_negative("weight_decay")
        self._check_above_zero("epsilon")
        self._check_dtypes([("b1", "mu_dtype"), ("b2", "nu_dtype")])

    @property
    @override
    def largest_rate(self) -> float:
        return 0.1  # each weight moves by about the rate, and initial weights are some 0.02 large

    @override
    def direction(self, tensors: Tree) -> optax.GradientTransformation:
        return self._direction(tensors, corrected=True)

    def _direction(self, tensors: Tree, *, corrected: bool) -> optax.GradientTransformation:
        dtypes = {"mu_dtype": self.mu_dtype, "nu_dtype": self.nu_dtype}
        moments = scale_by_moments(self.b1, self.b2, self.epsilon, corrected=corrected, **dtypes)
        return optax.chain(moments, weight_decay(self.weight_decay, tensors))


@dataclass(frozen=True)
class BertAdam(AdamW):
    """AdamW without bias correction, as in the original TensorFlow code of BERT, ALBERT's fine-tuning and ELECTRA.

    theta -= rate (m / (sqrt(v) + epsilon) + weight_decay theta), with a schedule that decays from step 0 on, so that the rate
    drops where the warm-up ends.
    """

    schedule: Schedule = LinearDecay(variant="bert")

    @override
    def direction(self, tensors: Tree) -> optax.GradientTransformation:
        return self._direction(tensors, corrected=False)
