"""Shardings from logical axis names, by one table of rules for parameters, optimizer state and batches.

Flax's `nn.logical_to_mesh_sharding` (flax 0.12.8) was considered. If two axes of an array compete for a mesh axis, it decides by
the order of the rules, not of the array's axes. It checks no sizes; here an error names the parameter and the sizes that divide.
"""

import math
from collections.abc import Mapping
from typing import Any

import jax
from flax import linen as nn
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from bertfam.errors import UserError
from bertfam.features import FeatureSpec
from bertfam.layers.embeddings import ROW_MULTIPLE
from bertfam.sharding.rules import Axes, Rules, as_tuple

AnyMesh = Mesh | AbstractMesh


def partition_spec(axes: tuple[str | None, ...], rules: Rules = Rules()) -> PartitionSpec:  # noqa: B008 - frozen
    """Return the mesh axes for logical axes; if two compete for a mesh axis, the first gets it."""
    used: set[str] = set()
    result: list[str | tuple[str, ...] | None] = []
    for axis in axes:
        names = rules.axes(axis)
        free = used.isdisjoint(names)
        result.append((names[0] if len(names) == 1 else names) if names and free else None)
        used.update(names)
    return PartitionSpec(*result)


def state_shardings(boxed: Any, mesh: AnyMesh, rules: Rules = Rules(), *, over: str | None = None) -> Any:  # noqa: B008
    """Return the sharding of every leaf of a tree of shapes boxed with logical axes; leaves without a box are replicated.

    Args:
      boxed: the tree.
      mesh: the mesh.
      rules: the mesh axes that shard each logical axis.
      over: a further mesh axis. It shards the first axis of each leaf whose size it divides; leaves without such an axis stay as
        they are.

    Raises:
      UserError: if a parameter's axis is not divisible by its mesh axis; the message names both and the sizes that divide.
    """

    def sharding(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        if not isinstance(leaf, nn.LogicallyPartitioned):
            return NamedSharding(mesh, PartitionSpec())
        spec = partition_spec(leaf.names, rules)
        for axis, size, mesh_axes in zip(leaf.names, leaf.value.shape, spec, strict=True):
            _check_divisible(f"{axis} of {path_name(path)}", size, mesh_axes, mesh, ROW_MULTIPLE if axis == "vocab" else 1)
        return NamedSharding(mesh, spec if over is None else _split_further(spec, leaf.value.shape, over, mesh))

    return jax.tree_util.tree_map_with_path(sharding, boxed, is_leaf=lambda leaf: isinstance(leaf, nn.LogicallyPartitioned))


def _split_further(spec: PartitionSpec, shape: tuple[int, ...], over: str, mesh: AnyMesh) -> PartitionSpec:
    if any(over in as_tuple(axes) for axes in spec):
        return spec
    for place, (size, axes) in enumerate(zip(shape, spec, strict=True)):
        names = (*as_tuple(axes), over)
        if size % math.prod(mesh.shape[name] for name in names) == 0:
            return PartitionSpec(*spec[:place], names if axes else over, *spec[place + 1 :])
    return spec


def batch_shardings(features: Mapping[str, FeatureSpec], mesh: AnyMesh, rules: Rules = Rules()) -> dict[str, NamedSharding]:  # noqa: B008
    """Return the sharding of every feature of a batch.

    Raises:
      UserError: if the tokens of a row do not divide over their mesh axis.
    """
    for name, spec in features.items():
        for axis, size in zip(spec.axes, spec.shape, strict=True):
            _check_divisible(f"{axis} of {name}", size, rules.axes(axis), mesh)
    return {name: NamedSharding(mesh, partition_spec(("batch", *spec.axes), rules)) for name, spec in features.items()}


def padded_decoder_rows(features: Mapping[str, FeatureSpec], mesh: AnyMesh, rules: Rules = Rules()) -> dict[str, FeatureSpec]:  # noqa: B008
    """Lengthen the decoder's rows of an encoder-decoder until their tokens divide over their mesh axis.

    The noise makes as many targets as it needs, and no setting of a run states their number. Dropout depends on the padded
    length.
    """
    axes = as_tuple(rules.axes("length"))
    parts = math.prod(mesh.shape[axis] for axis in axes)
    has_encoder = any(name.startswith("encoder_") for name in features)

    def padded(name: str, spec: FeatureSpec) -> FeatureSpec:
        if not has_encoder or not name.startswith("decoder_"):
            return spec
        return spec._replace(shape=tuple(-(-size // parts) * parts for size in spec.shape))

    return {name: padded(name, spec) for name, spec in features.items()}


def check_batch(batch_size: int, microbatches: int, mesh: AnyMesh, rules: Rules = Rules()) -> None:  # noqa: B008
    """Raise UserError if a batch cannot be divided into equal microbatches and device shares."""
    if batch_size % microbatches:
        raise UserError(
            f"batch size {batch_size} is not divisible by {microbatches} microbatches; change Stage.batch_size or "
            "Run.microbatches"
        )
    _check_divisible(
        "the number of rows in a microbatch",
        batch_size // microbatches,
        rules.axes("batch"),
        mesh,
        bound_by="(Stage.batch_size / Run.microbatches)",
    )


def _check_divisible(name: str, size: int, mesh_axes: Axes, mesh: AnyMesh, multiple: int = 1, bound_by: str = "") -> None:
    axes = [axis for axis in as_tuple(mesh_axes) if mesh.shape[axis] > 1]
    parts = math.prod(mesh.shape[axis] for axis in axes)
    if size % parts:
        step = math.lcm(parts, multiple)
        near = " or ".join(str(number) for number in (size // step * step, size // step * step + step) if number)
        divisors = ", ".join(str(number) for number in range(1, parts) if math.gcd(size, mesh.size) % number == 0)
        raise UserError(
            f"{name} is {size}, which does not divide over the {parts} parts of mesh axis {' x '.join(axes)}; "
            f"use {' '.join(filter(None, (near, bound_by)))}, or a mesh axis of {divisors}"
        )


def path_name(path: tuple[Any, ...]) -> str:
    """Return the path of a leaf of a tree as text: encoder/layers/attention/key/bias."""
    return "/".join(str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path)
