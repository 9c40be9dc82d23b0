"""Explanations of configurables: fields with their types, defaults and meaning, and the places that bind them."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bertfam.config import hints, lint, registry
from bertfam.config.build import Config
from bertfam.config.parse import render
from bertfam.config.shipped import shipped_bindings
from bertfam.errors import UserError
from bertfam.plurals import listed
from bertfam.suggest import did_you_mean


@dataclass(frozen=True)
class Place:
    """Place that binds a field.

    Attributes:
      name: the field with its scope and class, as gin writes it.
      value: the value as gin text.
      where: file and line, or the flag.
    """

    name: str
    value: str
    where: str


@dataclass(frozen=True)
class Field:
    """Field of a configurable.

    Attributes:
      name: its name.
      type: its type in words.
      default: its default as gin text; None if it must be bound.
      description: its meaning; "" if its class does not say it.
      places: the places that bind it: those of the given configuration, or of all shipped files.
    """

    name: str
    type: str
    default: str | None
    description: str
    places: Sequence[Place]


@dataclass(frozen=True)
class Explanation:
    """Configurable with its fields.

    Attributes:
      name: its short name.
      selector: its complete name.
      summary: first paragraph of its docstring.
      fields: its fields in the order of the signature.
    """

    name: str
    selector: str
    summary: str
    fields: Sequence[Field]


def explain(name: str, config: Config | None = None) -> Explanation:
    """Explain the configurable `name`.

    Args:
      name: its name, as gin files write it.
      config: configuration whose bindings are shown; None shows those of all shipped files.

    Raises:
      UserError: if there is none of this name, or several.
    """
    found = registry.find(name.removeprefix("@").removesuffix("()"))
    if not found:
        if registry.find(name.partition(".")[0]):
            raise UserError(
                f"{name} is a field or a longer name; bertfam explain {name.partition('.')[0]} shows the class and its fields"
            )
        hint = _other_name(name) or did_you_mean(name, registry.names(), "see bertfam explain")
        raise UserError(f"no class {name or repr(name)} can be bound by gin{hint}")
    if len(found) > 1:
        raise UserError(f"{name} is one of {', '.join(sorted(match.selector for match in found))}: name one of them")
    (configurable,) = found
    target, selector = configurable.wrapped, configurable.selector
    described = registry.descriptions(target)
    fields = [
        Field(
            parameter,
            "any" if info.hint is Any else hints.describe(info.hint),
            _default(target, parameter),
            described.get(parameter, ""),
            _places(selector, parameter, config),
        )
        for parameter, info in (registry.parameters(selector) or {}).items()
    ]
    summary = " ".join((inspect.getdoc(target) or "").partition("\n\n")[0].split())
    return Explanation(registry.short_name(selector), selector, summary, fields)


def _other_name(name: str) -> str:
    """Return the end of the message about a name of a macro, a parameter or a gin file, which is no class; "" for others."""
    if name.endswith(".gin"):
        return f"; bertfam configs {name} says what the file is"
    if name.isupper():
        return "; this is the name of a macro, whose value bertfam check --show shows"
    if owners := [one for one in registry.names() if name in (registry.parameters(registry.find(one)[0].selector) or ())]:
        return f"; it is a field of {listed(owners, 5)}"
    return ""


def _default(target: Any, parameter: str) -> str | None:
    value = inspect.signature(target).parameters[parameter].default
    if value is inspect.Parameter.empty:
        return None
    return render(value) if registry.is_plain(value) or isinstance(value, (tuple, dict)) else f"@{type(value).__name__}()"


def _places(selector: str, parameter: str, config: Config | None) -> list[Place]:
    if config is None:
        bound = shipped_bindings()
    else:
        bound = [(str(binding.origin), binding) for binding in config.bindings.values()]
    return [
        Place(lint.label(b), render(b.value), where if config else f"{where}:{b.origin.line}")
        for where, b in bound
        if (b.selector, b.parameter) == (selector, parameter)
    ]
