"""Logical axis rules: the mesh axes that shard parameters, optimizer state, activations and batches."""

import dataclasses
from dataclasses import dataclass

# From the slowest network to the fastest: neighbours along the last axis are neighbours in the slice.
AXES = ("replica", "data", "fsdp", "sequence", "tensor")
Axes = str | tuple[str, ...] | None


@dataclass(frozen=True)
class Rules:
    """Mesh axis of each logical axis: one, several (the outermost first), or None; other logical axes are replicated.

    If two axes of an array compete for a mesh axis, the first gets it.

    Attributes:
      batch: rows of a batch.
      length: tokens of a row.
      embed: embedding dimension of parameters; activations are not sharded along it.
      heads: attention heads.
      mlp: hidden dimension of a feed-forward layer.
      vocab: rows of the embedding tables, and logits.
      passages: passages of a retrieval index, whose vectors and tokens no device has all of.
    """

    batch: Axes = ("replica", "data", "fsdp")
    length: Axes = "sequence"
    embed: Axes = "fsdp"
    heads: Axes = "tensor"
    mlp: Axes = "tensor"
    vocab: Axes = "tensor"
    passages: Axes = AXES

    def __post_init__(self) -> None:
        for logical, axes in dataclasses.asdict(self).items():
            for axis in as_tuple(axes):
                if axis not in AXES:
                    raise ValueError(f"Rules.{logical} names {axis!r}, which is not a mesh axis; use one of {', '.join(AXES)}")
            if len(set(as_tuple(axes))) < len(as_tuple(axes)):
                raise ValueError(f"Rules.{logical} names a mesh axis twice: {axes}")

    def axes(self, logical: str | None) -> tuple[str, ...]:
        """Return the mesh axes that shard a logical axis."""
        return as_tuple(getattr(self, logical)) if logical in self.__dataclass_fields__ else ()

    def items(self) -> list[tuple[str, Axes]]:
        """Return the rules in the form that Flax expects."""
        return list(dataclasses.asdict(self).items())


def as_tuple(axes: Axes) -> tuple[str, ...]:
    """Return mesh axes as a tuple."""
    return (axes,) if isinstance(axes, str) else axes or ()
