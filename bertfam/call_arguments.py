"""Checks of arguments that a program gives to the Python API; each mistake is a UserError that names the argument."""

from __future__ import annotations

import numbers
import os
from collections.abc import Mapping, Set
from typing import TYPE_CHECKING, Any

from bertfam.errors import UserError

if TYPE_CHECKING:
    import numpy as np

_LONGEST = 60  # characters of a value in a message


def describe(value: Any) -> str:
    """Describe a value in a few words: its content where that is short, else its type."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{value.dtype} of the shape {list(value.shape)}"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if value is None or isinstance(value, (str, bytes, int, float, list, tuple, Mapping, Set)):
        shown = " ".join(repr(value).split())
        return shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 3]}..."
    return f"an object of type {type(value).__name__}"


def check_text(value: Any, name: str) -> str:
    """Return the value; raise UserError if it is no text."""
    if isinstance(value, str):
        return value
    fix = ": decode them, as by .decode()" if isinstance(value, bytes) else ""
    raise UserError(f"{name} must be a text, not {describe(value)}{fix}")


def check_list(value: Any, name: str, items: str = "texts") -> list[Any]:
    """Return the items of a list, an array or another iterable.

    Args:
      value: the argument.
      name: its name.
      items: description of the items.

    Raises:
      UserError: it is one text, which would be a list of its letters, or has no order, or is no iterable.
    """
    if isinstance(value, str):
        fix = "" if "numbers" in items else f": write [{describe(value)}]"
        raise UserError(f"{name} must be a list of {items}, not one text{fix}")
    try:
        if not isinstance(value, (bytes, Mapping, Set)):
            return list(value)
    except TypeError:  # not iterable
        pass
    raise UserError(f"{name} must be a list of {items}, not {describe(value)}")


def check_texts(value: Any, name: str) -> list[str]:
    """Return the texts as a list; raise UserError if the value is no list of texts."""
    return [check_text(item, f"{name}[{place}]") for place, item in enumerate(check_list(value, name))]


def check_token_ids(value: Any, name: str, size: int) -> np.ndarray:
    """Return token ids as int32[length]; raise UserError if the value is no array of ids below `size`."""
    import numpy as np  # the command line checks flags without it

    try:
        array = np.asarray(value)
    except ValueError:  # rows of different lengths
        array = np.array(None)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise UserError(f"{name} must be token ids, whole numbers of the shape [length], not {describe(value)}")
    wrong = array[(array < 0) | (array >= size)]
    if wrong.size:
        raise UserError(f"{name} has the id {wrong[0]}, but those of the vocabulary are 0 to {size - 1}")
    return array.astype(np.int32)


def check_whole_number(value: Any, name: str) -> int:
    """Return the value as an int; raise UserError if it is no whole number."""
    if type(value) is int:  # a fast path
        return value
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise UserError(f"{name} must be a whole number, not {describe(value)}")
    return int(value)


def check_number(value: Any, name: str) -> None:
    """Raise UserError if the value is no number."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise UserError(f"{name} must be a number, not {describe(value)}")


def check_path(value: Any, name: str) -> None:
    """Raise UserError if the value is no path."""
    # Paths in buckets are no os.PathLike, since no file of this machine is there.
    if not isinstance(value, (str, os.PathLike)) and not hasattr(value, "joinpath"):
        raise UserError(f"{name} must be a folder's path as a text or pathlib.Path, not {describe(value)}")
