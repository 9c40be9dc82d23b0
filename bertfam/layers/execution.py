"""Execution options of a model: precision, loop over layers, rematerialisation, attention backend, random bits."""

import dataclasses
from dataclasses import dataclass
from typing import Literal, get_args

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from bertfam.errors import UserError
from bertfam.kernels.attention.choice import backend_names
from bertfam.kernels.random_bits import hashed

AUTO = "auto"
ComputeDtype = Literal["auto", "float32", "bfloat16"]
LayerLoop = Literal["auto", "scan", "unroll"]
Remat = Literal["auto", "none", "full", "dots"]
DropoutBits = Literal["auto", "threefry", "hash"]

DTYPES: dict[ComputeDtype, DTypeLike] = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}
# Values that "auto" stands for where no run chooses one for its devices.
REFERENCE = {"dtype": "float32", "layers": "scan", "remat": "none", "dropout_bits": "threefry"}


@dataclass(frozen=True)
class Execution:
    """Options that change speed and memory, never parameters or (up to rounding) results.

    A run replaces each "auto" by a choice for its devices (`bertfam.planning.choices`), says which in its plan, and records it in
    its config.gin. A model that is used without a run computes in float32 and scans its layers.

    Attributes:
      dtype: dtype of activations and matrix products, "float32" or "bfloat16"; "auto" is bfloat16 on GPUs and TPUs, float32 on
        CPUs. Parameters stay float32.
      layers: "scan" compiles one layer and loops over it; "unroll" compiles every layer; "auto" unrolls on GPUs, unless the model
        is very deep.
      remat: recomputation in the backward pass: "none", "full" (every layer from its input) or "dots" (all but the
        results of matrix products with weights); "auto" is "none" unless the memory of the devices requires more.
      attention: "auto" or the name of one backend of `bertfam.kernels.attention.choice`.
      dropout_bits: generator of dropout's random bits, "threefry" or "hash", which is cheaper (`bertfam.kernels.random_bits`);
        "auto" is "hash" for bfloat16 on GPUs and TPUs. Masks of either are equal on every mesh, scanned or unrolled.

    Raises:
      UserError: for a value outside these lists.
    """

    dtype: ComputeDtype = "auto"
    layers: LayerLoop = "auto"
    remat: Remat = "auto"
    attention: str = AUTO
    dropout_bits: DropoutBits = "auto"

    def __post_init__(self) -> None:
        literals = {"dtype": ComputeDtype, "layers": LayerLoop, "remat": Remat, "dropout_bits": DropoutBits}
        for name, allowed in literals.items():
            value = getattr(self, name)
            if value not in get_args(allowed):
                raise UserError(f"Execution.{name} = {value!r} is not one of {', '.join(get_args(allowed))}")
        if self.attention != AUTO and self.attention not in backend_names():
            names = ", ".join((AUTO, *backend_names()))
            raise UserError(f"Execution.attention = {self.attention!r} is not one of {names}")

    @property
    def concrete(self) -> "Execution":
        """The options with `REFERENCE` in place of each "auto"; attention is chosen for each request."""
        changed = {name: value for name, value in REFERENCE.items() if getattr(self, name) == AUTO}
        return dataclasses.replace(self, **changed)  # type: ignore[arg-type]

    @property
    def compute_dtype(self) -> DTypeLike:
        """The dtype of activations as an object."""
        return DTYPES[self.concrete.dtype]

    def dropout_rngs(self, key: jax.Array | None) -> dict[str, jax.Array] | None:
        """Return the random generators of a Flax module in training, from the key of a step; None without a key."""
        if key is None:
            return None
        return {"dropout": hashed(key) if self.concrete.dropout_bits == "hash" else key}
