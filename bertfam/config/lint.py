"""Checks for mistakes that gin accepts silently or reports without a line; each raises a UserError with place and fix."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import gin

from bertfam import moved
from bertfam.config import hints, registry, synonyms
from bertfam.config.parse import Binding, Macro, Origin, Reference, parts, render
from bertfam.errors import UserError, warn
from bertfam.suggest import did_you_mean

# Built by commands; every other configurable must be referred to. Complete selectors, since looking up a name imports its module.
ROOTS = ("bertfam.training.run.Run", "bertfam.data.text_data.TextData")

Bindings = Mapping[tuple[str, str, str], Binding]  # by Binding.key, with complete selectors

_MAX_DEPTH = 100  # of macros in macros, and of objects in objects
_MAX_VALUES = 100_000  # of a macro that is made of other macros, and of the objects of a configuration

_WARNED: set[str] = set()  # old names of configurables that a warning has named


def label(binding: Binding) -> str:
    """Return `scope/Name.parameter` in its shortest unambiguous form, or the name of a macro."""
    if binding.is_macro:
        return binding.parameter
    scope = f"{binding.scope}/" if binding.scope else ""
    return f"{scope}{registry.short_name(binding.selector)}.{binding.parameter}"


def complete(binding: Binding) -> Binding:
    """Return the binding with its complete selector and with current names in place of old module paths.

    A retired parameter passes; `drop_retired` checks its value once macros are known.

    Raises:
      UserError: if it names a configurable or parameter that does not exist.
    """
    binding = dataclasses.replace(binding, value=_with_current_names(binding.value, binding.origin))
    for part in parts(binding.value):
        if isinstance(part, Reference):
            _selector(part.name, binding.origin)
    if binding.is_macro:
        return binding
    binding = dataclasses.replace(binding, selector=_current_name(binding.selector, binding.origin))
    _check_names_a_class(binding)
    selector = _selector(binding.selector, binding.origin)
    known = registry.parameters(selector)
    if known is not None and binding.parameter not in known and _retired(selector, binding.parameter) is None:
        hint = synonyms.parameter_hint(binding.parameter, known) or did_you_mean(
            binding.parameter, known, f"it has {', '.join(known) or 'none'}"
        )
        raise UserError(f"{binding.origin}: {binding.selector} has no parameter {binding.parameter}{hint}")
    return dataclasses.replace(binding, selector=selector)


def _check_names_a_class(binding: Binding) -> None:
    """Raise UserError for a parameter of a macro, or by a path through objects, where gin has parameters of classes."""
    if registry.find(binding.selector):
        return
    first, dot, _ = binding.selector.partition(".")
    if binding.selector.isupper():
        kind = "is a macro, which has no parameters"
    elif dot and registry.find(first):
        kind = f"is a path from {first} to another object, and gin binds the parameters of classes"
    else:
        return
    raise UserError(
        f"{binding.origin}: {binding.selector} {kind}: write CLASS.{binding.parameter} with the class that is used there (check "
        "--show lists all)"
    )


def _with_current_names(value: Any, origin: Origin) -> Any:
    """Return the value with every reference by an old module path replaced by one by the current path."""
    if isinstance(value, Reference):
        return dataclasses.replace(value, name=_current_name(value.name, origin))
    if isinstance(value, tuple):
        return tuple(_with_current_names(item, origin) for item in value)
    if isinstance(value, dict):
        return {_with_current_names(key, origin): _with_current_names(item, origin) for key, item in value.items()}
    return value


def _current_name(name: str, origin: Origin) -> str:
    """Return the name under which a configurable is registered; warn once if `name` has an old module path."""
    if "." not in name or registry.find(name):
        return name
    new = registry.renamed(name)
    if new is None:
        return name
    if name not in _WARNED:
        _WARNED.add(name)
        warn([f"{origin}: {name} is now {new}; change the name"])
    return new


def _selector(name: str, origin: Origin) -> str:
    selectors = [configurable.selector for configurable in registry.find(name)]
    if not selectors:
        hint = did_you_mean(
            name,
            registry.names(),
            "for one of your own add `import MODULE` to a gin file, or --module_import=MODULE (without --task)",
        )
        raise UserError(f"{origin}: unknown configurable {name}{hint}")
    if len(selectors) > 1:
        raise UserError(f"{origin}: {name} is ambiguous: {' or '.join(sorted(selectors))}; write one of them in full")
    return selectors[0]


def check_duplicates(bindings: Iterable[Binding]) -> None:
    """Check that no value is bound twice in one file; across files and flags a later binding overrides an earlier one."""
    first: dict[tuple, Origin] = {}
    for binding in bindings:
        place = first.setdefault((binding.origin.source, *binding.key), binding.origin)
        if place.line != binding.origin.line:
            raise UserError(f"{binding.origin}: {label(binding)} is already bound in line {place.line}; keep one of them")


def check_macros(bindings: Iterable[Binding], live: Bindings) -> None:
    """Check that every macro in use is defined and not in terms of itself, and that every defined macro is used."""
    macros = {binding.parameter: binding.origin for binding in live.values() if binding.is_macro}
    for binding in live.values():
        for part in parts(binding.value):
            if isinstance(part, Macro) and part.name not in macros and not _is_constant(part.name):
                model = "give a model's file, such as --gin_file=models/bert_tiny.gin, or " if part.name == "MODEL" else ""
                hint = did_you_mean(part.name, macros, f"{model}define it with a line {part.name} = ...")
                raise UserError(f"{binding.origin}: the macro %{part.name} is not defined{hint}")
    _check_extents(live)
    referred = {part.name for binding in bindings for part in parts(binding.value) if isinstance(part, Macro)}
    for name, origin in macros.items():
        if name not in referred:
            hint = _name_hint(name, referred, live)
            if file := _objective_file(live["", "", name].value):
                raise UserError(f"{origin}: no objective trains the model {name}: include an objective's file, such as {file}")
            if registry.find(name):
                hint = f"; to bind a parameter write {name}.PARAMETER"
            raise UserError(f"{origin}: nothing refers to the macro {name}{hint}")


def _name_hint(name: str, macros: Collection[str], live: Bindings) -> str:
    """Return the hint for a name that is no macro in use: the macro or the parameters in use that were probably meant."""
    folded = name.casefold()
    if folded not in map(str.casefold, macros):
        if hint := synonyms.macro_hint(name):
            return hint
        referred = {part.name for binding in live.values() for part in parts(binding.value) if isinstance(part, Reference)}
        used = {match.selector for reference in referred for match in registry.find(reference)}
        used |= {binding.selector for binding in live.values() if not binding.is_macro}
        wanted = synonyms.parameters_here(name) or [folded]
        if meant := [
            f"{registry.short_name(one)}.{parameter}"
            for one in sorted(used)
            for parameter in wanted
            if parameter in (registry.parameters(one) or ())
        ]:
            return f"; did you mean {' or '.join(meant[:3])}?"
    return did_you_mean(name, macros, f"delete it, or use it as %{name}")


def check_flags(live: Bindings, root: str) -> None:
    """Reject a --gin flag without effect: one that binds a parameter of a configurable that nothing refers to.

    A file may contain such a binding, since another file or flag may have replaced the reference.
    """
    referred = {part.name for binding in live.values() for part in parts(binding.value) if isinstance(part, Reference)}
    used = {match.selector for name in (*referred, root) for match in registry.find(name)} | set(ROOTS)
    for binding in live.values():
        ours = binding.selector in registry.CONFIGURABLES  # a user's function may call any configurable
        if str(binding.origin).startswith("--gin.") and ours and binding.selector not in used:
            name = registry.short_name(binding.selector)
            place = _place_of_its_kind(live, name) or "where it is to be used"
            raise UserError(f"{binding.origin}: nothing refers to {name}, so this has no effect; bind @{name}() {place}")


def _place_of_its_kind(live: Bindings, name: str) -> str | None:
    """Return the place of another object with the same base class, for a message; None if there is none."""
    kinds = _kinds(name)
    for binding in live.values():
        value = binding.value
        if not binding.is_macro and isinstance(value, Reference) and kinds & _kinds(value.name):
            return f"in place of @{value.name}() as {label(binding)}, or set the parameter of {value.name}"
    return None


def _kinds(name: str) -> set[type]:
    """Return bertfam's own base classes of a configurable, itself included."""
    classes = [getattr(match.wrapped, "__mro__", ()) for match in registry.find(name)]
    return {kind for mro in classes for kind in mro if kind.__module__.startswith("bertfam.")}


def _check_extents(live: Bindings) -> None:
    """Check that no macro contains itself, and that macros stay small once each `%NAME` in them is replaced by its value."""
    extents: dict[str, tuple[int, int]] = {}  # macro -> greatest number of macros within each other, number of values
    for start in live.values():
        pending, around = [start] if start.is_macro else [], set[str]()
        while pending:
            binding = pending[-1]
            inner = [part.name for part in parts(binding.value) if isinstance(part, Macro) and ("", "", part.name) in live]
            if missing := [name for name in inner if name not in extents]:
                around.add(binding.parameter)
                if loop := next((live["", "", name] for name in missing if name in around), None):
                    raise UserError(f"{loop.origin}: the macro {loop.parameter} is defined in terms of itself; give it a value")
                pending += [live["", "", name] for name in dict.fromkeys(missing)]
                continue
            pending.pop()
            around.discard(binding.parameter)
            depth = 1 + max((extents[name][0] for name in inner), default=0)
            count = _count(binding.value) - len(inner) + sum(extents[name][1] for name in inner)
            if depth > _MAX_DEPTH or (inner and count > _MAX_VALUES):
                deep, many = f"is more than {_MAX_DEPTH} macros deep", f"has more than {_MAX_VALUES:,} values"
                problem = deep if depth > _MAX_DEPTH else many
                raise UserError(f"{binding.origin}: the macro {binding.parameter} {problem}; give it a value of its own")
            extents[binding.parameter] = depth, count


def _count(value: Any) -> int:
    """Return the number of values in nested tuples and dictionaries."""
    if isinstance(value, tuple):
        return sum(map(_count, value))
    return sum(map(_count, value.values())) if isinstance(value, dict) else 1


def check_scopes(bindings: Iterable[Binding]) -> None:
    """Check that every scope with a binding is entered by a reference."""
    bindings = list(bindings)
    entered = _scopes(bindings)
    for binding in bindings:
        if binding.scope and binding.scope not in entered:
            fix = f"write the reference as @{binding.scope}/{registry.short_name(binding.selector)}()"
            hint = did_you_mean(binding.scope, entered, fix)
            raise UserError(f"{binding.origin}: no reference enters the scope {binding.scope} of {label(binding)}{hint}")


def _scopes(bindings: Iterable[Binding]) -> set[str]:
    """Return every scope that references enter, outer ones included; a macro's value is built in the scope of its name."""
    entered = set()
    for binding in bindings:
        for part in parts(binding.value):
            scopes = part.scopes if isinstance(part, Reference) else tuple(part.name.split("/"))
            entered |= {"/".join(scopes[: end + 1]) for end in range(len(scopes))}
    return entered


def drop_retired(live: Bindings) -> Bindings:
    """Return the bindings without those of retired parameters (`bertfam.moved.PARAMETERS`).

    Raises:
      UserError: if one has another value than its former default.
    """
    kept = {}
    for key, binding in live.items():
        retired = None if binding.is_macro else _retired(binding.selector, binding.parameter)
        if retired is None:
            kept[key] = binding
        elif resolve(binding.value, live) != retired.default:
            name = registry.short_name(binding.selector)
            raise UserError(
                f"{binding.origin}: {label(binding)} is {render(binding.value)}{macro_origins(binding.value, live)}, but "
                f"{binding.parameter} is now an option of {retired.owner}, not of {name}; use @{retired.owner}(), or delete "
                f"the line for the former default, {render(retired.default)}"
            )
    return kept


def added() -> list[Binding]:
    """Return bindings of the parameters that an earlier version did not have, with the values that its files mean."""
    return [
        Binding("", selector, parameter, value, Origin("earlier version"))
        for selector, values in moved.ADDED.items()
        for parameter, value in values.items()
    ]


def _retired(selector: str, parameter: str) -> moved.Retired | None:
    """Return the retired parameter of a configurable or of one of its base classes; None if it has this parameter itself."""
    if parameter in (registry.parameters(selector) or ()):
        return None
    target = registry.get(selector).wrapped
    bases = inspect.getmro(target) if inspect.isclass(target) else ()
    tables = (moved.PARAMETERS.get(f"{base.__module__}.{base.__qualname__}", {}) for base in bases)
    return next((table[parameter] for table in tables if parameter in table), None)


def check_types(live: Bindings) -> None:
    """Check that every value fits its annotation and that every number can be represented."""
    for binding in live.values():
        known = None if binding.is_macro else registry.parameters(binding.selector)
        if known is None:
            continue
        hint = known[binding.parameter].hint
        value = resolve(binding.value, live)
        if not hints.is_representable(value):
            raise UserError(
                f"{binding.origin}: {label(binding)} is {render(value)}{macro_origins(binding.value, live)}, which is too "
                "large: a number is at most 3.4e38, an integer below 2^63; write a smaller one"
            )
        if not hints.fits(value, hint):
            repaired = hints.repair(value, hint)
            fix = f"; write {repaired}" if repaired else _fix_by_meaning(binding, hint, live)
            if binding.parameter == "schedule" and isinstance(value, (int, float)):
                fix = f"; write @LinearDecay(), say, and bind LinearDecay.peak = {render(value)} by itself"
            raise UserError(
                f"{binding.origin}: {label(binding)} must be {hints.describe(hint)}, not {render(value)}"
                f"{macro_origins(binding.value, live)}{fix}"
            )


def _fix_by_meaning(binding: Binding, hint: Any, live: Bindings) -> str:
    """Return the hint, for a value of another type, at the one that is meant; "" if it is not known."""
    value = resolve(binding.value, live)
    if value is None or value is False:
        meaning = registry.descriptions(registry.get(binding.selector).wrapped).get(binding.parameter, "")
        return f"; write 0, which {match[1]}" if (match := re.search(r"\b0 (disables \w+)", meaning)) else ""
    return _share_hint(binding, hint, live) or _objective_hint(binding, value)


def _share_hint(binding: Binding, hint: Any, live: Bindings) -> str:
    """Return the hint, for a number of updates that is given as a share of them, at their number; "" for other values."""
    value, total = resolve(binding.value, live), live.get(("", "", "TRAIN_STEPS"))
    steps = resolve(total.value, live) if total else None
    if not (
        isinstance(value, float) and 0 < value < 1 and hints.fits(1, hint) and binding.parameter.endswith(("steps", "every"))
    ):
        return ""
    share = f", such as {max(1, round(value * steps))}, which is this share of TRAIN_STEPS" if isinstance(steps, int) else ""
    return f"; it is a number of updates, not a share of them: write a whole number{share}"


def _objective_hint(binding: Binding, value: Any) -> str:
    """Return the hint, for a model that the objective cannot train, at an objective that can; "" for other values."""
    file = _objective_file(value) if binding.selector.startswith("bertfam.objectives.") else None
    return f"; use an objective for {value.name}, such as {file}" if file else ""


def _objective_file(value: Any) -> str | None:
    """Return the gin file of an objective that trains the model whose config `value` refers to; None for other values."""
    if not isinstance(value, Reference) or not (found := registry.find(value.name)):
        return None
    return getattr(found[0].wrapped, "objective_file", None)


def reduce(live: Bindings) -> Bindings:
    """Drop the macros and scopes that nothing in effect refers to, such as those of overridden values."""
    while True:
        referred = {part.name for b in live.values() for part in parts(b.value) if isinstance(part, Macro)}
        entered = _scopes(live.values())
        kept = {
            key: b for key, b in live.items() if (b.parameter in referred if b.is_macro else not b.scope or b.scope in entered)
        }
        if len(kept) == len(live):
            return live
        live = kept


def reachable(live: Bindings, root: str) -> tuple[set[str], set[str]]:
    """Return the selectors of `root` and of all configurables that its values refer to, in any scope, and their macros."""
    selectors, macros = {root}, set[str]()
    while True:
        values = [b.value for b in live.values() if (b.parameter in macros if b.is_macro else b.selector in selectors)]
        referred = [part for value in values for part in parts(value)]
        more_macros = {part.name for part in referred if isinstance(part, Macro)} - macros
        more_selectors = {registry.find(part.name)[0].selector for part in referred if isinstance(part, Reference)} - selectors
        if not more_macros and not more_selectors:
            return selectors, macros
        macros |= more_macros
        selectors |= more_selectors


def check_required(live: Bindings, root: str, here: Origin) -> None:
    """Check that everything built for `root` has its required parameters, does not contain itself, and is not too much."""
    _visit(live, _selector(root, here), (), here, (), {})


_Built = tuple[str, tuple[str, ...]]  # selector and scopes of an object


def _visit(
    live: Bindings, selector: str, scopes: tuple[str, ...], at: Origin, within: tuple[_Built, ...], counts: dict[_Built, int]
) -> int:
    """Check an object and the objects in it; return their number, which `counts` keeps for the next reference."""
    name = registry.short_name(selector)
    if (selector, scopes) in within:
        raise UserError(f"{at}: @{name}() is part of itself; remove one of the references")
    if (selector, scopes) in counts:
        return counts[selector, scopes]
    if len(within) > _MAX_DEPTH:
        raise UserError(f"{at}: @{name}() is within more than {_MAX_DEPTH} other objects; remove some of the references")
    bindings = bound(live, selector, scopes)
    for parameter, (_, required) in (registry.parameters(selector) or {}).items():
        binding = bindings.get(parameter)
        if required and binding is None:
            what = f"@{'/'.join((*scopes, name))}()" if within else name
            value = f"%{parameter.upper()}" if ("", "", parameter.upper()) in live else "..."
            raise UserError(f"{at}: {what} requires {parameter}, which is not bound; add {name}.{parameter} = {value}")
        if binding is not None and resolve(binding.value, live) is gin.REQUIRED:
            unset = last(binding, live)
            raise UserError(f"{unset.origin}: {label(unset)} has no value yet; add {label(unset)} = ...")
    inside = (*within, (selector, scopes))
    count = 1 + sum(_visit_value(live, binding, scopes, inside, counts) for binding in bindings.values())
    if count > _MAX_VALUES:
        raise UserError(f"{at}: @{name}() is made of more than {_MAX_VALUES:,} objects; remove some of the references in it")
    counts[selector, scopes] = count
    return count


def _visit_value(
    live: Bindings, binding: Binding, scopes: tuple[str, ...], within: tuple[_Built, ...], counts: dict[_Built, int]
) -> int:
    count = 0
    for part in parts(binding.value):
        if isinstance(part, Reference) and part.evaluated:
            selector = registry.find(part.name)[0].selector
            count += _visit(live, selector, part.scopes or scopes, binding.origin, within, counts)
        elif isinstance(part, Macro) and ("", "", part.name) in live:
            count += _visit_value(live, live["", "", part.name], tuple(part.name.split("/")), within, counts)
    return count


def bound(live: Bindings, selector: str, scopes: tuple[str, ...]) -> dict[str, Binding]:
    """Return the bindings of a configurable built in nested `scopes`; inner scopes override outer ones."""
    prefixes = ["/".join(scopes[:end]) for end in range(len(scopes) + 1)]
    return {b.parameter: b for prefix in prefixes for b in live.values() if (b.scope, b.selector) == (prefix, selector)}


def resolve(value: Any, live: Bindings) -> Any:
    """Replace every macro in a value by its value."""
    if isinstance(value, Macro):
        binding = live.get(("", "", value.name))
        return gin.query_parameter(value.name) if binding is None else resolve(binding.value, live)
    if isinstance(value, tuple):
        return tuple(resolve(item, live) for item in value)
    if isinstance(value, dict):
        return {resolve(key, live): resolve(item, live) for key, item in value.items()}
    return value


def last(binding: Binding, live: Bindings) -> Binding:
    """Follow a chain of macros to the binding that holds the value itself."""
    while isinstance(binding.value, Macro) and ("", "", binding.value.name) in live:
        binding = live["", "", binding.value.name]
    return binding


def macro_origins(value: Any, live: Bindings) -> str:
    """Return the part of an error line that names where the macros of a value are defined, or ""."""
    names = dict.fromkeys(part.name for part in parts(value) if isinstance(part, Macro))
    places = [f"%{name} from {live['', '', name].origin}" for name in names if ("", "", name) in live]
    return f" ({', '.join(places)})" if places else ""


def _is_constant(name: str) -> bool:
    try:
        gin.query_parameter(name)
    except ValueError:
        return False
    return True
