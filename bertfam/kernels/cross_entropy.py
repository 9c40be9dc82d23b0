"""Cross-entropy of rows of logits and its gradient in one kernel, for NVIDIA GPUs.

XLA reads the logits three times: for the largest, for the sum of exponents, and for the gradient. Here a program reads its row
twice: for the largest and the sum together, and for the gradient.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from bertfam.kernels import rows
from bertfam.kernels.target import target

_AXES = (*rows.ROW_AXES, "vocab")
_COLUMNS, _WARPS = 2048, 8  # that a program holds at a time; the fastest on an H200
_LEAST = -1e30  # logit of columns that are no tokens


class Settings(NamedTuple):
    """Settings of the loss, those of `bertfam.kernels.chunked_cross_entropy.VocabularyLoss`.

    Attributes:
      vocab_size: number of real tokens; further columns have no probability and no gradient.
      z_loss: coefficient of the z-loss.
      label_smoothing: share of the targets that is spread over all tokens.
      dtype: dtype of the gradient.
    """

    vocab_size: int
    z_loss: float
    label_smoothing: float
    dtype: Any


class Statistics(NamedTuple):
    """Statistics of rows of logits, float32[batch, length].

    Attributes:
      log_z: logarithm of the sum of exponents.
      target: logit of the target.
      total: sum of the logits of all tokens if labels are smoothed, else 0.
      correct: 1 where the first of the largest logits is the target.
    """

    log_z: Any
    target: Any
    total: Any
    correct: Any


def likeliest(logits: jax.Array) -> jax.Array:
    """Return the index of the first of the largest logits float32[..., classes]: int32[...]."""
    if target()[0] != "cpu":
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)
    # XLA keeps value and index together in an argmax, which no CPU's vector instructions do: nine times slower than two passes.
    classes = jnp.arange(logits.shape[-1], dtype=jnp.int32)
    largest = jnp.max(logits, axis=-1, keepdims=True)
    return jnp.min(jnp.where(logits == largest, classes, logits.shape[-1] - 1), axis=-1)


def supports(logits_shape: tuple[int, ...], dtype: Any) -> bool:
    """Return True if the kernel computes on the devices at hand for logits [batch, length, vocab], with a gradient in `dtype`."""
    local = rows.local_shape(logits_shape, _AXES)
    return rows.run_here(dtype) and local is not None and local[2] == logits_shape[2]


def statistics_and_slope(
    logits: jax.Array, targets: jax.Array, weights: jax.Array, settings: Settings
) -> tuple[Statistics, jax.Array]:
    """Compute the statistics of logits, and the derivative of the weighted losses by each logit.

    Args:
      logits: float32[batch, length, vocab], for which `supports` is true; those of columns that are no tokens do not matter.
      targets: int32[batch, length].
      weights: float32[batch, length].
      settings: settings of the loss.

    Returns:
      The statistics, and the derivative [batch, length, vocab].
    """

    def of_device(logits: jax.Array, targets: jax.Array, weights: jax.Array) -> tuple[Statistics, jax.Array]:
        shape, count = logits.shape, targets.size
        numbers = jax.ShapeDtypeStruct((count,), jnp.float32)
        outputs = (Statistics(*[numbers] * 4), jax.ShapeDtypeStruct((count, shape[2]), settings.dtype))
        run = rows.call(partial(_kernel, settings=settings), "cross_entropy", (count,), outputs, warps=_WARPS)
        statistics, slope = run(logits.reshape(count, -1), targets.reshape(-1), weights.reshape(-1))
        return Statistics(*(array.reshape(shape[:2]) for array in statistics)), slope.reshape(shape)

    axes = rows.ROW_AXES
    found: tuple[Statistics, jax.Array] = rows.sharded(of_device, (_AXES, axes, axes), (Statistics(*[axes] * 4), _AXES))(
        logits, targets, weights
    )
    return found


def _kernel(logits: Any, targets: Any, weights: Any, statistics: Statistics, slope: Any, *, settings: Settings) -> None:
    from jax.experimental.pallas import triton

    row, columns = pl.program_id(0), logits.shape[1]
    target, weight = targets[row], weights[row]
    places = jnp.arange(_COLUMNS)
    steps = -(-columns // _COLUMNS)

    def load(step: Any) -> tuple[jax.Array, jax.Array]:
        """Return the columns of a step, and their logits."""
        own = step * _COLUMNS + places
        values = triton.load(logits.at[row, rows.span(step, _COLUMNS)], mask=own < settings.vocab_size, other=_LEAST)
        return own, values

    def add(step: Any, carry: Any) -> Any:
        # A maximum and a sum for each place of the steps, so that the threads of a program wait for each other at the end only.
        largest, exponents, total, picked = carry
        own, values = load(step)
        higher = jnp.maximum(largest, values)
        exponents = exponents * jnp.exp(largest - higher) + jnp.exp(values - higher)
        picked += jnp.where(own == target, values, 0.0)
        if settings.label_smoothing:
            total += jnp.where(own < settings.vocab_size, values, 0.0)
        return higher, exponents, total, picked

    zeros = jnp.zeros(_COLUMNS, jnp.float32)
    largest, exponents, total, picked = jax.lax.fori_loop(0, steps, add, (zeros + _LEAST, zeros, zeros, zeros))
    highest = jnp.max(largest)
    log_z = highest + jnp.log(jnp.sum(exponents * jnp.exp(largest - highest)))
    spread, factor = settings.label_smoothing / settings.vocab_size, weight * (1 + 2 * settings.z_loss * log_z)

    def write(step: Any, first: jax.Array) -> jax.Array:
        own, values = load(step)
        found = factor * jnp.exp(values - log_z) - weight * jnp.where(own == target, 1 - settings.label_smoothing, 0.0)
        if spread:
            found -= weight * spread
        found = jnp.where(own < settings.vocab_size, found, 0.0).astype(slope.dtype)
        triton.store(slope.at[row, rows.span(step, _COLUMNS)], found, mask=own < columns)
        return jnp.minimum(first, jnp.where(values == highest, own, columns))

    first = jnp.min(jax.lax.fori_loop(0, steps, write, jnp.full(_COLUMNS, columns)))
    statistics.log_z[row] = log_z
    statistics.target[row] = jnp.sum(picked)
    statistics.total[row] = jnp.sum(total)
    statistics.correct[row] = (first == target).astype(jnp.float32)
