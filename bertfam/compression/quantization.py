"""Quantisation of a model's parameters to int8 or int4, with scales."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

import jax.numpy as jnp
from flax import linen as nn
from flax import traverse_util

from bertfam.errors import UserError
from bertfam.kernels.quantized_product import (
    INPUT_CLIP,
    INPUT_SCALE,
    KERNEL,
    KERNEL_SCALE,
    RANGE_BOUND,
    quantize_kernel,
    qwix_library,
)
from bertfam.layers.dense import contracted_axes
from bertfam.layers.stack import AXIS, FIRST

Activations = Literal["dynamic", "static", "none"]
Path = tuple[str, ...]
Tree = Mapping[str, Any]
_TABLE_AXES = ("vocab", "embed")


@dataclass(frozen=True)
class Quantization:
    """Integers in the place of the kernels of a network's layers and of its word tables.

    A kernel has a scale for each output, `max |w| / 127.5`; one of int4 has a scale for each output and group of at most 64
    inputs, `max |w| / 7.5`. Products are those of `bertfam.kernels.quantized_product.QuantizedKernel`. A word table is stored
    in int8 with a scale for each row, and becomes float32 when it is read. Biases, norms, other tables and the heads stay
    float32.

    Attributes:
      activations: int8 ranges of the inputs of kernels: "dynamic", computed for each token; "static", one for each kernel,
        calibrated on texts; "none": inputs are not quantised, and kernels are dequantised before each product.
      bits: bits of the kernels: 8, or 4 with activations "none".
      keep: patterns, as of file names, of parameters that stay float32: `encoder/layers/attention/*`.
    """

    activations: Activations = "dynamic"
    bits: int = 8
    keep: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.activations not in ("dynamic", "static", "none"):
            raise UserError(f'Quantization.activations is {self.activations!r}: it must be "dynamic", "static" or "none"')
        if self.bits not in (4, 8):
            raise UserError(f"Quantization.bits is {self.bits}: it must be 8 or 4")
        if self.bits == 4 and self.activations != "none":
            raise UserError('Quantization.bits is 4, and products of int4 are computed in floats: set activations to "none"')

    def kernels(self, params: Tree) -> list[Path]:
        """Return the paths of the kernels in a network's layers, quantised or not, that are not kept."""
        return [path for path in traverse_util.flatten_dict(params) if _is_kernel(path) and not self._keeps(path)]

    def quantized(self, params: Tree, axes: Mapping[Path, Any], ranges: Mapping[Path, Any] | None = None) -> dict[str, Any]:
        """Quantise parameters.

        Args:
          params: parameters, unboxed, of all parts or of some.
          axes: logical axes of the parameters, by path (`axes_of`).
          ranges: of static quantisation, the greatest magnitude of each kernel's inputs, float32[layers]; None: 1.

        Returns:
          the parameters with int8 or int4 arrays; beside a kernel `kernel_scale`, float32 with the axes of the kernel of which
          the contracted ones have the size 1 (of int4: the number of groups), and `input_clip` or `input_scale` float32[layers];
          beside a word table NAME_scale float32[vocab, 1].
        """
        flat = traverse_util.flatten_dict(params)
        for path, value in list(flat.items()):
            if self._keeps(path):
                continue
            if _is_kernel(path):
                array = quantize_kernel(value, contracted_axes(axes[path][1:]), self.bits, first=1)
                flat |= {path: array.qvalue, (*path[:-1], KERNEL_SCALE): array.scale}
                if self.activations == "dynamic":
                    flat[*path[:-1], INPUT_CLIP] = jnp.ones(value.shape[:1])
                elif self.activations == "static":
                    largest = jnp.ones(value.shape[:1]) if ranges is None else jnp.asarray(ranges[path], jnp.float32)
                    flat[*path[:-1], INPUT_SCALE] = largest / RANGE_BOUND
            elif axes[path] == _TABLE_AXES:
                array = qwix_library().quantize(value, "int8", channelwise_axes=(0,))
                flat |= {path: array.qvalue, _scale_of(path): array.scale}
        return traverse_util.unflatten_dict(flat)

    def with_float_tables(self, params: Tree) -> dict[str, Any]:
        """Return parameters as a network reads them: word tables in float32, and the kernels of its layers as they are stored."""
        flat = traverse_util.flatten_dict(params)
        for path in [path for path in flat if _scale_of(path) in flat and not _is_kernel(path)]:
            flat[path] = flat[path] * flat.pop(_scale_of(path))
        return traverse_util.unflatten_dict(flat)

    def in_training(self, params: Tree) -> dict[str, Any]:
        """Return float parameters with which a network computes quantisation-aware: products round their inputs and kernels.

        Quantised kernels stay as they are. Stacks may be divided into layers (`bertfam.layers.stack.divided`).
        """
        flat = traverse_util.flatten_dict(params)
        for path in self.kernels(params):
            if jnp.issubdtype(flat[path].dtype, jnp.floating):
                is_divided = path[_stack_place(path) + 1].isdecimal()
                flat[*path[:-1], INPUT_CLIP] = jnp.ones(() if is_divided else flat[path].shape[:1])
        return traverse_util.unflatten_dict(flat)

    def _keeps(self, path: Path) -> bool:
        return any(fnmatchcase("/".join(path), pattern) for pattern in self.keep)


def axes_of(boxed: Any) -> dict[Path, Any]:
    """Return the logical axes of boxed parameters, or of their shapes, by path; of one without a box None."""
    flat = traverse_util.flatten_dict(boxed)
    return {path: box.names if isinstance(box, nn.LogicallyPartitioned) else None for path, box in flat.items()}


def unmatched(patterns: Collection[str], params: Tree) -> list[str]:
    """Return the patterns that no parameter's path has."""
    names = ["/".join(path) for path in traverse_util.flatten_dict(params)]
    return [pattern for pattern in patterns if not any(fnmatchcase(name, pattern) for name in names)]


def _is_kernel(path: Path) -> bool:
    return path[-1] == KERNEL and bool({AXIS, FIRST} & set(path))


def _stack_place(path: Path) -> int:
    return next(place for place, name in enumerate(path) if name in (AXIS, FIRST))


def _scale_of(path: Path) -> Path:
    return (*path[:-1], f"{path[-1]}_scale")
