"""Random parameters of objectives, compiled losses and gradients in NumPy arrays, and sums over microbatches."""

import jax
import numpy as np
import tiny
from flax import linen as nn

from bertfam.training.step import total_loss


def random_params(objective, *, seed=3, scale=0.3, shape=tiny.SHAPE):
    """Return random parameters, including biases and norm scales."""
    return random_values(lambda key: objective.init(key, shape)[0], seed=seed, scale=scale)


def random_values(init, *, seed=3, scale=0.3):
    """Return random values of the shapes of `init(key)`, without compiling it."""
    shapes = nn.meta.unbox(jax.eval_shape(init, jax.random.key(0)))
    generator = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: np.float32(scale * generator.standard_normal(leaf.shape)), shapes)


def compile_loss(objective, *, gradient=True, train=False):
    """Return a compiled (params, batch, aux={}, key=None, **coefficients) -> ((loss, LossOut), gradient), or only the first."""

    def loss(params, batch, aux, key, coefficients):
        out = objective.loss(params, {}, aux, batch, key=key, train=train)
        return total_loss(out.terms, objective.denominators(batch), coefficients), out

    compiled = jax.jit(jax.value_and_grad(loss, has_aux=True) if gradient else loss)

    def call(params, batch, aux={}, key=None, **changes):  # noqa: B006
        coefficients = objective.coefficients | changes
        values = {name: np.float32(value) for name, value in coefficients.items()}
        return jax.device_get(compiled(params, batch, aux, key, values))

    return call


def assert_sums_of_microbatches(run, batch, *, rtol=1e-5):
    """Check that terms and metrics of a batch are the sums of those of two microbatches, filled up with padding.

    A training step adds the gradients of microbatches, which then are those of the batch, too.

    Args:
      run: compiled function of a batch that returns its LossOut.
      batch: an even number of rows, of which every other one goes to a microbatch.
      rtol: tolerance relative to each sum.
    """
    rows = len(next(iter(batch.values())))
    halves = [tiny.padded({name: value[first::2] for name, value in batch.items()}, rows // 2) for first in (0, 1)]
    whole, *parts = (run(part) for part in (batch, *halves))
    for name, term in whole.terms.items():
        np.testing.assert_allclose(sum(part.terms[name] for part in parts), term, rtol=rtol, err_msg=name)
    for name, metric in whole.metrics.items():
        np.testing.assert_allclose(np.sum([part.metrics[name] for part in parts], axis=0), metric, rtol=rtol, err_msg=name)
