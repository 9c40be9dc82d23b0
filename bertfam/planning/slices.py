"""Slices by name, as Google's or as the TPU compiler has them, and their devices: of chips that nobody here has."""

import importlib.util
import math
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

from bertfam.errors import UserError
from bertfam.sharding import libtpu

if TYPE_CHECKING:
    import jax

HERE = "here"


@dataclass(frozen=True)
class _Offer:
    """The slices of a kind of chip.

    Attributes:
      shapes: chips along the wires of each; the names count up with them.
      per_chip: what a name counts of a chip, 1 of itself or 2 TensorCores; None: no name is known.
      prefixes: what a name may begin with, the compiler's first.
    """

    shapes: tuple[tuple[int, ...], ...]
    per_chip: int | None
    prefixes: tuple[str, ...]

    def name(self, shape: tuple[int, ...]) -> str:
        if self.per_chip is None:
            return f"{self.prefixes[0]}:{_times(shape)}"
        return f"{self.prefixes[0]}-{math.prod(shape) * self.per_chip}"

    def has(self, shape: tuple[int, ...]) -> bool:
        """Cubes of 4 x 4 x 4 may be put together in any way, up to 96 of them."""
        cubes = len(shape) == len(self.shapes[0]) == 3 and not any(size % 4 for size in shape)
        return shape in self.shapes or (cubes and 0 < math.prod(shape) <= 6144)


# From cloud.google.com/tpu/docs, pages v5e, v6e, v5p and tpu7x. Asked for a shape that is none, the compiler ends the process.
_FLAT = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
_SMALL_CUBES = ((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4), (4, 4, 4), (4, 4, 8), (4, 8, 8), (8, 8, 8), (8, 8, 16))
_CUBES = (*_SMALL_CUBES, (8, 16, 16), (16, 16, 16), (16, 16, 24))
_OFFERS = {
    "v5e": _Offer(_FLAT, 1, ("v5e", "v5litepod")),
    "v5p": _Offer(_CUBES, 2, ("v5p",)),
    "v6e": _Offer(_FLAT, 1, ("v6e",)),
    "tpu7x": _Offer(_CUBES, None, ("tpu7x",)),
}
_EXAMPLES = "v5e-16, v5p-128, v6e-256, v5e:4x4, 2xv5e-256 (two slices), or here (the devices of this machine)"


@dataclass(frozen=True)
class Slice:
    """One slice or several alike, or the devices that are here.

    Attributes:
      name: as it was asked for.
      kind: of its chips, as in the table of chips; "" of `here`.
      shape: chips along the wires of one slice; () of `here`.
      count: how many slices.
    """

    name: str
    kind: str = ""
    shape: tuple[int, ...] = ()
    count: int = 1

    @property
    def is_here(self) -> bool:
        """Whether it is what this process has."""
        return self.name == HERE

    @property
    def topology(self) -> str:
        """In the compiler's words: 2xv5e:4x4; "" of `here`."""
        several = f"{self.count}x" if self.count > 1 else ""
        return f"{several}{self.kind}:{_times(self.shape)}" if self.kind else ""

    def devices(self) -> Sequence["jax.Device"]:
        """Its devices: those of this process, or such as programs can only be compiled for.

        Raises:
          UserError: without the TPU compiler, or with one that does not go with JAX.
        """
        import jax

        if self.is_here:
            return jax.devices()
        if importlib.util.find_spec("libtpu") is None:
            raise UserError(f"the slice {self.name} needs the TPU compiler, which needs no TPU: pip install 'bertfam[tpu]'")
        from jax.experimental.topologies import get_topology_desc

        os.environ |= _COMPILER
        options: dict[str, Any] = {"num_slices": self.count} if self.count > 1 else {}
        if math.prod(self.shape) == 1:
            options["chips_per_host_bounds"] = (1, 1, 1)  # older compilers take every host for one of 2 x 2
        try:
            found = get_topology_desc(platform="tpu", topology_name=f"{self.kind}:{_times(self.shape)}", **options)
        except Exception as error:  # whatever kind JAX's releases raise
            versions = f"libtpu {metadata.version('libtpu')} and jax {metadata.version('jax')}"
            raise UserError(
                f"{versions} do not plan the slice {self.name} together ({str(error).splitlines()[0]}): "
                "pip install --upgrade 'bertfam[tpu]'"
            ) from error
        return found.devices


def parse(name: str) -> Slice:
    """The slice of a name; raises UserError for one that Google does not offer, naming the nearest that it does."""
    if name == HERE:
        return Slice(HERE)
    found = re.fullmatch(r"(?:([1-9]\d*)x)?([a-z]\w*?)(?:-([1-9]\d*)|:([1-9]\d*(?:x[1-9]\d*)+))", name.lower())
    if not found:
        raise UserError(f"--slice={name} is no slice; write {_EXAMPLES}")
    several, prefix, number, wires = found.groups()
    kind = next((kind for kind, offer in _OFFERS.items() if prefix in offer.prefixes), None)
    if kind is None:
        raise UserError(f"--slice={name}: {_unknown(prefix)}")
    offer = _OFFERS[kind]
    shape = tuple(map(int, wires.split("x"))) if wires else _counted(name, offer, int(number))
    if not offer.has(shape):
        raise UserError(f"--slice={name}: Google offers no such slice; the nearest are {_nearest(offer, math.prod(shape))}")
    return Slice(name, kind, shape, int(several or 1))


def prepare(slices: Sequence[Slice]) -> None:
    """Sets what JAX reads of the environment; to be called before JAX is imported.

    Args:
      slices: with `here` among them nothing is set, and JAX uses the accelerators of this machine; else it looks for none.
    """
    if "jax" not in sys.modules and not any(each.is_here for each in slices):
        os.environ |= _JAX


# What the compiler reads as it is loaded.
_COMPILER = {
    "TPU_SKIP_MDS_QUERY": "1",  # no question to the metadata server that only TPU machines have
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    **libtpu.PLACEHOLDERS,
    "TPU_MIN_LOG_LEVEL": "3",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
_JAX = {
    "JAX_PLATFORMS": "cpu",
    "JAX_ENABLE_COMPILATION_CACHE": "false",  # it could write, but not read, programs for devices that are not here
}


def _unknown(prefix: str) -> str:
    if prefix == "v4":
        return "the compiler takes a v4 chip for two devices and its machine for one, so that no plan would hold; plan for v5p"
    return f"chips of the kind {prefix} are not known; write {_EXAMPLES}"


def _counted(name: str, offer: _Offer, number: int) -> tuple[int, ...]:
    """The shape of the slice whose name has this number."""
    if offer.per_chip is None:
        kind = offer.prefixes[0]
        raise UserError(f"--slice={name}: write {kind} slices by their topology, as {kind}:2x2x1 or {kind}:4x4x4")
    shape = next((shape for shape in offer.shapes if math.prod(shape) * offer.per_chip == number), None)
    if shape is None:
        chips = "" if offer.per_chip == 1 else f" ({offer.prefixes[0]} counts TensorCores, {offer.per_chip} a chip)"
        nearest = _nearest(offer, number / offer.per_chip)
        raise UserError(f"--slice={name}: Google offers no such slice{chips}; the nearest are {nearest}")
    return shape


def _nearest(offer: _Offer, chips: float) -> str:
    near = sorted(offer.shapes, key=lambda shape: abs(math.log(math.prod(shape) / chips)))[:2]
    return " and ".join(f"{offer.name(shape)} ({_times(shape)})" for shape in sorted(near, key=math.prod))


def _times(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))
