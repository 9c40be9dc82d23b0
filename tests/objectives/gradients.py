"""Random parameters of an objective, and compiled gradients of its batches, in NumPy arrays."""

import jax
import numpy as np
import tiny
from flax import linen as nn

from bertfam.training.state import TrainState
from bertfam.training.step import make_gradient, total_loss


def random_params(objective, *, seed=3, scale=0.3, shape=tiny.SHAPE):
    """Return random parameters, including biases and norm scales."""
    shapes = nn.meta.unbox(jax.eval_shape(lambda key: objective.init(key, shape)[0], jax.random.key(0)))
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


def compile_microbatches(objective, count):
    """Return a compiled (params, batch, aux={}, step=0) -> (gradient, metrics) of a training step."""
    compiled = jax.jit(make_gradient(objective, seed=0, microbatches=count))

    def call(params, batch, aux={}, step=0):  # noqa: B006
        gradient, _, metrics = compiled(TrainState(np.int32(step), params, {}, {}, aux, {}, np.int32(0)), batch)
        return jax.device_get((gradient, metrics))

    return call
