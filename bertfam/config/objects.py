"""Replacement of an object that a configuration describes, such as the model of a run."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from bertfam.config import lint, registry
from bertfam.config.build import Config
from bertfam.config.parse import Binding, Macro, Origin, Reference, render


@dataclass(frozen=True)
class Replaced:
    """Value of a gin file that another one has replaced.

    Attributes:
      name: name of the binding, as files write it.
      value: the former value, as gin text.
      origin: the file and line that bound it.
    """

    name: str
    value: str
    origin: Origin

    def __str__(self) -> str:
        return f"{self.name} = {self.value} ({self.origin})"


@dataclass(frozen=True)
class Replacement:
    """Configuration that describes another object.

    Attributes:
      config: the configuration.
      changed: True if any value is another one now.
      replaced: the values of gin files that it no longer has.
    """

    config: Config
    changed: bool
    replaced: Sequence[Replaced]


def described_object(config: Config, path: Sequence[str]) -> tuple[type, dict[str, Any]] | None:
    """Return the class of the object at a place of the configuration, and the values that are bound to its fields.

    Args:
      config: the configuration.
      path: a configurable, and the parameters that lead from it to the object; None is returned if they lead nowhere.
    """
    place = _find(config.bindings, *path)
    if place is None:
        return None
    _, selector, scopes = place
    bound = lint.bound(config.bindings, selector, scopes)
    return registry.get(selector).wrapped, {name: lint.resolve(own.value, config.bindings) for name, own in bound.items()}


def find_binding(config: Config, path: Sequence[str], field: str) -> Binding | None:
    """Return the binding of a field of the object at a place of the configuration; None if nothing binds it."""
    place = _find_class(config.bindings, *path)
    return None if place is None else lint.bound(config.bindings, *place).get(field)


def bind_field(config: Config, path: Sequence[str], field: str, value: Any, origin: str) -> Config:
    """Bind a field of the object at a place of the configuration, instead of its present binding.

    An object that no reference names, because it is the default of its owner, gets a reference. The configuration does not change
    if the place cannot be described.
    """
    live = dict(config.bindings)
    if path[1:] and (owner := _find_class(live, *path[:-1])) and path[-1] not in lint.bound(live, *owner):
        default = inspect.signature(registry.get(owner[0]).wrapped).parameters.get(path[-1])
        cls = type(default.default) if default else object
        if found := registry.find(f"{cls.__module__}.{cls.__qualname__}"):
            reference = Reference((), registry.short_name(found[0].selector), evaluated=True)
            binding = Binding("", owner[0], path[-1], reference, Origin(origin))
            live[binding.key] = binding
    place = _find_class(live, *path)
    if place is None:
        return config
    own = lint.bound(live, *place).get(field) or Binding("", place[0], field, value, Origin(origin))
    live[own.key] = dataclasses.replace(own, value=value, origin=Origin(origin))
    return dataclasses.replace(config, bindings=lint.reduce(live))


def replace_object(config: Config, path: Sequence[str], value: Any, origin: str, kept: Collection[str] = ()) -> Replacement:
    """Describe `value`, a dataclass of plain values, at a place of the configuration. Values that flags bind are not replaced.

    Args:
      config: the configuration.
      path: a configurable, and the parameters that lead from it to the object: ("Run", "objective", "model").
      value: the new object.
      origin: the origin that messages name, such as a flag.
      kept: fields that keep the values that the configuration has for them.

    Raises:
      UserError: if an object of this class does not fit there.
    """
    live = config.bindings
    place = _find(live, *path)
    if place is None:
        return Replacement(config, False, ())
    reference, selector, scopes = place
    assert isinstance(reference.value, Reference)
    cls, new, replaced = type(value), dict[tuple[str, str, str], Binding](), list[Replaced]()
    is_same = registry.get(selector).wrapped is cls
    if not is_same:
        if _is_flag(reference.origin):
            return Replacement(config, False, ())
        selector = registry.find(f"{cls.__module__}.{cls.__qualname__}")[0].selector
        name = dataclasses.replace(reference.value, name=registry.short_name(selector))
        new[reference.key] = dataclasses.replace(reference, value=name, origin=Origin(origin))
        replaced.append(Replaced(lint.label(reference), render(reference.value), reference.origin))
    bound = lint.bound(live, selector, scopes)
    for field in dataclasses.fields(value):
        theirs, own = getattr(value, field.name), bound.get(field.name)
        if own is None:
            if theirs != field.default and not (is_same and field.name in kept):
                binding = Binding("", selector, field.name, theirs, Origin(origin))
                new[binding.key] = binding
            continue
        last = lint.last(own, live)
        ours = lint.resolve(own.value, live)
        if ours != theirs and field.name not in kept and not _is_flag(own.origin) and not _is_flag(last.origin):
            new[own.key] = dataclasses.replace(own, value=theirs, origin=Origin(origin))
            replaced.append(Replaced(lint.label(own), render(ours), last.origin))
    changed = dataclasses.replace(config, bindings=lint.reduce({**live, **new}))
    lint.check_types(changed.bindings)
    return Replacement(changed, bool(new), replaced)


def _find(live: lint.Bindings, root: str, *path: str) -> tuple[Binding, str, tuple[str, ...]] | None:
    """Return the binding that refers to the object at a path, its selector, and the scopes in which it is built.

    None if there is no reference at a step of the path.
    """
    selector, scopes = registry.find(root)[0].selector, tuple[str, ...]()
    binding: Binding | None = None
    for parameter in path:
        binding = lint.bound(live, selector, scopes).get(parameter)
        while binding is not None and isinstance(binding.value, Macro):
            scopes = tuple(binding.value.name.split("/"))  # a macro's value is built in the scope of its name
            binding = live.get(("", "", binding.value.name))
        if binding is None or not isinstance(binding.value, Reference):
            return None
        selector, scopes = registry.find(binding.value.name)[0].selector, binding.value.scopes or scopes
    return None if binding is None else (binding, selector, scopes)


def _find_class(live: lint.Bindings, root: str, *path: str) -> tuple[str, tuple[str, ...]] | None:
    """Return the selector of the object at a path and the scopes in which it is built; None if a step has no reference."""
    if not path:
        return registry.find(root)[0].selector, ()
    found = _find(live, root, *path)
    return None if found is None else found[1:]


def _is_flag(origin: Origin) -> bool:
    return origin.source.startswith("--gin.")
