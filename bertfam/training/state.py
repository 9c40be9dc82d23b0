"""Training state."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from bertfam.features import RowShape
from bertfam.objectives.frozen import Frozen
from bertfam.objectives.objective import Objective, Tree
from bertfam.sharding.mesh import MeshShape
from bertfam.sharding.named_shardings import AnyMesh, state_shardings


class TrainState(NamedTuple):
    """State of a training run at one step.

    Attributes:
      step: int32[], number of batches seen, including those whose update was skipped.
      params: the parameters of the model.
      opt_state: the optimizer's state, of the parameters that are not frozen.
      carry: values that each step replaces without gradient; {} for most objectives.
      aux: read-only values without gradient (a teacher, a retrieval index); not saved in checkpoints.
      average: moving average of the parameters, shaped like them; {} if none is kept.
      skipped: int32[], number of updates skipped because the loss or the gradient was not finite.
    """

    step: jax.Array
    params: Tree
    opt_state: Tree
    carry: Tree
    aux: Tree
    average: Tree
    skipped: jax.Array


def new_state(
    objective: Objective, optimizer: optax.GradientTransformation, key: jax.Array, shape: RowShape, *, averaged: bool = False
) -> TrainState:
    """Make a fresh state whose parameters, and their copies, are boxed with logical axis names.

    Args:
      objective: objective, which initialises the parameters.
      optimizer: optimizer, which initialises its own state.
      key: random key of the initial values.
      shape: shape of the rows.
      averaged: whether a moving average of the parameters is kept.
    """
    return first_state(objective.init(key, shape), optimizer, objective.frozen, averaged=averaged)


def first_state(
    initial: tuple[Tree, Tree, Tree], optimizer: optax.GradientTransformation, frozen: Frozen, *, averaged: bool
) -> TrainState:
    """Make the state of step 0 from the initial (params, carry, aux)."""
    params, carry, aux = initial
    average = jax.tree.map(jnp.copy, params) if averaged else {}
    zero = jnp.zeros((), jnp.int32)
    return TrainState(zero, params, optimizer.init(frozen.trained(params)), carry, aux, average, zero)


def shardings_of(boxed: TrainState, mesh: AnyMesh, shape: MeshShape) -> TrainState:
    """Return the sharding of every leaf of a state that is boxed with logical axis names, by the rules of the mesh's shape.

    Raises:
      UserError: if a parameter does not divide over the mesh.
    """
    shardings: TrainState = state_shardings(boxed, mesh, shape.rules)
    if not shape.zero1:
        return shardings
    further = {name: state_shardings(getattr(boxed, name), mesh, shape.rules, over="data") for name in ("opt_state", "average")}
    return shardings._replace(**further)
