"""LoRA: low-rank adapters in a network that does not change (Hu et al. 2021).

qwix (version 0.1.8, `LoraProvider`) was considered. It finds a kernel by the operand of a matrix product, and here one product
has the stacked kernels of queries, keys and values: of the six kernels of a BERT layer it adapted two, without a word.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import traverse_util

from bertfam.errors import UserError
from bertfam.kernels.quantized_product import KERNEL
from bertfam.layers.dense import ADAPTER_IN, ADAPTER_OUT, contracted_axes
from bertfam.layers.initializers import named_key
from bertfam.layers.stack import AXIS, FIRST
from bertfam.objectives.objective import Tree

ADAPTERS = "adapters"
_Path = tuple[str, ...]


@dataclass(frozen=True)
class Lora:
    """Low-rank adapters of the kernels in a network's layers: h = x (W + alpha / rank A B) (Hu et al. 2021, equation 3).

    All kernels of attention and feed-forward networks have one. A [inputs, rank] starts normal with the variance 1 / inputs and
    B [rank, outputs] as zero, so that the network starts unchanged; W is never trained. The adapters are the part "adapters" of
    the parameters, with the layers first.

    Attributes:
      rank: Rank of the products A B.
      alpha: Numerator of their scale alpha / rank.
    """

    rank: int = 8
    alpha: float = 8.0

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise UserError(f"Lora.rank is {self.rank}: it must be at least 1")
        if not 0 < self.alpha < math.inf:
            raise UserError(f"Lora.alpha is {self.alpha:g}: it must be a number above 0")

    @property
    def scale(self) -> float:
        """Factor of the products A B."""
        return self.alpha / self.rank

    def init(self, key: jax.Array, params: Tree) -> Tree:
        """Initialize the adapters of boxed parameters; return them boxed, by the paths of their kernels."""
        adapters: dict[_Path, nn.LogicallyPartitioned] = {}
        for path, kernel in traverse_util.flatten_dict(params).items():
            if path[-1] == KERNEL and {AXIS, FIRST} & set(path):
                adapters |= self._factors(named_key(key, "/".join(path)), path[:-1], kernel)
        return traverse_util.unflatten_dict(adapters)

    def _factors(self, key: jax.Array, path: _Path, kernel: nn.LogicallyPartitioned) -> dict[_Path, nn.LogicallyPartitioned]:
        """Initialize the factors float32[layers, *inputs, rank] and [layers, rank, *outputs] of a kernel's adapter."""
        (layers, *shape), (axis, *axes) = kernel.unbox(apply_constraint=False).shape, kernel.names
        inputs = contracted_axes(axes)
        deviation = math.prod(shape[:inputs]) ** -0.5
        first = deviation * jax.random.normal(key, (layers, *shape[:inputs], self.rank))
        second = jnp.zeros((layers, self.rank, *shape[inputs:]))
        return {
            (*path, ADAPTER_IN): nn.LogicallyPartitioned(first, (axis, *axes[:inputs], None)),
            (*path, ADAPTER_OUT): nn.LogicallyPartitioned(second, (axis, None, *axes[inputs:])),
        }

    def placed(self, params: Tree) -> Tree:
        """Return the parameters with the scaled adapters beside their kernels, where `bertfam.layers.dense.Dense` reads them."""
        flat = traverse_util.flatten_dict(without_adapters(params))
        for path, factor in traverse_util.flatten_dict(params[ADAPTERS]).items():
            flat[path] = self.scale * factor if path[-1] == ADAPTER_OUT else factor
        return traverse_util.unflatten_dict(flat)

    def merged(self, params: Tree) -> Tree:
        """Return the parameters, JAX's or NumPy's arrays, with kernels W + alpha / rank A B in the place of the adapters."""
        flat, adapters = (traverse_util.flatten_dict(tree) for tree in (without_adapters(params), params[ADAPTERS]))
        for path in {path[:-1] for path in adapters}:
            kernel, first, second = flat[*path, KERNEL], adapters[*path, ADAPTER_IN], adapters[*path, ADAPTER_OUT]
            # [layers, inputs, rank] @ [layers, rank, outputs]
            product = first.reshape(len(first), -1, self.rank) @ second.reshape(len(second), self.rank, -1)
            flat[*path, KERNEL] = kernel + self.scale * product.reshape(kernel.shape)
        return traverse_util.unflatten_dict(flat)


def without_adapters(params: Tree) -> Tree:
    """Return the parameters of the network and its head alone."""
    return {name: part for name, part in params.items() if name != ADAPTERS}
