"""Execution options of a model: precision, loop over layers, rematerialisation, attention backend."""

from dataclasses import dataclass
from typing import Literal, get_args

import jax.numpy as jnp
from jax.typing import DTypeLike

from bertfam.errors import UserError
from bertfam.kernels.attention.choice import backend_names

ComputeDtype = Literal["float32", "bfloat16"]
LayerLoop = Literal["scan", "unroll"]
Remat = Literal["none", "full", "dots"]

DTYPES: dict[ComputeDtype, DTypeLike] = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}


@dataclass(frozen=True)
class Execution:
    """Options that change speed and memory, never parameters or (up to rounding) results.

    Attributes:
      dtype: dtype of activations and matrix products, "float32" or "bfloat16". Parameters stay float32.
      layers: "scan" compiles one layer and loops over it; "unroll" compiles every layer.
      remat: recomputation in the backward pass: "none", "full" (every layer from its input) or "dots" (all but the
        results of matrix products with weights).
      attention: "auto" or the name of one backend of `bertfam.kernels.attention.choice`.

    Raises:
      UserError: for a value outside these lists.
    """

    dtype: ComputeDtype = "float32"
    layers: LayerLoop = "scan"
    remat: Remat = "none"
    attention: str = "auto"

    def __post_init__(self) -> None:
        for name, allowed in (("dtype", ComputeDtype), ("layers", LayerLoop), ("remat", Remat)):
            value = getattr(self, name)
            if value not in get_args(allowed):
                raise UserError(f"Execution.{name} = {value!r} is not one of {', '.join(get_args(allowed))}")
        if self.attention != "auto" and self.attention not in backend_names():
            names = ", ".join(("auto", *backend_names()))
            raise UserError(f"Execution.attention = {self.attention!r} is not one of {names}")

    @property
    def compute_dtype(self) -> DTypeLike:
        """The dtype of activations as an object."""
        return DTYPES[self.dtype]
