"""The hidden layer of a feed-forward network in one pass over memory forward and one backward, with the bias' gradient.

XLA computes the cumulative distribution of a GELU once, and keeps it in float32 for the backward pass, twice the size of the
hidden layer, and sums the gradient of the bias in a pass of its own. These kernels keep the products' output alone.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from bertfam.kernels import rows

Function = Callable[[jax.Array], jax.Array]  # of float32

# The fastest on an H200, of 1,024 and 4,096 elements and 4 and 8 warps.
_ELEMENTS = 4096  # that a program holds at a time
_WARPS, _GRADIENT_WARPS = 4, 8
_MOST_CHUNK, _LEAST_CHUNK = 1024, 64


class Settings(NamedTuple):
    """Settings of a hidden layer.

    Attributes:
      activation: the activation function.
      gated: True to multiply the activation of the first half of the products by the second half.
    """

    activation: Function
    gated: bool = False


def supports(products: jax.Array) -> bool:
    """Return True if the kernels compute on the devices at hand for products [batch, length, ..., mlp]."""
    return rows.run_here(products.dtype) and products.ndim in (3, 4) and fits(products.shape)


def fits(shape: tuple[int, ...]) -> bool:
    """Return True if the kernels compute for products of this shape [batch, length, ..., mlp]."""
    local = rows.local_shape(shape, _axes(len(shape) == 4))
    return local is not None and rows.chunk(local[-1], _MOST_CHUNK) >= _LEAST_CHUNK


def _axes(gated: bool) -> rows.Axes:
    return (*rows.ROW_AXES, None, "mlp") if gated else (*rows.ROW_AXES, "mlp")


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def activate(products: jax.Array, bias: jax.Array | None, settings: Settings) -> jax.Array:
    """Compute activation(products + bias), or activation(gate + bias[0]) * (linear + bias[1]) if gated, in float32.

    Args:
      products: bfloat16 or float16[batch, length, mlp]; gated [batch, length, 2, mlp], gate and linear.
      bias: [mlp], gated [2, mlp], in the same dtype; or None.
      settings: settings of the layer.

    Returns:
      [batch, length, mlp], in the same dtype.
    """
    return _forward(products, bias, settings)[0]


def _forward(products: jax.Array, bias: jax.Array | None, settings: Settings) -> tuple[jax.Array, Any]:
    axes = _axes(settings.gated)

    def of_device(products: jax.Array, bias: jax.Array | None) -> jax.Array:
        given = [array for array in (_flat(products), bias) if array is not None]
        count, size = len(given[0]), products.shape[-1]
        sizes, grid = _tiling(count, size)
        kernel = partial(_forward_kernel, settings=settings, sizes=sizes, biased=bias is not None)
        outputs = jax.ShapeDtypeStruct((count, size), products.dtype)
        run = rows.call(kernel, "hidden_layer", grid, outputs, warps=_WARPS)
        return run(*given).reshape(*products.shape[:2], size)

    found = rows.sharded(of_device, (axes, None if bias is None else axes[2:]), _axes(gated=False))(products, bias)
    return found, (products, bias)


def _backward(settings: Settings, saved: Any, gradient: jax.Array) -> tuple[jax.Array, jax.Array | None]:
    products, bias = saved
    axes = _axes(settings.gated)

    def of_device(products: jax.Array, bias: jax.Array | None, gradient: jax.Array) -> Any:
        flat = _flat(products)
        found, sums = _call_backward(flat, bias, gradient.reshape(len(flat), -1), settings)
        return found.reshape(products.shape), sums

    bias_axes = None if bias is None else axes[2:]
    out_axes = (axes, None if bias is None else ("rows", *axes[2:]))
    found, sums = rows.sharded(of_device, (axes, bias_axes, _axes(gated=False)), out_axes)(products, bias, gradient)
    return found, None if bias is None else jnp.sum(sums, axis=0).astype(bias.dtype)


activate.defvjp(_forward, _backward)


def _flat(products: jax.Array) -> jax.Array:
    return products.reshape(-1, *products.shape[2:])


def _tiling(count: int, size: int) -> rows.Tiling:
    return rows.tiling(count, size, most_columns=_MOST_CHUNK, most=_ELEMENTS)


def _call_backward(products: Any, bias: Any, gradient: Any, settings: Settings) -> tuple[jax.Array, jax.Array | None]:
    """Return the gradient of the products, and sums of that of the bias over parts of the rows, float32[parts, ...]."""
    sizes, (groups, columns) = _tiling(*gradient.shape)
    parts = groups if bias is None else rows.programs(groups, columns)
    kernel = partial(_backward_kernel, settings=settings, sizes=sizes, groups=groups, parts=parts, biased=bias is not None)
    outputs = [products]
    if bias is not None:
        outputs.append(jax.ShapeDtypeStruct((parts, *bias.shape), jnp.float32))
    given = [array for array in (products, bias, gradient) if array is not None]
    run = rows.call(kernel, "hidden_layer_gradient", (parts, columns), outputs, warps=_GRADIENT_WARPS)
    found, *sums = run(*given)
    return found, sums[0] if sums else None


def _loaded(array: Any, own: Any, column: Any, bias: Any, gated: bool) -> list[jax.Array]:
    """Return the products of a group of rows with their bias, as the forward pass rounds them, in float32."""
    found = []
    for half in ((0, column), (1, column)) if gated else ((column,),):
        values = array[(own, *half)]
        if bias is not None:
            values += bias[half][None]
        found.append(values.astype(jnp.float32))
    return found


def _forward_kernel(*refs: Any, settings: Settings, sizes: tuple[int, int], biased: bool) -> None:
    products, *others, outputs = refs
    own, column = (rows.span(pl.program_id(axis), sizes[axis]) for axis in range(2))
    gate, *linear = _loaded(products, own, column, others[0] if biased else None, settings.gated)
    hidden = settings.activation(gate)
    for factor in linear:
        hidden *= factor
    outputs[own, column] = hidden.astype(outputs.dtype)


def _backward_kernel(*refs: Any, settings: Settings, sizes: tuple[int, int], groups: int, parts: int, biased: bool) -> None:
    products, *others = refs
    bias = others.pop(0) if biased else None
    gradient, outputs, *sums = others
    program, column = pl.program_id(0), rows.span(pl.program_id(1), sizes[1])
    start, number = rows.share(groups, parts)

    def add_group(index: Any, totals: list[jax.Array]) -> list[jax.Array]:
        own = rows.span(start + index, sizes[0])
        gate, *linear = _loaded(products, own, column, bias, settings.gated)
        given = gradient[own, column].astype(jnp.float32)
        value, slope = jax.jvp(settings.activation, (gate,), (jnp.ones_like(gate),))
        found = [given * slope * linear[0], given * value] if linear else [given * slope]
        for half, part in enumerate(found):
            outputs[(own, half, column) if linear else (own, column)] = part.astype(outputs.dtype)
        return [total + part for total, part in zip(totals, found, strict=True)] if biased else []

    zeros = [jnp.zeros(sizes, jnp.float32)] * (1 + settings.gated) if biased else []
    totals = jax.lax.fori_loop(0, number, add_group, zeros)
    for half, total in enumerate(totals):
        place = (program, half, column) if settings.gated else (program, column)
        sums[0][place] = jnp.sum(total, axis=0)
