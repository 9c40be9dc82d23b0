"""Layer normalisation in one pass over memory forward, and one backward, with the sums of the gradients of scale and bias.

XLA reads the inputs several times: for the statistics, the output, the gradient and its sums. These kernels hold whole rows.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from bertfam.kernels import rows

_AXES = (*rows.ROW_AXES, None)
# Of rows 768 wide, 2 at a time with one warp were the fastest on an H200, of 1, 2 and 4 with 1, 2 and 4 warps.
_ROWS, _WARPS = 2, 1  # that a program holds at a time
_MOST_CHUNK, _LEAST_CHUNK, _MOST_CHUNKS = 1024, 64, 8  # a row is held in chunks


class Settings(NamedTuple):
    """Settings of a normalisation.

    Attributes:
      epsilon: added to the variance.
      centred: True to subtract the mean; False is root mean square normalisation.
      branches: True to return the normalised sum and the sum, so that the gradients of both are added in one pass.
    """

    epsilon: float
    centred: bool = True
    branches: bool = False


def supports(inputs: jax.Array) -> bool:
    """Return True if the kernels normalise inputs [batch, length, embed] on the devices at hand."""
    return rows.run_here(inputs.dtype) and inputs.ndim == 3 and fits(inputs.shape)


def fits(shape: tuple[int, ...]) -> bool:
    """Return True if the kernels normalise arrays of this shape [batch, length, embed]."""
    local = rows.local_shape(shape, _AXES)
    if local is None:
        return False
    chunk = rows.chunk(local[2], _MOST_CHUNK)
    return chunk >= _LEAST_CHUNK and local[2] // chunk <= _MOST_CHUNKS and local[0] * local[1] % _ROWS == 0


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def normalise(inputs: jax.Array, added: jax.Array | None, scale: jax.Array, bias: jax.Array | None, settings: Settings) -> Any:
    """Normalise x = inputs + added: (x - mean) / sqrt(variance + epsilon) * scale + bias, in float32.

    Args:
      inputs: bfloat16 or float16[batch, length, embed], for which `fits` is true.
      added: like inputs, or None for 0.
      scale: float32[embed].
      bias: float32[embed], or None.
      settings: settings of the normalisation.

    Returns:
      The normalised sum in the dtype of the inputs; with `settings.branches` the sum, and the normalised sum.
    """
    total, normed = _run_forward(inputs, added, scale, bias, settings, keep=settings.branches)
    return (total, normed) if settings.branches else normed


def _forward(
    inputs: jax.Array, added: jax.Array | None, scale: jax.Array, bias: jax.Array | None, settings: Settings
) -> tuple[Any, Any]:
    total, normed = _run_forward(inputs, added, scale, bias, settings, keep=True)
    return ((total, normed) if settings.branches else normed), (total, scale, added is not None, bias is not None)


def _backward(settings: Settings, saved: Any, gradients: Any) -> Any:
    total, scale, has_added, has_bias = saved
    branch, gradient = gradients if settings.branches else (None, gradients)

    def of_device(total: jax.Array, scale: jax.Array, gradient: jax.Array, branch: jax.Array | None) -> Any:
        found, sums = _call_backward(_flat(total), _flat(gradient), _flat(branch), scale, settings)
        return found.reshape(total.shape), sums

    in_axes = (_AXES, (None,), _AXES, None if branch is None else _AXES)
    found, sums = rows.sharded(of_device, in_axes, (_AXES, ("rows", None, None)))(total, scale, gradient, branch)
    scale_gradient, bias_gradient = jnp.sum(sums, axis=0)
    return found, found if has_added else None, scale_gradient, bias_gradient if has_bias else None


normalise.defvjp(_forward, _backward)


def _flat(array: jax.Array | None) -> Any:
    return None if array is None else array.reshape(-1, array.shape[-1])


def _run_forward(inputs: Any, added: Any, scale: Any, bias: Any, settings: Settings, *, keep: bool) -> tuple[Any, jax.Array]:
    """Return the sum, or None unless `keep`, and the normalised sum."""

    def of_device(inputs: jax.Array, added: jax.Array | None, scale: jax.Array, bias: jax.Array | None) -> Any:
        given = [array for array in (_flat(inputs), _flat(added), scale, bias) if array is not None]
        flat = given[0]
        kernel = partial(_forward_kernel, settings=settings, adding=added is not None, biased=bias is not None)
        outputs = [flat, flat] if keep and added is not None else [flat]
        grid = (len(flat) // _ROWS,)
        found = rows.call(kernel, "layer_norm", grid, outputs, warps=_WARPS)(*given)
        return [array.reshape(inputs.shape) for array in found]

    in_axes = (_AXES, None if added is None else _AXES, (None,), None if bias is None else (None,))
    keeps = keep and added is not None
    found = rows.sharded(of_device, in_axes, [_AXES, _AXES] if keeps else [_AXES])(inputs, added, scale, bias)
    return found[1] if keeps else inputs if keep else None, found[0]


def _call_backward(total: Any, gradient: Any, branch: Any, scale: Any, settings: Settings) -> tuple[jax.Array, jax.Array]:
    """Return the gradient of the sum, and sums of those of scale and bias over parts of the rows, float32[parts, 2, size]."""
    groups = len(total) // _ROWS
    count = rows.programs(groups)
    kernel = partial(_backward_kernel, settings=settings, groups=groups, count=count, branching=branch is not None)
    outputs = (total, jax.ShapeDtypeStruct((count, 2, total.shape[1]), jnp.float32))
    given = [array for array in (total, scale, gradient, branch) if array is not None]
    found: tuple[jax.Array, jax.Array] = rows.call(kernel, "layer_norm_gradient", (count,), outputs, warps=_WARPS)(*given)
    return found


def _columns(size: int) -> list[Any]:
    chunk = rows.chunk(size, _MOST_CHUNK)
    return [rows.span(number, chunk) for number in range(size // chunk)]


def _mean(chunks: list[jax.Array], size: int) -> jax.Array:
    total: Any = sum(jnp.sum(chunk, axis=1) for chunk in chunks)
    return (total / size)[:, None]


def _divided(chunks: list[jax.Array], size: int, settings: Settings) -> tuple[list[jax.Array], jax.Array]:
    """Return rows divided by their deviation, centred if that is set, and the reciprocal deviations [rows, 1]."""
    if settings.centred:
        mean = _mean(chunks, size)
        chunks = [chunk - mean for chunk in chunks]
    factor = jax.lax.rsqrt(_mean([chunk * chunk for chunk in chunks], size) + settings.epsilon)
    return [chunk * factor for chunk in chunks], factor


def _forward_kernel(*refs: Any, settings: Settings, adding: bool, biased: bool) -> None:
    inputs, *others = refs
    added = others.pop(0) if adding else None
    scale = others.pop(0)
    bias = others.pop(0) if biased else None
    outputs, *sums = others
    size = inputs.shape[1]
    own = rows.span(pl.program_id(0), _ROWS)
    columns = _columns(size)
    chunks = []
    for column in columns:
        values = inputs[own, column]
        if added is not None:
            # Rounded to the dtype, as a sum in memory is.
            values += added[own, column]
        if sums:
            sums[0][own, column] = values
        chunks.append(values.astype(jnp.float32))
    for column, values in zip(columns, _divided(chunks, size, settings)[0], strict=True):
        values = values * scale[column][None]
        outputs[own, column] = (values if bias is None else values + bias[column][None]).astype(outputs.dtype)


def _backward_kernel(*refs: Any, settings: Settings, groups: int, count: int, branching: bool) -> None:
    total, scale, gradient, *others = refs
    branch = others.pop(0) if branching else None
    outputs, sums = others
    size, program = total.shape[1], pl.program_id(0)
    start, number = rows.share(groups, count)
    columns = _columns(size)
    scales = [scale[column][None] for column in columns]

    def add_group(index: Any, carry: Any) -> Any:
        own = rows.span(start + index, _ROWS)
        chunks = [total[own, column].astype(jnp.float32) for column in columns]
        given = [gradient[own, column].astype(jnp.float32) for column in columns]
        normed, factor = _divided(chunks, size, settings)
        scaled = [values * own_scale for values, own_scale in zip(given, scales, strict=True)]
        along = _mean([one * two for one, two in zip(scaled, normed, strict=True)], size)
        mean = _mean(scaled, size) if settings.centred else 0.0
        for column, one, two in zip(columns, scaled, normed, strict=True):
            found = (one - two * along - mean) * factor
            if branch is not None:
                found += branch[own, column].astype(jnp.float32)
            outputs[own, column] = found.astype(outputs.dtype)
        scale_sums, bias_sums = carry
        return (
            [sum_ + one * two for sum_, one, two in zip(scale_sums, given, normed, strict=True)],
            [sum_ + one for sum_, one in zip(bias_sums, given, strict=True)],
        )

    zeros = [jnp.zeros((_ROWS, column.size), jnp.float32) for column in columns]
    for index, found in enumerate(jax.lax.fori_loop(0, number, add_group, (zeros, zeros))):
        for column, chunk in zip(columns, found, strict=True):
            sums[program, index, column] = jnp.sum(chunk, axis=0)
