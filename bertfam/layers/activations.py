"""Activation functions by the names that configs use."""

from collections.abc import Callable
from functools import partial
from typing import Literal

import jax

Activation = Literal["gelu", "gelu_tanh", "relu", "silu"]

ACTIVATIONS: dict[Activation, Callable[[jax.Array], jax.Array]] = {
    "gelu": partial(jax.nn.gelu, approximate=False),  # erf
    "gelu_tanh": partial(jax.nn.gelu, approximate=True),  # 0.5x(1 + tanh(sqrt(2/pi)(x + 0.044715x^3)))
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,  # x sigmoid(x), also called swish
}
