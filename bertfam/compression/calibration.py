"""Ranges of the inputs of kernels, measured while a network runs on texts."""

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import traverse_util

from bertfam.compression.quantization import Path, Tree
from bertfam.layers.dense import Dense

_NUMBER = "input_number"  # parameter beside a kernel: the number of its range


class Calibration:
    """Greatest magnitudes of the inputs of kernels, for each layer.

    The kernels of `params` are numbered, layer by layer, so that a scanned loop and layers that share a kernel report to the
    right place.

    Attributes:
      params: the parameters to run the network with.
    """

    def __init__(self, params: Tree, kernels: Collection[Path]) -> None:
        """Set the paths of the kernels, a number for each kernel of each layer beside it."""
        flat = traverse_util.flatten_dict(params)
        self._numbers: dict[Path, np.ndarray] = {}
        count = 0
        for path in kernels:
            layers = flat[path].shape[0]
            self._numbers[path] = np.arange(count, count + layers, dtype=np.int32)
            flat[*path[:-1], _NUMBER] = jnp.asarray(self._numbers[path])
            count += layers
        self._ranges = np.zeros(count, np.float32)
        self.params = traverse_util.unflatten_dict(flat)

    def observe(self, is_token: jax.Array) -> AbstractContextManager[Any]:
        """Return the context in which the network is called; is_token bool[batch, length] is False at padding."""
        return nn.intercept_methods(partial(self._intercept, is_token))

    def ranges(self) -> dict[Path, np.ndarray]:
        """Return the greatest magnitude of each kernel's inputs so far, float32[layers], by the path of the kernel."""
        jax.effects_barrier()
        return {path: self._ranges[numbers] for path, numbers in self._numbers.items()}

    def _intercept(
        self, is_token: jax.Array, method: Callable, args: tuple, kwargs: dict, context: nn.module.InterceptorContext
    ) -> Any:
        module = context.module
        if isinstance(module, Dense) and context.method_name == "parameters" and module.has_variable("params", _NUMBER):
            largest = jnp.abs(args[0])
            if largest.shape[:2] == is_token.shape:
                largest = jnp.where(is_token.reshape(*is_token.shape, *(1,) * (largest.ndim - 2)), largest, 0)
            number: Any = module.get_variable("params", _NUMBER)
            jax.debug.callback(self._record, number, jnp.max(largest).astype(jnp.float32))
        return method(*args, **kwargs)

    def _record(self, number: np.ndarray, largest: np.ndarray) -> None:
        self._ranges[number] = max(self._ranges[number], largest)
