"""TPU slices by their Google Cloud or compiler names, with devices for ahead-of-time compilation."""

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
from bertfam.suggest import one_each

if TYPE_CHECKING:
    import jax

HERE = "here"


@dataclass(frozen=True)
class _Offer:
    """Slices that Google offers for a kind of chip.

    Attributes:
      shapes: topology of each slice, in the order of their sizes.
      per_chip: units per chip in a slice's name: 1, or 2 if it counts TensorCores; None: there are no such names.
      prefixes: prefixes of the names, the compiler's first.
    """

    shapes: tuple[tuple[int, ...], ...]
    per_chip: int | None
    prefixes: tuple[str, ...]

    def name(self, shape: tuple[int, ...]) -> str:
        if self.per_chip is None:
            return f"{self.prefixes[0]}:{_times(shape)}"
        return f"{self.prefixes[0]}-{math.prod(shape) * self.per_chip}"

    def has(self, shape: tuple[int, ...]) -> bool:
        """Return whether the shape is offered; up to 96 cubes of 4 x 4 x 4 may be combined in any way."""
        cubes = len(shape) == len(self.shapes[0]) == 3 and not any(size % 4 for size in shape)
        return shape in self.shapes or (cubes and 0 < math.prod(shape) <= 6144)


# From cloud.google.com/tpu/docs, pages v5e, v6e, v5p and tpu7x. For a shape that does not exist, the compiler aborts the process.
_FLAT = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
_SMALL_CUBES = ((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4), (4, 4, 4), (4, 4, 8), (4, 8, 8), (8, 8, 8), (8, 8, 16))
_CUBES = (*_SMALL_CUBES, (8, 16, 16), (16, 16, 16), (16, 16, 24))
_OFFERS = {
    "v5e": _Offer(_FLAT, 1, ("v5e", "v5litepod")),
    "v5p": _Offer(_CUBES, 2, ("v5p",)),
    "v6e": _Offer(_FLAT, 1, ("v6e",)),
    "tpu7x": _Offer(_CUBES, None, ("tpu7x",)),
}
_NUMBER = r"[1-9]\d{0,8}"
_NAME = re.compile(rf"(?:({_NUMBER})x)?([a-z]\w*?)(?:-({_NUMBER})|:({_NUMBER}(?:x{_NUMBER})+))")
_MAX_CHIPS = 1 << 16  # a device of the compiler takes memory for each
_EXAMPLES = "v5e-16, v5p-128, v6e-256, v5e:4x4, 2xv5e-256 (two slices), or here (the devices of this machine)"


@dataclass(frozen=True)
class Slice:
    """One slice, several equal slices, or the devices of this machine.

    Attributes:
      name: name as given by the user.
      kind: kind of chip, as in `bertfam.sharding.chips`; "" for `here`.
      shape: topology of one slice; () for `here`.
      count: number of slices.
    """

    name: str
    kind: str = ""
    shape: tuple[int, ...] = ()
    count: int = 1

    @property
    def is_here(self) -> bool:
        """True for the devices of this machine."""
        return self.name == HERE

    @property
    def topology(self) -> str:
        """Name for the compiler: 2xv5e:4x4; "" for `here`."""
        several = f"{self.count}x" if self.count > 1 else ""
        return f"{several}{self.kind}:{_times(self.shape)}" if self.kind else ""

    def devices(self) -> Sequence["jax.Device"]:
        """Return the devices of this machine, or of a slice, for which programs can be compiled but not run.

        Raises:
          UserError: if the TPU compiler is not installed, or does not work with this version of JAX.
        """
        import jax

        if self.is_here:
            return jax.devices()
        if importlib.util.find_spec("libtpu") is None:
            raise UserError(f"--slice={self.name} requires the TPU compiler (it runs without a TPU): pip install 'bertfam[tpu]'")
        from jax.experimental.topologies import get_topology_desc

        os.environ |= _COMPILER
        options: dict[str, Any] = {"num_slices": self.count} if self.count > 1 else {}
        if math.prod(self.shape) == 1:
            options["chips_per_host_bounds"] = (1, 1, 1)  # older compilers assume that every host has 2 x 2 chips
        try:
            topology = get_topology_desc(platform="tpu", topology_name=f"{self.kind}:{_times(self.shape)}", **options)
        except Exception as error:  # its class depends on the release of JAX
            versions = f"libtpu {metadata.version('libtpu')} and jax {metadata.version('jax')}"
            raise UserError(
                f"{versions} cannot compile for --slice={self.name} together ({str(error).splitlines()[0]}): "
                "pip install --upgrade 'bertfam[tpu]'"
            ) from error
        return topology.devices


def parse(name: str) -> Slice:
    """Parse the name of a slice; raises UserError for one that Google does not offer, and names the nearest ones."""
    if name == HERE:
        return Slice(HERE)
    match = _NAME.fullmatch(name.lower())
    if not match:
        hint = one_each(name.lower(), lambda part: part == HERE or bool(_NAME.fullmatch(part))) or f"; write {_EXAMPLES}"
        raise UserError(f"--slice={name} is not a slice{hint}")
    count, prefix, number, dimensions = match.groups()
    kind = next((kind for kind, offer in _OFFERS.items() if prefix in offer.prefixes), None)
    if kind is None:
        raise UserError(f"--slice={name}: {_unknown(prefix)}")
    offer = _OFFERS[kind]
    shape = tuple(map(int, dimensions.split("x"))) if dimensions else _shape_of_size(name, offer, int(number))
    if not offer.has(shape):
        raise UserError(f"--slice={name}: Google offers no such slice; the nearest are {_nearest(offer, math.prod(shape))}")
    if (chips := int(count or 1) * math.prod(shape)) > _MAX_CHIPS:
        raise UserError(f"--slice={name} has {chips:,} chips, and at most {_MAX_CHIPS:,} can be planned; use fewer slices")
    return Slice(name, kind, shape, int(count or 1))


def prepare(slices: Sequence[Slice]) -> None:
    """Set the environment variables that JAX reads; call this before JAX is imported.

    Args:
      slices: slices to plan; with `here` among them nothing is set, and JAX uses the accelerators of this machine; otherwise it
        uses the CPU.
    """
    if "jax" not in sys.modules and not any(slice.is_here for slice in slices):
        os.environ |= _JAX


# Variables that the compiler reads when it is loaded.
_COMPILER = {
    "TPU_SKIP_MDS_QUERY": "1",  # do not query the metadata server, which only TPU machines have
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    **libtpu.PLACEHOLDERS,
    "TPU_MIN_LOG_LEVEL": "3",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
_JAX = {
    "JAX_PLATFORMS": "cpu",
    "JAX_ENABLE_COMPILATION_CACHE": "false",  # it can write, but not read, programs for devices that are not attached
}


def _unknown(prefix: str) -> str:
    if prefix == "v4":
        return "v4 is not supported, because its compiler counts two devices per chip and its machine one; plan for v5p"
    return f"unknown kind of chip {prefix}; write {_EXAMPLES}"


def _shape_of_size(name: str, offer: _Offer, number: int) -> tuple[int, ...]:
    """Return the topology of the slice with this number in its name."""
    if offer.per_chip is None:
        kind = offer.prefixes[0]
        raise UserError(f"--slice={name}: name {kind} slices by their topology, such as {kind}:2x2x1 or {kind}:4x4x4")
    shape = next((shape for shape in offer.shapes if math.prod(shape) * offer.per_chip == number), None)
    if shape is None:
        chips = "" if offer.per_chip == 1 else f" ({offer.prefixes[0]} counts TensorCores, {offer.per_chip} per chip)"
        nearest = _nearest(offer, number / offer.per_chip)
        raise UserError(f"--slice={name}: Google offers no such slice{chips}; the nearest are {nearest}")
    return shape


def _nearest(offer: _Offer, chips: float) -> str:
    nearest = sorted(offer.shapes, key=lambda shape: abs(math.log(math.prod(shape) / chips)))[:2]
    return " and ".join(f"{offer.name(shape)} ({_times(shape)})" for shape in sorted(nearest, key=math.prod))


def _times(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))
