"""The training and evaluation steps: pure functions of state, batch and seed."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bertfam.kernels.random_bits import THREEFRY
from bertfam.objectives.objective import ROWS, Batch, Sum
from bertfam.sharding.pieces import interleaved, joined
from bertfam.training.optimizers.moments import one_minus_power
from bertfam.training.stages.phases import Phase
from bertfam.training.state import TrainState

# Constants folded into the seed of a run, one for each use, so that no two uses share keys.
INITIALISATION, DROPOUT, UPPER_BITS = range(3)
Metrics = dict[str, Sum]
NonFinite = Literal["raise", "skip"]
# Metrics that are 1 at a step whose loss or gradient is not finite, by policy.
NON_FINITE, SKIPPED = "non_finite", "skipped"
# Metric that is 1 at a step whose batch has no targets; its loss, 0, is excluded from all means.
EMPTY = "nothing_to_predict"
# Prefix of the loss terms among the metrics of an evaluation step: the sum of a term and its denominator.
TERM = "term/"
TrainStep = Callable[..., tuple[TrainState, Metrics]]


def root_key(seed: int) -> jax.Array:
    """Return the key of a seed from 0 to 2^63 - 1, of all whose bits it is a function: key[].

    `jax.random.key` reads the lower 32 bits of a seed, as long as x64 is off. Seeds of 32 bits have its key. The generator is
    named because JAX_DEFAULT_PRNG_IMPL would replace it, also in a run that resumes.
    """
    key = jax.random.key(seed % 2**32, impl=THREEFRY)
    upper = seed >> 32
    return jax.random.fold_in(jax.random.fold_in(key, UPPER_BITS), upper) if upper else key


def seed_words(seed: int) -> np.ndarray:
    """Return the data of `root_key(seed)`, the argument of a step: uint32[2]. So runs that differ in the seed share programs."""
    return np.asarray(jax.random.key_data(root_key(seed)))


def total_loss(
    terms: Mapping[str, jax.Array], denominators: Mapping[str, jax.Array], coefficients: Mapping[str, float]
) -> jax.Array:
    """Compute the sum over t of coefficients[t] terms[t] / denominators[t]; a term without targets is 0: float32[]."""
    parts = [
        jnp.where(denominators[name] > 0, coefficients[name] * term / jnp.maximum(denominators[name], 1e-30), 0.0)
        for name, term in terms.items()
    ]
    return jnp.sum(jnp.stack(parts))


def make_train_step(
    phase: Phase,
    optimizer: optax.GradientTransformation,
    *,
    microbatches: int = 1,
    non_finite: NonFinite = "raise",
    average_decay: float | None = None,
) -> TrainStep:
    """Build `train_step(state, batch, seed, rate=None) -> (state, metrics)`, where `seed` is `seed_words` of the run.

    `rate` is the learning rate, float32[]; None: that of the optimizer's schedule, which is then a part of the program.

    The key of dropout is fold_in(fold_in(fold_in(root_key, DROPOUT), step), microbatch).

    If the loss or the norm of the gradient is not finite, `step` and `skipped` are incremented, but parameters, optimizer state,
    average and carry are unchanged. The metric `NON_FINITE` or `SKIPPED` is 1 there, else 0.

    Args:
      phase: what is trained; `Phase.of(objective)` in a run of one objective.
      optimizer: applied to the gradient of the summed loss; an `update` that accepts `step` receives the state's.
      microbatches: number of pieces in which a batch is computed, one after another; must divide the batch.
      non_finite: "skip" excludes the other metrics of a skipped step from the means; "raise" keeps them for the error message.
      average_decay: decay of the moving average of the parameters; None if the state has none.
    """
    gradient_of = make_gradient(phase, microbatches=microbatches)
    update, frozen, idle = optax.with_extra_args_support(optimizer).update, phase.frozen, phase.idle

    def train_step(state: TrainState, batch: Batch, seed: Any, rate: Any = None) -> tuple[TrainState, Metrics]:
        gradient, carry, metrics = gradient_of(state, batch, seed)
        norm = optax.tree.norm(gradient)
        metrics["gradient_norm"] = Sum(norm, jnp.ones(()))
        finite = jnp.isfinite(metrics["loss"].total) & jnp.isfinite(norm)

        skipped = state.skipped + jnp.where(finite, 0, 1)
        step = state.step + 1
        trained = frozen.trained(state.params)
        updates, opt_state = update(gradient, state.opt_state, trained, step=state.step, rate=rate)
        params = frozen.joined(optax.apply_updates(trained, updates), state.params)
        average = state.average if average_decay is None else moving_average(state.average, params, average_decay, step - skipped)
        params, opt_state, average = (
            idle.kept(new, old, state.params)
            for new, old in ((params, state.params), (opt_state, state.opt_state), (average, state.average))
        )
        changed = state._replace(params=params, opt_state=opt_state, carry=carry, average=average)
        state = jax.tree.map(lambda new, old: jnp.where(finite, new, old), changed, state)

        if non_finite == "skip":
            metrics = jax.tree.map(lambda value: jnp.where(finite, value, 0.0), metrics)
        flag = SKIPPED if non_finite == "skip" else NON_FINITE
        metrics[flag] = Sum(jnp.where(finite, 0.0, 1.0), jnp.ones(()))
        return state._replace(step=step, skipped=skipped), metrics

    return train_step


def make_gradient(phase: Phase, *, microbatches: int) -> Callable[[TrainState, Batch, Any], tuple[Any, Any, Metrics]]:
    """Build `gradient(state, batch, seed) -> (gradient, carry, metrics)`; see `make_train_step`.

    The denominators come from the whole global batch before it is split, so microbatches add up to the same gradient. Frozen
    parameters have none, and that of idle ones is 0. An objective whose loss is one over all rows computes the pieces itself
    (`Objective.in_pieces`).
    """
    objective, frozen = phase.objective, phase.frozen
    if microbatches > 1 and (own := objective.in_pieces(microbatches)) is not None:
        objective, microbatches = own, 1

    def gradients(params: Any, carry: Any, aux: Any, batch: Batch, key: jax.Array, denominators: Mapping[str, jax.Array]) -> Any:
        def loss(trained: Any) -> Any:
            used = phase.used(phase.idle.stopped(frozen.joined(trained, params)))
            out = objective.loss(used, carry, aux, batch, key=key, train=True)
            return total_loss(out.terms, denominators, objective.coefficients), (out.carry, out.metrics)

        (value, (carry, metrics)), gradient = jax.value_and_grad(loss, has_aux=True)(frozen.trained(params))
        return gradient, carry, metrics | {"loss": Sum(value, jnp.ones(()))}

    def gradient_of_batch(state: TrainState, batch: Batch, seed: Any) -> tuple[Any, Any, Metrics]:
        root = jax.random.wrap_key_data(seed, impl=THREEFRY)
        key = jax.random.fold_in(jax.random.fold_in(root, DROPOUT), state.step)
        denominators = objective.denominators(batch)

        def piece(carry: Any, index: jax.Array, rows: Batch) -> Any:
            return gradients(state.params, carry, state.aux, rows, jax.random.fold_in(key, index), denominators)

        if microbatches == 1:
            gradient, carry, metrics = piece(state.carry, jnp.zeros((), jnp.int32), batch)
        else:
            pieces = interleaved((batch, {name: part for name, part in state.carry.items() if name == ROWS}), microbatches)
            passed = {name: part for name, part in state.carry.items() if name != ROWS}
            rows, memory = jax.tree.map(lambda value: value[0], pieces)
            shapes = jax.eval_shape(piece, passed | memory, 0, rows)
            zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), (shapes[0], shapes[2]))

            def body(so_far: Any, item: Any) -> Any:
                (passed, sums), (index, (rows, memory)) = so_far, item
                gradient, carry, metrics = piece(passed | memory, index, rows)
                memory = {name: carry.pop(name) for name in memory}
                return (carry, jax.tree.map(jnp.add, sums, (gradient, metrics))), memory

            (carry, (gradient, metrics)), memory = jax.lax.scan(body, (passed, zeros), (jnp.arange(microbatches), pieces))
            carry |= jax.tree.map(joined, memory)

        # The loss is the sum of the microbatches' parts.
        some = jnp.any(jnp.stack([denominator > 0 for denominator in denominators.values()])).astype(jnp.float32)
        metrics["loss"] = Sum(metrics["loss"].total, some)
        metrics[EMPTY] = Sum(1 - some, jnp.ones(()))
        return gradient, carry, metrics

    return gradient_of_batch


def make_eval_step(phase: Phase) -> Callable[..., Metrics]:
    """Build `eval_step(params, batch, aux) -> metrics`, without dropout and without carry from earlier batches.

    Besides the objective's metrics, each loss term is returned under `TERM` plus its name. It differs from the objective's own
    metrics if several terms share a denominator, as StructBERT's masked and shuffled tokens do.
    """
    objective = phase.objective

    def eval_step(params: Any, batch: Batch, aux: Any = {}) -> Metrics:  # noqa: B006
        out = objective.loss(phase.used(params), {}, aux, batch, key=None, train=False)
        denominators = objective.denominators(batch)
        return out.metrics | {TERM + name: Sum(term, denominators[name]) for name, term in out.terms.items()}

    return eval_step


def moving_average(average: Any, params: Any, decay: float, updates: jax.Array) -> Any:
    """Compute the mean of the parameters after each update so far, with weights in proportion to decay ** (updates since).

    This is the exponential moving average that starts at zero, corrected for its bias (Kingma and Ba 2015, section 3): after
    the first update it is the parameters themselves, after many a = decay a + (1 - decay) theta.

    Args:
      average: the previous average; it has no weight at the first update.
      params: the new parameters.
      decay: decay in [0, 1).
      updates: int32[], number of updates made, including this one.
    """
    # a_t = a_{t-1} + (1 - d) / (1 - d^t) (theta_t - a_{t-1})
    share = (1 - decay) / one_minus_power(decay, updates)
    return jax.tree.map(lambda old, new: old + share * (new - old), average, params)
