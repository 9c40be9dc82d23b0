"""Conversion of a trained model to a longer one of its family, or to one of a family that extends it.

A family names the families that it extends in `adopts`, the modules of its own that start as copies of others in
`copied_modules`, and the fields that no parameter depends on in `without_parameters`. Position tables are found by the name of
their axis.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flax import traverse_util
from flax.linen import meta

from bertfam.errors import UserError

_POSITIONS = "position"  # axis of the position tables


def adopted(cls: type, other: Any, own: Mapping[str, Any], sizes: Collection[str] = ()) -> Any | None:
    """Return the config of a model that starts from another's parameters.

    It has the other model's values. Of its own values it keeps those that the other's family lacks, those that no parameter
    depends on, and a larger `max_length`, which is the default of its family where that is another one.

    Args:
      cls: class of the config.
      other: config of the other model.
      own: values that are stated for the config, by field.
      sizes: fields that keep these values too, of a model that grows.

    Returns:
      The config; None if models of this family cannot start from the other's.

    Raises:
      UserError: if these values clash.
    """
    if type(other) not in (cls, *getattr(cls, "adopts", ())):
        return None
    fields = {field.name: field.default for field in dataclasses.fields(cls)}
    values = {field.name: getattr(other, field.name) for field in dataclasses.fields(other) if field.name in fields}
    free = fields.keys() - values.keys() | getattr(cls, "without_parameters", frozenset()) | set(sizes)
    if "max_length" in values:
        length = own.get("max_length", values["max_length"] if type(other) is cls else fields["max_length"])
        values["max_length"] = max(length, values["max_length"])
    return cls(**values | {name: value for name, value in own.items() if name in free})


@dataclass(frozen=True)
class Conversion:
    """Conversion of the parameters of a model, or of an optimizer's moments of them.

    Attributes:
      old: config of the model that has the parameters.
      new: config of the model that starts from them, as of `adopted`.
    """

    old: Any
    new: Any

    def source(self, path: Sequence[str]) -> tuple[str, ...]:
        """Return the path in the old model of the tensor from which the one at a path starts."""
        copies = {} if type(self.old) is type(self.new) else getattr(self.new, "copied_modules", {})
        return tuple(copies.get(name, name) for name in path)

    def tensor(self, axes: Sequence[str | None], shape: Sequence[int], value: np.ndarray) -> np.ndarray:
        """Repeat the positions of a tensor up to the length of the new model (Beltagy et al. 2020, section 5).

        Args:
          axes: logical names of the axes.
          shape: shape of the new tensor.
          value: the old tensor.
        """
        if _POSITIONS not in axes:
            return value
        axis = axes.index(_POSITIONS)
        # The rows before those of the positions are never read.
        unread, old_unread = shape[axis] - self.new.max_length, value.shape[axis] - self.old.max_length
        before = np.zeros((*shape[:axis], unread, *shape[axis + 1 :]), value.dtype)
        if shared := min(unread, old_unread):
            rows = np.moveaxis(value, axis, 0)[old_unread - shared : old_unread]
            np.moveaxis(before, axis, 0)[unread - shared :] = rows
        places = old_unread + np.arange(self.new.max_length) % self.old.max_length
        return np.concatenate([before, np.take(value, places, axis)], axis)

    def params(self, boxed: Any, given: Any) -> Any:
        """Convert the parameters of some parts.

        Args:
          boxed: shapes of the new parameters of these parts, boxed with logical axis names.
          given: the old parameters of these parts.

        Raises:
          UserError: if the new model has parameters that the old one lacks.
        """
        flat = traverse_util.flatten_dict(given)
        boxes = traverse_util.flatten_dict(boxed)
        if lacking := ["/".join(path) for path in boxes if self.source(path) not in flat]:
            old, new = (type(config).__name__ for config in (self.old, self.new))
            raise UserError(f"this {new} has {lacking[0]}, which the {old} to start from lacks: start it without --init_from")
        converted = {
            path: self.tensor(box.names, meta.unbox(box).shape, np.asarray(flat[self.source(path)]))
            for path, box in boxes.items()
        }
        return traverse_util.unflatten_dict(converted)

    def describe(self, boxed: Any) -> list[str]:
        """Return what is converted in the new parameters of some parts, in words; nothing if all is copied as it is."""
        boxes = traverse_util.flatten_dict(boxed)
        words = []
        if any(_POSITIONS in box.names for box in boxes.values()) and self.new.max_length != self.old.max_length:
            words.append(f"positions {self.old.max_length:,} -> {self.new.max_length:,} by repetition")
        copies = {name: source for path in boxes for name, source in zip(path, self.source(path), strict=True) if name != source}
        words += [f"{name} as a copy of {source}" for name, source in sorted(copies.items())]
        return words
