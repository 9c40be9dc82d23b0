"""Initial values of parameters, boxed with their logical axis names."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax

Initializer = jax.nn.initializers.Initializer


def truncated_normal(deviation: float) -> Initializer:
    """Return a normal cut at two deviations, the deviation not corrected for the cut: BERT's `create_initializer`."""
    return nn.initializers.truncated_normal(deviation)


def normal(deviation: float) -> Initializer:
    """Return a normal that is not cut: that of GPT and its successors."""
    return nn.initializers.normal(deviation)


def logical(initializer: Initializer, axes: tuple[str | None, ...]) -> Callable[..., Any]:
    """Return the initializer whose result carries logical axis names, for sharding."""
    return nn.with_logical_partitioning(initializer, axes)
