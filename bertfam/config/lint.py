"""The mistakes that gin accepts silently or reports without a line: each is one UserError with its place and the fix."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import gin

from bertfam.config import hints, registry
from bertfam.config.parse import Binding, Macro, Origin, Reference, parts, render
from bertfam.errors import UserError
from bertfam.suggest import did_you_mean

ROOTS = ("Run", "TextData")  # what commands build; all else must be referred to

Bindings = Mapping[tuple[str, str, str], Binding]  # by Binding.key, the selectors complete


def label(binding: Binding) -> str:
    """`scope/Name.parameter` in the shortest form that is unambiguous; a macro's name."""
    if binding.is_macro:
        return binding.parameter
    scope = f"{binding.scope}/" if binding.scope else ""
    return f"{scope}{registry.short_name(binding.selector)}.{binding.parameter}"


def complete(binding: Binding) -> Binding:
    """The binding with its selector in full. Raises UserError where it names what does not exist."""
    for part in parts(binding.value):
        if isinstance(part, Reference):
            _selector(part.name, binding.origin)
    if binding.is_macro:
        return binding
    selector = _selector(binding.selector, binding.origin)
    known = registry.parameters(selector)
    if known is not None and binding.parameter not in known:
        hint = did_you_mean(binding.parameter, known, f"it has {', '.join(known) or 'none'}")
        raise UserError(f"{binding.origin}: {binding.selector} has no parameter {binding.parameter}{hint}")
    return dataclasses.replace(binding, selector=selector)


def _selector(name: str, origin: Origin) -> str:
    found = [configurable.selector for configurable in registry.find(name)]
    if not found:
        hint = did_you_mean(
            name,
            registry.names(),
            "`import MODULE` in a gin file brings in your own, as does --module_import=MODULE without --task",
        )
        raise UserError(f"{origin}: unknown configurable {name}{hint}")
    if len(found) > 1:
        raise UserError(f"{origin}: {name} may mean {' or '.join(sorted(found))}; write one of them in full")
    return found[0]


def check_duplicates(bindings: Iterable[Binding]) -> None:
    """No value is bound twice in one file; between files, and between flags, the later wins."""
    first: dict[tuple, Origin] = {}
    for binding in bindings:
        place = first.setdefault((binding.origin.source, *binding.key), binding.origin)
        if place.line != binding.origin.line:
            raise UserError(f"{binding.origin}: {label(binding)} is bound in line {place.line} already; keep one of them")


def check_macros(bindings: Iterable[Binding], live: Bindings) -> None:
    """Every macro that a value in force refers to is defined, not by itself; every macro defined is referred to."""
    macros = {binding.parameter: binding.origin for binding in live.values() if binding.is_macro}
    for binding in live.values():
        for part in parts(binding.value):
            if isinstance(part, Macro) and part.name not in macros and not _is_constant(part.name):
                hint = did_you_mean(part.name, macros, f"define it by a line {part.name} = ...")
                raise UserError(f"{binding.origin}: the macro %{part.name} is not defined{hint}")
        if binding.is_macro:
            _check_loop(binding, live)
    referred = {part.name for binding in bindings for part in parts(binding.value) if isinstance(part, Macro)}
    for name, origin in macros.items():
        if name not in referred:
            hint = did_you_mean(name, referred, f"delete it, or use it as %{name}")
            if registry.find(name):
                hint = f"; to bind a parameter write {name}.PARAMETER"
            raise UserError(f"{origin}: nothing refers to the macro {name}{hint}")


def check_flags(live: Bindings, root: str) -> None:
    """Refuse a --gin flag that binds a parameter of ours to which nothing refers: it would change nothing.

    A file may do so, since another file or flag may have chosen something else in its place.
    """
    referred = {part.name for binding in live.values() for part in parts(binding.value) if isinstance(part, Reference)}
    used = {found.selector for name in (*referred, *ROOTS, root) for found in registry.find(name)}
    for binding in live.values():
        ours = binding.selector in registry.CONFIGURABLES  # a function of the user's may call what it likes
        if str(binding.origin).startswith("--gin.") and ours and binding.selector not in used:
            name = registry.short_name(binding.selector)
            raise UserError(
                f"{binding.origin}: nothing refers to {name}, so this changes nothing; bind @{name}() where it belongs"
            )


def _check_loop(start: Binding, live: Bindings) -> None:
    waiting, seen = [start], set()
    while waiting:
        for part in parts(waiting.pop().value):
            if isinstance(part, Macro) and part.name == start.parameter:
                raise UserError(f"{start.origin}: the macro {start.parameter} is defined by itself; give it a value")
            if isinstance(part, Macro) and part.name not in seen and ("", "", part.name) in live:
                seen.add(part.name)
                waiting.append(live["", "", part.name])


def check_scopes(bindings: Iterable[Binding]) -> None:
    """Every scope that something is bound in is entered by a reference."""
    bindings = list(bindings)
    entered = _scopes(bindings)
    for binding in bindings:
        if binding.scope and binding.scope not in entered:
            fix = f"write the reference as @{binding.scope}/{registry.short_name(binding.selector)}()"
            hint = did_you_mean(binding.scope, entered, fix)
            raise UserError(f"{binding.origin}: no reference enters the scope {binding.scope} of {label(binding)}{hint}")


def _scopes(bindings: Iterable[Binding]) -> set[str]:
    """Every scope that references enter, outer ones too. What a macro holds is built in a scope of its name."""
    found = set()
    for binding in bindings:
        for part in parts(binding.value):
            scopes = part.scopes if isinstance(part, Reference) else tuple(part.name.split("/"))
            found |= {"/".join(scopes[: end + 1]) for end in range(len(scopes))}
    return found


def check_types(live: Bindings) -> None:
    """Every value fits its annotation, and no number is too large to compute with."""
    for binding in live.values():
        known = None if binding.is_macro else registry.parameters(binding.selector)
        if known is None:
            continue
        hint = known[binding.parameter].hint
        value = resolve(binding.value, live)
        if not hints.has_place(value):
            raise UserError(
                f"{binding.origin}: {label(binding)} is {render(value)}{macro_origins(binding.value, live)}: numbers end at "
                "3.4e38, and integers at 2^63; write a smaller one"
            )
        if not hints.fits(value, hint):
            repaired = hints.repair(value, hint)
            fix = f"; write {repaired}" if repaired else _own_objective(binding, value)
            raise UserError(
                f"{binding.origin}: {label(binding)} wants {hints.describe(hint)}, got {render(value)}"
                f"{macro_origins(binding.value, live)}{fix}"
            )


def _own_objective(binding: Binding, value: Any) -> str:
    """The end of an error line on a model that an objective does not train, with one that does; nothing of all else."""
    if not isinstance(value, Reference) or not binding.selector.startswith("bertfam.objectives."):
        return ""
    file = getattr(registry.find(value.name)[0].wrapped, "objective_file", None)
    return f"; use an objective for {value.name}, as {file}" if file else ""


def reduce(live: Bindings) -> Bindings:
    """Without the macros and scopes that nothing in force refers to: those of values that were overridden."""
    while True:
        referred = {part.name for b in live.values() for part in parts(b.value) if isinstance(part, Macro)}
        entered = _scopes(live.values())
        kept = {
            key: b for key, b in live.items() if (b.parameter in referred if b.is_macro else not b.scope or b.scope in entered)
        }
        if len(kept) == len(live):
            return live
        live = kept


def check_required(live: Bindings, root: str, here: Origin) -> None:
    """Whatever building `root` constructs has all its parameters, and does not contain itself."""
    _visit(live, _selector(root, here), (), here, ())


def _visit(live: Bindings, selector: str, scopes: tuple[str, ...], at: Origin, within: tuple) -> None:
    name = registry.short_name(selector)
    if (selector, scopes) in within:
        raise UserError(f"{at}: @{name}() is part of itself; take out one of the references")
    given = bound(live, selector, scopes)
    for parameter, (_, required) in (registry.parameters(selector) or {}).items():
        binding = given.get(parameter)
        if required and binding is None:
            what = f"@{'/'.join((*scopes, name))}()" if within else name
            raise UserError(f"{at}: {what} needs {parameter}, which nothing binds; add {name}.{parameter} = ...")
        if binding is not None and resolve(binding.value, live) is gin.REQUIRED:
            last = _last(binding, live)
            raise UserError(f"{last.origin}: {label(last)} has no value yet; add {label(last)} = ...")
    for binding in given.values():
        _visit_value(live, binding, scopes, (*within, (selector, scopes)))


def _visit_value(live: Bindings, binding: Binding, scopes: tuple[str, ...], within: tuple) -> None:
    for part in parts(binding.value):
        if isinstance(part, Reference) and part.evaluated:
            selector = registry.find(part.name)[0].selector
            _visit(live, selector, part.scopes or scopes, binding.origin, within)
        elif isinstance(part, Macro) and ("", "", part.name) in live:
            _visit_value(live, live["", "", part.name], tuple(part.name.split("/")), within)


def bound(live: Bindings, selector: str, scopes: tuple[str, ...]) -> dict[str, Binding]:
    """The bindings that hold for a configurable built in nested `scopes`: inner ones over outer ones."""
    prefixes = ["/".join(scopes[:end]) for end in range(len(scopes) + 1)]
    return {b.parameter: b for prefix in prefixes for b in live.values() if (b.scope, b.selector) == (prefix, selector)}


def resolve(value: Any, live: Bindings) -> Any:
    """The value with every macro replaced by what it stands for."""
    if isinstance(value, Macro):
        binding = live.get(("", "", value.name))
        return gin.query_parameter(value.name) if binding is None else resolve(binding.value, live)
    if isinstance(value, tuple):
        return tuple(resolve(item, live) for item in value)
    if isinstance(value, dict):
        return {resolve(key, live): resolve(item, live) for key, item in value.items()}
    return value


def _last(binding: Binding, live: Bindings) -> Binding:
    """The binding at the end of a chain of macros, where the value itself is written."""
    while isinstance(binding.value, Macro) and ("", "", binding.value.name) in live:
        binding = live["", "", binding.value.name]
    return binding


def macro_origins(value: Any, live: Bindings) -> str:
    """The end of an error line that says where the macros of a value are defined, or nothing."""
    names = dict.fromkeys(part.name for part in parts(value) if isinstance(part, Macro))
    places = [f"%{name} from {live['', '', name].origin}" for name in names if ("", "", name) in live]
    return f" ({', '.join(places)})" if places else ""


def _is_constant(name: str) -> bool:
    try:
        gin.query_parameter(name)
    except ValueError:
        return False
    return True
