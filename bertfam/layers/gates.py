"""Gates: a factor of each attention head, or of each neuron of a feed-forward network (Michel et al. 2019, section 2.3).

A gate is a parameter named "gate" in the module whose heads or neurons it multiplies. Networks are initialized without gates, and
compute none where their parameters have none.
"""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
from flax import traverse_util

GATE = "gate"


def gated(module: nn.Module, values: jax.Array, axis: int) -> jax.Array:
    """Multiply values by the gate [size of the axis] among the parameters of a module, if it has one.

    Args:
      module: module that is being computed.
      values: [...], with the heads or neurons along an axis.
      axis: negative number of that axis.
    """
    if not module.has_variable("params", GATE):
        return values
    gate = nn.meta.unbox(module.get_variable("params", GATE)).astype(values.dtype)
    # [size] -> [size, 1, ...], which broadcasts along the other axes
    return values * gate.reshape(-1, *(1,) * (-1 - axis))


def with_gates(params: Any, gates: Mapping[tuple[str, ...], jax.Array]) -> Any:
    """Return parameters with gates [layers, size] in modules, by their paths; a gate that is there already is multiplied."""
    flat = traverse_util.flatten_dict(params)
    for path, gate in gates.items():
        flat[*path, GATE] = gate * flat.get((*path, GATE), 1.0)
    return traverse_util.unflatten_dict(flat)
