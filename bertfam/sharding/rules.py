"""Which logical axis of parameters, optimizer state, activations and batches is split over which axes of the mesh."""

import dataclasses
from dataclasses import dataclass

# From the slowest network to the fastest: devices that are neighbours in the last axis are neighbours in the slice.
AXES = ("replica", "data", "fsdp", "sequence", "tensor")
Axes = str | tuple[str, ...] | None


@dataclass(frozen=True)
class Rules:
    """One axis of the mesh, several (the first is the outermost), or None for each logical axis; others are whole everywhere.

    Where two axes of one array want the same axis of the mesh, the first gets it.

    Attributes:
      batch: rows.
      length: tokens of a row.
      embed: the width of the model, of parameters alone: activations are whole in it.
      heads: of attention.
      mlp: the width between the two maps of a feed-forward layer.
      vocab: rows of the token tables, and logits.
    """

    batch: Axes = ("replica", "data", "fsdp")
    length: Axes = "sequence"
    embed: Axes = "fsdp"
    heads: Axes = "tensor"
    mlp: Axes = "tensor"
    vocab: Axes = "tensor"

    def __post_init__(self) -> None:
        for logical, axes in dataclasses.asdict(self).items():
            for axis in named(axes):
                if axis not in AXES:
                    raise ValueError(f"Rules.{logical} names {axis!r}, which is no axis of the mesh: {', '.join(AXES)}")
            if len(set(named(axes))) < len(named(axes)):
                raise ValueError(f"Rules.{logical} names an axis of the mesh twice: {axes}")

    def axes(self, logical: str | None) -> tuple[str, ...]:
        """The mesh axes that a logical axis is split over."""
        return named(getattr(self, logical)) if logical in self.__dataclass_fields__ else ()

    def items(self) -> list[tuple[str, Axes]]:
        """As Flax takes them."""
        return list(dataclasses.asdict(self).items())


def named(axes: Axes) -> tuple[str, ...]:
    """Mesh axes as a tuple."""
    return (axes,) if isinstance(axes, str) else axes or ()
