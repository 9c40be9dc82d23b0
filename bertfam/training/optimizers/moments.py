"""First and second moments of the gradient, and the update of Adam and its variants; see `adam` for the optax functions."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import DTypeLike

from bertfam.training.optimizers.tensors import Tree


class Moments(NamedTuple):
    """State of `scale_by_moments`; updates: int32[], the number of updates; mu, nu: shaped like the parameters."""

    updates: jax.Array
    mu: Tree
    nu: Tree


def scale_by_moments(
    b1: float, b2: float, epsilon: float, *, corrected: bool, mu_dtype: DTypeLike, nu_dtype: DTypeLike
) -> optax.GradientTransformation:
    """Scale by the moments: m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  u = m / (sqrt(v) + epsilon).

    `corrected` divides m by 1 - b1^t and v by 1 - b2^t first, t being the updates made (Kingma and Ba 2015, algorithm 1).
    Everything is computed in float32; the moments are kept in the dtypes given.
    """

    def init(params: Tree) -> Moments:
        mu = jax.tree.map(lambda leaf: jnp.zeros_like(leaf, mu_dtype), params)
        nu = jax.tree.map(lambda leaf: jnp.zeros_like(leaf, nu_dtype), params)
        return Moments(jnp.zeros((), jnp.int32), mu, nu)

    def update(gradient: Tree, state: Moments, params: Tree = None) -> tuple[Tree, Moments]:
        count = state.updates + 1
        mu = jax.tree.map(lambda g, m: b1 * m.astype(jnp.float32) + (1 - b1) * g, gradient, state.mu)
        nu = jax.tree.map(lambda g, v: b2 * v.astype(jnp.float32) + (1 - b2) * g * g, gradient, state.nu)
        first, second = (one_minus_power(b1, count), one_minus_power(b2, count)) if corrected else (1.0, 1.0)
        updates = jax.tree.map(lambda m, v: m / first / (jnp.sqrt(v / second) + epsilon), mu, nu)
        return updates, Moments(count, optax.tree.cast(mu, mu_dtype), optax.tree.cast(nu, nu_dtype))

    return optax.GradientTransformation(init, update)


def one_minus_power(base: float, count: Any) -> jax.Array:
    """Compute 1 - base ** count, float32[], without cancellation for a base close to 1; 0 <= base < 1."""
    return -jnp.expm1(count * jnp.float32(math.log(base))) if base else jnp.ones(())
