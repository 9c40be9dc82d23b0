"""Common parts of the kernels that read and write whole rows of activations once, for NVIDIA GPUs (Pallas on Triton).

A kernel sees arrays [rows, ...] of one device, and processes a few rows in each step. Sizes of what it holds at a time are
powers of two, as Triton requires.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.sharding import PartitionSpec

from bertfam.kernels.target import target

Axes = tuple[str | None, ...]
ROW_AXES = ("batch", "length")  # of all arrays that are computed row by row
_LEAST_COMPUTE_CAPABILITY = 8.0  # the first whose GPUs compute in bfloat16
# Pallas changes between versions: the first that the kernels ran on a GPU with, and the first that they were not tested with.
_JAX_FROM, _JAX_BEFORE = (0, 11, 2), (0, 13)
_MOST_PROGRAMS = 1056  # of a kernel that sums over rows: 8 on each of the 132 multiprocessors of an H100 or H200


def run_here(dtype: Any) -> bool:
    """Return True if the kernels run on the devices that a program is traced for, and compute in the dtype."""
    if dtype not in (jnp.bfloat16, jnp.float16) or not _JAX_FROM <= jax.__version_info__ < _JAX_BEFORE:
        return False
    platform, compute_capability = target()
    return platform == "gpu" and (compute_capability or 0) >= _LEAST_COMPUTE_CAPABILITY


def join_products(dtype: Any) -> bool:
    """Return True if products with several kernels are to be computed as one, as the kernels of this package read them.

    On a CPU, stacked kernels are copied in each call, which takes longer than the products of a short row.
    """
    return run_here(dtype) or target()[0] != "cpu"


def local_shape(shape: Sequence[int], axes: Axes) -> tuple[int, ...] | None:
    """Return the shape of a device's part of an array with these logical axes; None if the parts would not be equal."""
    sizes = jax.sharding.get_abstract_mesh().shape
    parts = []
    for count, names in zip(shape, _mesh_axes(axes), strict=True):
        devices = 1
        for name in _names(names):
            devices *= sizes.get(name, 1)
        if count % devices:
            return None
        parts.append(count // devices)
    return tuple(parts)


def sharded(compute: Callable[..., Any], in_axes: Any, out_axes: Any) -> Callable[..., Any]:
    """Return a function that computes on each device with its part of the arrays.

    `in_axes` and `out_axes` are trees of the logical axes of arguments and results; an axis "rows" is sharded as `ROW_AXES`
    together are.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return compute
    in_specs, out_specs = (jax.tree.map(_spec, axes, is_leaf=_is_axes) for axes in (in_axes, out_axes))
    return jax.shard_map(compute, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def _is_axes(value: Any) -> bool:
    return isinstance(value, tuple) and all(name is None or isinstance(name, str) for name in value)


def _spec(axes: Axes) -> PartitionSpec:
    rows = tuple(name for names in _mesh_axes(ROW_AXES) for name in _names(names))
    own = _mesh_axes(tuple(None if axis == "rows" else axis for axis in axes))
    return PartitionSpec(*(rows if axis == "rows" else names for axis, names in zip(axes, own, strict=True)))


def _mesh_axes(axes: Axes) -> PartitionSpec:
    return nn.logical_to_mesh_axes(axes) or PartitionSpec()


def _names(names: Any) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names or ()


def chunk(size: int, most: int) -> int:
    """Return the largest power of two up to `most` that divides a size."""
    return min(size & -size, most)


class Tiling(NamedTuple):
    """Tiles of an array [rows, columns], one of which a program holds at a time.

    Attributes:
      sizes: rows and columns of a tile.
      grid: number of tiles along rows and along columns.
    """

    sizes: tuple[int, int]
    grid: tuple[int, int]


def tiling(count: int, columns: int, *, most_columns: int, most: int) -> Tiling:
    """Divide an array of `count` rows into tiles of at most `most_columns` columns and `most` elements, but at least one."""
    own_columns = chunk(columns, max(most_columns, 1))
    own_rows = chunk(count, max(most // own_columns, 1))
    return Tiling((own_rows, own_columns), (count // own_rows, columns // own_columns))


def span(number: Any, size: int) -> Any:
    """Return the slice of the part with this number, from 0, of an axis in parts of `size`."""
    return pl.ds(number * size, size)


def programs(groups: int, columns: int = 1) -> int:
    """Return the number of programs that sum over `groups` groups of rows in each of `columns` columns.

    It divides the groups where they have a divisor that keeps the GPU busy; see `share`.
    """
    most = min(groups, max(_MOST_PROGRAMS // columns, 1))
    return next((count for count in range(most, most // 2, -1) if groups % count == 0), most)


def share(groups: int, count: int) -> tuple[Any, Any]:
    """Return the first group of this program, one of `count` along the first axis of the grid, and the number of its groups."""
    program, (least, more) = pl.program_id(0), divmod(groups, count)
    if not more:
        return program * least, least
    return program * least + jnp.minimum(program, more), least + (program < more)


def call(kernel: partial[None], name: str, grid: tuple[int, ...], outputs: Any, *, warps: int) -> Callable[..., Any]:
    """Return the function that runs a kernel, whose references are whole arrays; other platforms than GPUs interpret it.

    Args:
      kernel: the kernel with its settings, which are hashable.
      name: its name in profiles.
      grid: number of programs along each axis.
      outputs: tree of arrays or of their shapes and dtypes.
      warps: warps of a program.
    """
    leaves, structure = jax.tree.flatten(outputs)
    settings = tuple(sorted(kernel.keywords.items()))
    return _call(kernel.func, settings, name, grid, structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves), warps)


@lru_cache(maxsize=256)
def _call(
    kernel: Callable[..., None], settings: Any, name: str, grid: tuple[int, ...], structure: Any, shapes: Any, warps: int
) -> Callable[..., Any]:
    """Return the same function for the same kernel, so that a program traces and lowers it once for all of its layers."""
    from jax.experimental.pallas import triton

    outputs = structure.unflatten(jax.ShapeDtypeStruct(*shape) for shape in shapes)
    parameters = triton.CompilerParams(num_warps=warps, num_stages=1)
    interpret = jax.default_backend() != "gpu"
    run = pl.pallas_call(
        partial(kernel, **dict(settings)), outputs, grid=grid, interpret=interpret, compiler_params=parameters, name=name
    )
    return jax.jit(run)
