"""Activation functions by the names that configs use."""

import math
from collections.abc import Callable
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp

Activation = Literal["gelu", "gelu_tanh", "relu", "silu"]

# Coefficients of log(erfc(z) / t) + z^2 in powers of t = 1 / (1 + z / 2), z >= 0; erfc has a relative error of up to 1.2e-7
# (Press et al., Numerical Recipes in C, 2nd edition, section 6.2).
_ERFC = (
    *(-1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806),
    *(0.27886807, -1.13520398, 1.48851587, -0.82215223, 0.17087277),
)


def gelu(inputs: jax.Array) -> jax.Array:
    """Compute x Phi(x), with Phi the cumulative normal distribution (Hendrycks and Gimpel 2016)."""
    # XLA's erfc takes three times as long on GPUs as reading and writing the hidden layer.
    return _gelu_bfloat16(inputs) if inputs.dtype == jnp.bfloat16 else jax.nn.gelu(inputs, approximate=False)


@jax.custom_vjp
def _gelu_bfloat16(inputs: jax.Array) -> jax.Array:
    wide = inputs.astype(jnp.float32)
    return (wide * _cumulative_normal(wide)).astype(inputs.dtype)


def _gelu_forward(inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
    return _gelu_bfloat16(inputs), inputs


def _gelu_backward(inputs: jax.Array, gradient: jax.Array) -> tuple[jax.Array]:
    wide = inputs.astype(jnp.float32)
    density = jnp.exp(-0.5 * wide * wide) * (1 / math.sqrt(2 * math.pi))
    return ((gradient.astype(jnp.float32) * (_cumulative_normal(wide) + wide * density)).astype(inputs.dtype),)


def _cumulative_normal(inputs: jax.Array) -> jax.Array:
    distance = jnp.abs(inputs) * math.sqrt(0.5)
    step = 1 / (1 + 0.5 * distance)
    exponent = jnp.full_like(inputs, _ERFC[-1])
    for coefficient in _ERFC[-2::-1]:
        exponent = exponent * step + coefficient
    tail = 0.5 * step * jnp.exp(exponent - distance * distance)
    return jnp.where(inputs < 0, tail, 1 - tail)


_gelu_bfloat16.defvjp(_gelu_forward, _gelu_backward)

ACTIVATIONS: dict[Activation, Callable[[jax.Array], jax.Array]] = {
    "gelu": gelu,
    "gelu_tanh": partial(jax.nn.gelu, approximate=True),  # 0.5x(1 + tanh(sqrt(2/pi)(x + 0.044715x^3)))
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,  # x sigmoid(x), also called swish
}
