"""From logical axis names to shardings: one rules table for parameters, optimizer state and batches."""

import math
from collections.abc import Mapping
from typing import Any

import jax
from flax import linen as nn
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bertfam.errors import UserError
from bertfam.features import FeatureSpec
from bertfam.layers.embeddings import ROW_MULTIPLE

# What each logical axis is split over; an axis that is not named here is whole on every device.
RULES: Mapping[str, str | tuple[str, ...]] = {
    "batch": ("data", "fsdp"),
    "vocab": "tensor",
    "heads": "tensor",
    "mlp": "tensor",
    "embed": "fsdp",
}


def partition_spec(axes: tuple[str | None, ...]) -> PartitionSpec:
    """Mesh axes for logical ones; where two want the same mesh axis, the first gets it."""
    used: set[str] = set()
    result: list[str | tuple[str, ...] | None] = []
    for axis in axes:
        mesh_axes = RULES.get(axis) if axis else None
        names = (mesh_axes,) if isinstance(mesh_axes, str) else mesh_axes or ()
        result.append(None if used.intersection(names) else mesh_axes)
        used.update(names)
    return PartitionSpec(*result)


def state_shardings(boxed: Any, mesh: Mesh) -> Any:
    """The sharding of every leaf of a tree of shapes boxed with logical axes; boxless leaves are whole on every device.

    Raises:
      UserError: where a parameter's axis is not divisible by its mesh axis, naming both and the sizes that work.
    """

    def sharding(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        if not isinstance(leaf, nn.LogicallyPartitioned):
            return NamedSharding(mesh, PartitionSpec())
        spec = partition_spec(leaf.names)
        for axis, size, mesh_axes in zip(leaf.names, leaf.value.shape, spec, strict=True):
            _check_divisible(f"{axis} of {_name(path)}", size, mesh_axes, mesh, ROW_MULTIPLE if axis == "vocab" else 1)
        return NamedSharding(mesh, spec)

    return jax.tree_util.tree_map_with_path(sharding, boxed, is_leaf=lambda leaf: isinstance(leaf, nn.LogicallyPartitioned))


def batch_shardings(features: Mapping[str, FeatureSpec], mesh: Mesh) -> dict[str, NamedSharding]:
    """The sharding of every feature of a batch."""
    return {name: NamedSharding(mesh, partition_spec(("batch", *spec.axes))) for name, spec in features.items()}


def check_batch(batch_size: int, microbatches: int, mesh: Mesh) -> None:
    """Raises UserError where a batch cannot be cut into equal microbatches and device shares."""
    if batch_size % microbatches:
        raise UserError(
            f"batch size {batch_size} is not divisible by {microbatches} microbatches; change Stage.batch_size or "
            "Run.microbatches"
        )
    _check_divisible("the number of rows in a microbatch", batch_size // microbatches, RULES["batch"], mesh)


def _check_divisible(what: str, size: int, mesh_axes: str | tuple[str, ...] | None, mesh: Mesh, multiple: int = 1) -> None:
    names = (mesh_axes,) if isinstance(mesh_axes, str) else mesh_axes or ()
    parts = 1
    for name in names:
        parts *= mesh.shape[name]
    if size % parts:
        step = math.lcm(parts, multiple)
        near = " or ".join(str(number) for number in (size // step * step, size // step * step + step) if number)
        divisors = ", ".join(str(number) for number in range(1, parts) if size % number == 0)
        raise UserError(
            f"{what} is {size}, which does not divide over the {parts} parts of mesh axis {' x '.join(names)}; "
            f"use {near}, or a mesh axis of {divisors}"
        )


def _name(path: tuple[Any, ...]) -> str:
    return "/".join(str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path)
