"""Unsharding of parameters along "embed", the axis over which fsdp shards them, before they are used."""

from functools import partial

import flax.linen as nn
import jax

Axes = tuple[str | None, ...]


def unshard(param: jax.Array, axes: Axes) -> jax.Array:
    """Return the parameter with its axis "embed" replicated; its gradient is reduced to the parameter's own sharding.

    Without this constraint the compiler may shard activations along "embed" as the parameter is, and move those between devices.
    """
    return _unshard(param, axes) if "embed" in axes and nn.get_logical_axis_rules() else param


def replicated(param: jax.Array, axes: Axes) -> jax.Array:
    """Return the parameter with its axis "embed" replicated on every device, and its gradient likewise."""
    return nn.with_logical_constraint(param, tuple(None if axis == "embed" else axis for axis in axes))


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _unshard(param: jax.Array, axes: Axes) -> jax.Array:
    return replicated(param, axes)


def _forward(param: jax.Array, axes: Axes) -> tuple[jax.Array, None]:
    return replicated(param, axes), None


def _backward(axes: Axes, _: None, gradient: jax.Array) -> tuple[jax.Array]:
    return (nn.with_logical_constraint(gradient, axes),)


_unshard.defvjp(_forward, _backward)
