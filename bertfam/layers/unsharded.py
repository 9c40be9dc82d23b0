"""Parameters where they are used: whole in the width, in which fsdp stores them split."""

from functools import partial

import flax.linen as nn
import jax

Axes = tuple[str | None, ...]


def gathered(param: jax.Array, axes: Axes) -> jax.Array:
    """The parameter with its axis "embed" whole on every device; its gradient is summed into the parameter's own shares.

    Said outright, since the compiler may else split activations in the width, as the parameter is, and move these about.
    """
    return _gathered(param, axes) if "embed" in axes and nn.get_logical_axis_rules() else param


def whole(param: jax.Array, axes: Axes) -> jax.Array:
    """The parameter with its axis "embed" whole on every device, and its gradient likewise."""
    return nn.with_logical_constraint(param, tuple(None if axis == "embed" else axis for axis in axes))


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _gathered(param: jax.Array, axes: Axes) -> jax.Array:
    return whole(param, axes)


def _forward(param: jax.Array, axes: Axes) -> tuple[jax.Array, None]:
    return whole(param, axes), None


def _backward(axes: Axes, _: None, gradient: jax.Array) -> tuple[jax.Array]:
    return (nn.with_logical_constraint(gradient, axes),)


_gathered.defvjp(_forward, _backward)
