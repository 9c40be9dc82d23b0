"""Activation functions by the names that configs use."""

import math
from collections.abc import Callable
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp

Activation = Literal["gelu", "gelu_tanh", "relu", "silu"]

# erfc(z) = exp(-z^2) q(1 / (1 + p z)) for z >= 0: p, and the coefficients of the polynomial q from the first power on, fitted
# here to a relative error of at most 5.2e-6 (form: Abramowitz and Stegun, 7.1.26); bfloat16 rounds by up to 2e-3.
_ERFC_STEP = 0.44
_ERFC = (0.24856099, 0.24256986, 0.26358481, 0.04073455, 0.35064889, -0.14610425)


def gelu(inputs: jax.Array) -> jax.Array:
    """Compute x Phi(x), with Phi the cumulative normal distribution (Hendrycks and Gimpel 2016)."""
    # XLA's erfc takes three times as long on GPUs as reading and writing the hidden layer.
    return _gelu_bfloat16(inputs) if inputs.dtype == jnp.bfloat16 else jax.nn.gelu(inputs, approximate=False)


@jax.custom_vjp
def _gelu_bfloat16(inputs: jax.Array) -> jax.Array:
    return _gelu_wide(inputs.astype(jnp.float32)).astype(inputs.dtype)


def _gelu_forward(inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
    return _gelu_bfloat16(inputs), inputs


def _gelu_backward(inputs: jax.Array, gradient: jax.Array) -> tuple[jax.Array]:
    wide = inputs.astype(jnp.float32)
    return (jax.jvp(_gelu_wide, (wide,), (gradient.astype(jnp.float32),))[1].astype(inputs.dtype),)


_gelu_bfloat16.defvjp(_gelu_forward, _gelu_backward)


@jax.custom_jvp
def _gelu_wide(inputs: jax.Array) -> jax.Array:
    """Compute GELU in float32, exact to the precision of 16 bits."""
    return inputs * _normal(inputs)[0]


@_gelu_wide.defjvp
def _gelu_wide_jvp(inputs: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    (values,), (tangent,) = inputs, tangents
    cumulative, density = _normal(values)
    return values * cumulative, tangent * (cumulative + values * density)


def _normal(values: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the cumulative normal distribution and its density."""
    bell = jnp.exp(-0.5 * values * values)
    step = 1 / (1 + _ERFC_STEP * math.sqrt(0.5) * jnp.abs(values))
    series = jnp.full_like(values, _ERFC[-1])
    for coefficient in _ERFC[-2::-1]:
        series = series * step + coefficient
    tail = 0.5 * bell * step * series
    return jnp.where(values < 0, tail, 1 - tail), bell * (1 / math.sqrt(2 * math.pi))


_gelu_tanh = partial(jax.nn.gelu, approximate=True)  # 0.5x(1 + tanh(sqrt(2/pi)(x + 0.044715x^3)))

ACTIVATIONS: dict[Activation, Callable[[jax.Array], jax.Array]] = {
    "gelu": gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,  # x sigmoid(x), also called swish
}
# Of float32 that stands for values of 16 bits.
WIDE_ACTIVATIONS: dict[Activation, Callable[[jax.Array], jax.Array]] = ACTIVATIONS | {"gelu": _gelu_wide}
