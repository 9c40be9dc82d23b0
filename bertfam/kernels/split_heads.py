"""Queries, keys and values from the output of their joint product, with biases and rotary positions, in one pass over memory.

The backward pass joins their gradients, turns them back, and sums the gradients of the biases in one pass too.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from bertfam.kernels import rows

_ANGLE_AXES = (*rows.ROW_AXES, None)
# The fastest on an H200, of 512 and 2,048 elements and 4 and 8 warps.
_ELEMENTS = 2048  # of each of queries, keys and values that a program holds at a time
_WARPS, _GRADIENT_WARPS = 8, 4
_LEAST_HALF = 16


class Settings(NamedTuple):
    """Settings of the split.

    Attributes:
      heads_axis: logical axis of the heads; None if they are not sharded.
      turned: number of leading projections that rotary positions turn: queries and keys, not values.
    """

    heads_axis: str | None
    turned: int = 0

    def axes(self, *leading: str | None) -> rows.Axes:
        """Return the logical axes of an array [..., heads, head_dim]."""
        return (*leading, self.heads_axis, None)


def turn(halves: Sequence[jax.Array], cos: jax.Array, sin: jax.Array) -> list[jax.Array]:
    """Rotate the pairs (x[i], x[i + head_dim / 2]) of two halves of heads by the angles with these cosines and sines."""
    first, second = halves
    return [first * cos - second * sin, second * cos + first * sin]


def supports(joint: jax.Array, heads_axis: str | None) -> bool:
    """Return True if the kernels split joint [batch, length, projections, heads, head_dim] on the devices at hand."""
    return rows.run_here(joint.dtype) and fits(joint.shape, heads_axis)


def fits(shape: tuple[int, ...], heads_axis: str | None) -> bool:
    """Return True if the kernels split arrays of this shape [batch, length, projections, heads, head_dim]."""
    half = shape[-1] // 2
    whole = rows.local_shape(shape, (*rows.ROW_AXES, None, heads_axis, None))
    return whole is not None and half >= _LEAST_HALF and half & (half - 1) == 0


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def split(joint: jax.Array, bias: jax.Array | None, angles: jax.Array | None, settings: Settings) -> list[jax.Array]:
    """Split a joint product into its projections, such as queries, keys and values.

    Args:
      joint: bfloat16 or float16[batch, length, projections, heads, head_dim], for which `fits` is true.
      bias: [projections, heads, head_dim] in the same dtype, or None.
      angles: float32[batch, length, head_dim / 2] by which the first projections are turned (see
        `bertfam.layers.positions.rotary`), constants; None: no rotary positions.
      settings: settings of the split.

    Returns:
      The projections [batch, length, heads, head_dim], in the same dtype.
    """
    return _forward(joint, bias, angles, settings)[0]


def _forward(joint: jax.Array, bias: Any, angles: Any, settings: Settings) -> tuple[list[jax.Array], Any]:
    turns = None if angles is None else (jnp.cos(angles), jnp.sin(angles))

    def of_device(joint: jax.Array, bias: Any, turns: Any) -> list[jax.Array]:
        flat = _halves(joint, 2)
        given = [array for array in (flat, _halves(bias, 0), *_flat_turns(turns)) if array is not None]
        count, _, heads, _, half = flat.shape
        turned = settings.turned if turns is not None else 0
        sizes, grid = _tiling(count, heads, half)
        kernel = partial(_forward_kernel, sizes=sizes, biased=bias is not None, turned=turned)
        outputs = [jax.ShapeDtypeStruct((count, *flat.shape[2:]), flat.dtype)] * flat.shape[1]
        run = rows.call(kernel, "split_heads", grid, outputs, warps=_WARPS)
        return [array.reshape(*joint.shape[:2], *joint.shape[3:]) for array in run(*given)]

    turn_axes = None if turns is None else (_ANGLE_AXES, _ANGLE_AXES)
    in_axes = (settings.axes(*rows.ROW_AXES, None), None if bias is None else settings.axes(None), turn_axes)
    found = rows.sharded(of_device, in_axes, [settings.axes(*rows.ROW_AXES)] * joint.shape[2])(joint, bias, turns)
    return found, (turns, bias is not None)


def _backward(settings: Settings, saved: Any, gradients: list[jax.Array]) -> tuple[jax.Array, jax.Array | None, None]:
    turns, has_bias = saved

    def of_device(gradients: list[jax.Array], turns: Any) -> Any:
        shape = gradients[0].shape
        given = [_halves(array, 2) for array in gradients]
        count, heads, _, half = given[0].shape
        sizes, (groups, columns) = _tiling(count, heads, half)
        parts = rows.programs(groups, columns) if has_bias else groups
        kernel = partial(
            _backward_kernel,
            sizes=sizes,
            groups=groups,
            parts=parts,
            count=len(given),
            turned=settings.turned if turns is not None else 0,
        )
        outputs = [jax.ShapeDtypeStruct((count, len(given), heads, 2, half), given[0].dtype)]
        if has_bias:
            outputs.append(jax.ShapeDtypeStruct((parts, len(given), heads, 2, half), jnp.float32))
        turns = [array for array in _flat_turns(turns) if array is not None]
        run = rows.call(kernel, "split_heads_gradient", (parts, columns), outputs, warps=_GRADIENT_WARPS)
        found, *sums = run(*given, *turns)
        joint = found.reshape(*shape[:2], len(given), *shape[2:])
        return [joint, *(array.reshape(parts, len(given), *shape[2:]) for array in sums)]

    turn_axes = None if turns is None else (_ANGLE_AXES, _ANGLE_AXES)
    out_axes = [settings.axes(*rows.ROW_AXES, None), *([settings.axes("rows", None)] if has_bias else [])]
    joint, *sums = rows.sharded(of_device, ([settings.axes(*rows.ROW_AXES)] * len(gradients), turn_axes), out_axes)(
        gradients, turns
    )
    return joint, jnp.sum(sums[0], axis=0).astype(joint.dtype) if has_bias else None, None


split.defvjp(_forward, _backward)


def _halves(array: Any, leading: int) -> Any:
    """Join the first axes, if any, and divide the last one into halves, which rotary positions pair."""
    if array is None:
        return None
    start = array.shape[leading:-1] if not leading else (-1, *array.shape[leading:-1])
    return array.reshape(*start, 2, array.shape[-1] // 2)


def _flat_turns(turns: Any) -> list[Any]:
    return [None, None] if turns is None else [array.reshape(-1, array.shape[-1]) for array in turns]


def _tiling(count: int, heads: int, half: int) -> rows.Tiling:
    most = _ELEMENTS // (2 * half)  # of heads
    return rows.tiling(count, heads, most_columns=most, most=most)


def _forward_kernel(*refs: Any, sizes: tuple[int, int], biased: bool, turned: int) -> None:
    joint, *others = refs
    bias = others.pop(0) if biased else None
    turns = [others.pop(0), others.pop(0)] if turned else []
    own, heads = (rows.span(pl.program_id(axis), sizes[axis]) for axis in range(2))
    angles = [turn[own][:, None] for turn in turns]
    for index, outputs in enumerate(others):
        halves = []
        for half in range(2):
            values = joint[own, index, heads, half]
            if bias is not None:
                values += bias[index, heads, half][None]
            halves.append(values.astype(jnp.float32))
        if index < turned:
            halves = turn(halves, angles[0], angles[1])
        for half, values in enumerate(halves):
            outputs[own, heads, half] = values.astype(outputs.dtype)


def _backward_kernel(*refs: Any, sizes: tuple[int, int], groups: int, parts: int, count: int, turned: int) -> None:
    gradients, others = refs[:count], [*refs[count:]]
    turns = [others.pop(0), others.pop(0)] if turned else []
    joint, *sums = others
    program, heads = pl.program_id(0), rows.span(pl.program_id(1), sizes[1])
    start, number = rows.share(groups, parts)

    def add_group(index: Any, totals: list[jax.Array]) -> list[jax.Array]:
        own = rows.span(start + index, sizes[0])
        angles = [turn[own][:, None] for turn in turns]
        found = []
        for projection, gradient in enumerate(gradients):
            halves = [gradient[own, heads, half].astype(jnp.float32) for half in range(2)]
            if projection < turned:
                halves = turn(halves, angles[0], -angles[1])
            for half, values in enumerate(halves):
                joint[own, projection, heads, half] = values.astype(joint.dtype)
            found += halves
        return [total + values for total, values in zip(totals, found, strict=True)] if sums else []

    shape = (*sizes, gradients[0].shape[-1])
    zeros = [jnp.zeros(shape, jnp.float32)] * (2 * len(gradients)) if sums else []
    totals = jax.lax.fori_loop(0, number, add_group, zeros)
    for place, total in enumerate(totals):
        sums[0][program, place // 2, heads, place % 2] = jnp.sum(total, axis=0)
