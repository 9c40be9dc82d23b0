"""What a step reads and writes."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from bertfam.features import RowShape
from bertfam.objectives.objective import Objective, Tree


class TrainState(NamedTuple):
    """A training run at one step.

    Attributes:
      step: int32[], how many updates were made.
      params: the trained parameters.
      opt_state: the optimizer's.
      carry: written every step without gradient; {} for most objectives.
      aux: read only, not differentiated (a teacher, a retrieval index); saved once a version, not each step.
    """

    step: jax.Array
    params: Tree
    opt_state: Tree
    carry: Tree
    aux: Tree


def new_state(objective: Objective, optimizer: optax.GradientTransformation, key: jax.Array, shape: RowShape) -> TrainState:
    """A fresh state whose parameters, and the optimizer's copies of them, are boxed with logical axis names."""
    params, carry, aux = objective.init(key, shape)
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params), carry, aux)
