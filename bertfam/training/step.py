"""The training and evaluation steps: pure functions of (state, batch)."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bertfam.objectives.objective import Batch, Objective, Sum
from bertfam.training.state import TrainState

# What a run's one seed is folded with for each use, so that no two share keys.
INITIALISATION, DROPOUT = range(2)
Metrics = dict[str, Sum]
TrainStep = Callable[[TrainState, Batch], tuple[TrainState, Metrics]]


def total_loss(
    terms: Mapping[str, jax.Array], denominators: Mapping[str, jax.Array], coefficients: Mapping[str, float]
) -> jax.Array:
    """sum over t of coefficients[t] terms[t] / denominators[t]; a term without anything to predict is 0: float32[]."""
    parts = [
        jnp.where(denominators[name] > 0, coefficients[name] * term / jnp.maximum(denominators[name], 1e-30), 0.0)
        for name, term in terms.items()
    ]
    return jnp.sum(jnp.stack(parts))


def make_train_step(
    objective: Objective, optimizer: optax.GradientTransformation, *, seed: int, microbatches: int = 1
) -> TrainStep:
    """Builds `train_step(state, batch) -> (state, metrics)`.

    The denominators come from the whole global batch before it is cut, so microbatches add up to the same update.

    Args:
      objective: what is trained.
      optimizer: applied to the gradient of the summed loss.
      seed: of the dropout, whose key is fold_in(fold_in(fold_in(key(seed), DROPOUT), step), microbatch).
      microbatches: in how many pieces a batch is computed, one after another; must divide the batch.
    """

    def gradients(params: Any, carry: Any, aux: Any, batch: Batch, key: jax.Array, denominators: Mapping[str, jax.Array]) -> Any:
        def loss(params: Any) -> Any:
            out = objective.loss(params, carry, aux, batch, key=key, train=True)
            return total_loss(out.terms, denominators, objective.coefficients), (out.carry, out.metrics)

        (value, (carry, metrics)), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        return gradient, carry, metrics | {"loss": Sum(value, jnp.ones(()))}

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), DROPOUT), state.step)
        denominators = objective.denominators(batch)

        def piece(carry: Any, index: jax.Array, rows: Batch) -> Any:
            return gradients(state.params, carry, state.aux, rows, jax.random.fold_in(key, index), denominators)

        if microbatches == 1:
            gradient, carry, metrics = piece(state.carry, jnp.zeros((), jnp.int32), batch)
        else:
            pieces = {name: _interleave(value, microbatches) for name, value in batch.items()}
            shapes = jax.eval_shape(piece, state.carry, 0, {name: value[0] for name, value in pieces.items()})
            zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), (shapes[0], shapes[2]))

            def body(so_far: Any, item: Any) -> Any:
                carry, sums = so_far
                gradient, carry, metrics = piece(carry, *item)
                return (carry, jax.tree.map(jnp.add, sums, (gradient, metrics))), None

            (carry, (gradient, metrics)), _ = jax.lax.scan(body, (state.carry, zeros), (jnp.arange(microbatches), pieces))

        # Each microbatch gave its part of the one loss.
        metrics["loss"] = Sum(metrics["loss"].total, jnp.ones(()))
        metrics["gradient_norm"] = Sum(optax.tree.norm(gradient), jnp.ones(()))
        updates, opt_state = optimizer.update(gradient, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        return state._replace(step=state.step + 1, params=params, opt_state=opt_state, carry=carry), metrics

    return train_step


def _interleave(value: jax.Array, pieces: int) -> jax.Array:
    """[batch, ...] -> [pieces, batch / pieces, ...]; every device keeps its rows, each piece takes some of every device's."""
    return value.reshape(value.shape[0] // pieces, pieces, *value.shape[1:]).swapaxes(0, 1)


def make_eval_step(objective: Objective) -> Callable[[Any, Batch], Metrics]:
    """Builds `eval_step(params, batch) -> metrics`: no dropout, and no memory of the batches before."""

    def eval_step(params: Any, batch: Batch) -> Metrics:
        return objective.loss(params, {}, {}, batch, key=None, train=False).metrics

    return eval_step
