"""Initializers of parameters, boxed with their logical axis names, and their keys."""

import zlib
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import errors

Initializer = jax.nn.initializers.Initializer


def named_key(key: jax.Array, name: str) -> jax.Array:
    """Derive the key of a part's initial values from its name, so that they do not depend on the other parts of a model."""
    return jax.random.fold_in(key, zlib.crc32(name.encode()))


def truncated_normal(deviation: float) -> Initializer:
    """Return BERT's `create_initializer`: a normal truncated at two standard deviations, which are not corrected for it."""
    return nn.initializers.truncated_normal(deviation)


def normal(deviation: float) -> Initializer:
    """Return an untruncated normal initializer, as GPT and its successors use."""
    return nn.initializers.normal(deviation)


def logical(initializer: Initializer, axes: tuple[str | None, ...]) -> Callable[..., Any]:
    """Return the initializer with logical axis names on its result, for sharding."""
    return nn.with_logical_partitioning(initializer, axes)


def param(module: nn.Module, name: str, initializer: Callable[..., Any], shape: tuple[int, ...]) -> jax.Array:
    """Return the module's parameter of that name, float32[*shape]; initialise it if the module is being initialised.

    `nn.Module.param` traces the initializer of a parameter that exists to compare shapes, which is an eighth of the time that
    tracing a training step takes.
    """
    if not module.has_variable("params", name):
        return module.param(name, initializer, shape, jnp.float32)
    value = nn.meta.unbox(module.get_variable("params", name))
    if value.shape != shape:
        raise errors.ScopeParamShapeError(name, "/" + "/".join(module.path), value.shape, shape)
    return value
