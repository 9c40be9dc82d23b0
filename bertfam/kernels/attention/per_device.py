"""Kernels on a mesh: each device computes the attention of its own rows, heads and queries.

The compiler cannot partition a kernel, and would gather its inputs on every device.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from bertfam.kernels.attention.interface import Inputs
from bertfam.kernels.attention.patterns import Pattern, Window

_OUTSIDE = -1  # segment of keys beyond the ends of a row


class Halo(NamedTuple):
    """Number of keys before and after a device's own that it receives from its neighbours along a row."""

    left: int
    right: int


def length_shards() -> int:
    """Return the number of devices of the current mesh over which the tokens of a row are sharded."""
    return jax.sharding.get_abstract_mesh().shape.get("sequence", 1)


def window_halo(pattern: Pattern, own: int, multiple: int = 1) -> Halo | None:
    """Return the keys beside its own that a device requires; None if it requires more than its neighbours have, or has all.

    Args:
      pattern: the places that a query may attend to.
      own: number of places of a row that each device has.
      multiple: number that both sides are rounded up to a multiple of.
    """
    if length_shards() == 1 or not isinstance(pattern, Window) or pattern.left is None or pattern.right is None:
        return None
    halo = Halo(*(-(-side // multiple) * multiple for side in (pattern.left, pattern.right)))
    return halo if max(halo) <= own else None


def per_device(
    compute: Callable[[Inputs, Any], jax.Array],
    inputs: Inputs,
    extra: Any = None,
    extra_specs: Any = None,
    halo: Halo | None = None,
) -> jax.Array:
    """Compute attention on the devices of the current mesh, according to the current logical axis rules.

    Rows and heads are sharded as the rules say, and the queries of a row too. Every device has all keys of its rows, or, with
    `halo`, those of its own places and of a few places beside them.

    Args:
      compute: function of a device's inputs and of its part of `extra`, which returns the output.
      inputs: global inputs of self-attention, with `key_segment_ids`; shapes as in `Inputs`.
      extra: further arrays of the kernel, or a tree of them.
      extra_specs: the mesh axes that shard `extra`: a tree of `PartitionSpec`, or one for all; None: none.
      halo: the places beside a device's own, at most as many as its own.

    If the tokens of a row are sharded, a device's `Inputs.offset` is the place of its first query among its keys.

    Returns:
      The output [batch, length, heads, head_dim].
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return compute(inputs, extra)
    # One key head for all query heads (multi-query attention) is not sharded, and its query heads would need it everywhere.
    heads = "heads" if 1 < inputs.query.shape[2] == inputs.key.shape[2] else None
    queries, keys = ("batch", "length", heads, None), ("batch", "length" if halo else None, heads, None)
    axes = {"query": queries, "key": keys, "value": keys, "segment_ids": queries[:2], "key_segment_ids": keys[:2]}
    specs = {name: nn.logical_to_mesh_axes(names) for name, names in axes.items()}

    def of_device(arrays: dict[str, Any], extra: Any) -> jax.Array:
        if length_shards() > 1:
            first = jax.lax.axis_index("sequence") * arrays["query"].shape[1]
            arrays["offset"] = jnp.int32(halo.left) if halo else first
        if halo:
            arrays |= {name: _with_neighbours(arrays[name], halo) for name in ("key", "value")}
            # Places beyond the ends of a row arrive as 0.
            arrays["key_segment_ids"] = _with_neighbours(arrays["key_segment_ids"] - _OUTSIDE, halo) + _OUTSIDE
        return compute(Inputs(**arrays), extra)

    extra_specs = PartitionSpec() if extra_specs is None else extra_specs
    run = jax.shard_map(of_device, in_specs=(specs, extra_specs), out_specs=specs["query"], check_vma=False)
    return run({name: getattr(inputs, name) for name in axes}, extra)


def _with_neighbours(array: jax.Array, halo: Halo) -> jax.Array:
    """Join a device's part of rows [batch, length, ...] with the places beside it; 0 beyond the ends of the rows."""
    devices = length_shards()
    parts = [array]
    if halo.left:
        forward = [(device, device + 1) for device in range(devices - 1)]
        parts.insert(0, jax.lax.ppermute(array[:, -halo.left :], "sequence", forward))
    if halo.right:
        backward = [(device + 1, device) for device in range(devices - 1)]
        parts.append(jax.lax.ppermute(array[:, : halo.right], "sequence", backward))
    return jnp.concatenate(parts, axis=1)
