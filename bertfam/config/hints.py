"""Checks of gin values against type annotations, and suggestions of values that fit."""

from __future__ import annotations

import ast
import collections.abc
import contextlib
import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Iterator
from typing import Any

import gin

from bertfam.config import registry
from bertfam.config.parse import Reference, render
from bertfam.suggest import nearest


def fits(value: Any, hint: Any) -> bool:
    """Return True if `value` (macros already replaced) fits the annotation `hint`, or if that cannot be decided."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if value is gin.REQUIRED or hint is Any or isinstance(hint, (typing.TypeVar, dataclasses.InitVar)):
        return True
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, arg) for arg in args)
    if origin is typing.Annotated:
        return fits(value, args[0])
    if isinstance(value, Reference):
        return _reference_fits(value, hint)
    if origin is typing.Literal:
        return any(value == arg and type(value) is type(arg) for arg in args)
    if hint is None or hint is types.NoneType:
        return value is None
    if hint in (int, float):  # a bool is not a number; an int is accepted as a float
        return type(value) is int or (hint is float and type(value) is float)
    cls = origin or hint
    if not inspect.isclass(cls):
        return True
    if getattr(cls, "_is_protocol", False):
        return False  # a literal implements none of our interfaces
    if isinstance(value, tuple):
        return issubclass(cls, collections.abc.Iterable) and _tuple_fits(value, cls, args)
    if isinstance(value, dict) and issubclass(dict, cls):
        return len(args) != 2 or all(fits(key, args[0]) and fits(item, args[1]) for key, item in value.items())
    # To Python a string is a sequence of strings, which is hardly ever the intention.
    return isinstance(value, cls) and not (isinstance(value, str) and cls not in (str, object))


def _tuple_fits(value: tuple, cls: type, args: tuple) -> bool:
    if issubclass(cls, (str, bytes, collections.abc.Mapping)):
        return False
    if cls is tuple and args and args[-1] is not ...:
        return len(value) == len(args) and all(map(fits, value, args))
    return not args or all(fits(item, args[0]) for item in value)


def _reference_fits(reference: Reference, hint: Any) -> bool:
    cls = typing.get_origin(hint) or hint
    if cls in (typing.Literal, types.NoneType, None):
        return False
    if not inspect.isclass(cls):
        return True
    if not reference.evaluated:
        return cls in (type, object) or "__call__" in vars(cls)
    target = registry.find(reference.name)[0].wrapped
    produced = target if inspect.isclass(target) else registry.type_hints(target).get("return", Any)
    if produced is Any or not inspect.isclass(produced):
        return True
    if getattr(cls, "_is_protocol", False):
        # A dataclass field without a default is not an attribute of the class.
        fields = {field.name for field in dataclasses.fields(produced)} if dataclasses.is_dataclass(produced) else set()
        members = {name: member for base in cls.__mro__ for name, member in vars(base).items()}
        return all(hasattr(produced, name) or name in fields for name, member in members.items() if _is_interface(name, member))
    return issubclass(produced, cls)


def _is_interface(name: str, member: Any) -> bool:
    return (not name.startswith("_") or name == "__call__") and (inspect.isfunction(member) or isinstance(member, property))


# Numbers are computed with as float32 and int64 at most.
_LARGEST = 3.4e38


def is_representable(value: Any) -> bool:
    """Return True if every number within `value` is finite as float32 or an integer of 64 bits."""
    if isinstance(value, tuple):
        return all(map(is_representable, value))
    if isinstance(value, dict):
        return all(is_representable(item) for pair in value.items() for item in pair)
    return abs(value) <= _LARGEST if type(value) is float else type(value) is not int or -(2**63) <= value < 2**63


def describe(hint: Any) -> str:
    """Describe an annotation in words: "int", "None or tuple[int, ...]", "one of 'scan', 'unroll'"."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(describe, args))
    if origin is typing.Literal:
        return ("one of " if len(args) > 1 else "") + ", ".join(map(repr, args))
    if hint is types.NoneType:
        return "None"
    if inspect.isclass(hint) and not args:
        return hint.__name__
    return re.sub(r"[\w.]+\.(\w+)", r"\1", str(hint))


def repair(value: Any, hint: Any) -> str | None:
    """Return the value that was probably intended, as gin text; None if no similar value fits."""
    for candidate in _neighbours(value):
        if fits(candidate, hint):
            return render(candidate)
    if isinstance(value, str):
        choices = [choice for choice in _choices(hint) if isinstance(choice, str)]
        return next(map(repr, nearest(value, choices)), None)
    return None


def _neighbours(value: Any) -> Iterator[Any]:
    yield (value,)
    if isinstance(value, tuple) and len(value) == 1:
        yield value[0]
    if isinstance(value, Reference):
        yield dataclasses.replace(value, evaluated=not value.evaluated)
    if isinstance(value, float) and value.is_integer():
        yield int(value)
    if isinstance(value, str):
        with contextlib.suppress(ValueError, SyntaxError):
            yield ast.literal_eval(value)
    reference = _with_references(value)
    if reference != value:
        yield reference
        yield (reference,)


def _with_references(value: Any) -> Any:
    """Return a value with each text that names a configurable, in whatever case, replaced by a reference to it."""
    if isinstance(value, tuple):
        return tuple(map(_with_references, value))
    if isinstance(value, str) and (names := [name for name in registry.names() if name.casefold() == value.casefold()]):
        return Reference((), names[0], True)
    return value


def _choices(hint: Any) -> Iterator[Any]:
    """Yield the values that the Literals within an annotation allow."""
    if typing.get_origin(hint) is typing.Literal:
        yield from typing.get_args(hint)
    else:
        for arg in typing.get_args(hint):
            yield from _choices(arg)
