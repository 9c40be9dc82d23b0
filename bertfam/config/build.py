"""Loaded configurations: checks, construction of objects, gin text, and the origin of every value."""

from __future__ import annotations

import dataclasses
import os
import re
import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import gin

from bertfam.config import lint, registry
from bertfam.config.imports import MODULE_PARAMETERS, FolderModules, check_imported, import_module
from bertfam.config.parse import (
    Binding,
    Import,
    Macro,
    Origin,
    Override,
    Reference,
    parse_file,
    parse_override,
    parts,
    render,
    render_binding,
)
from bertfam.config.paths import packaged_folder
from bertfam.errors import UserError, warn_once
from bertfam.version import __version__

_LINE = 120
_TEXT = ("bertfam.data.text_data.TextData", "corpus")


class Defaults(NamedTuple):
    """Defaults that the gin files of a configuration, and its bindings, override.

    Attributes:
      files: gin files.
      bindings: bindings under those of the files; a macro that no file refers to is left out.
    """

    files: Sequence[str] = ()
    bindings: Sequence[Override] = ()


def load(
    gin_files: Sequence[str],
    bindings: Sequence[str | Override] = (),
    module_imports: Sequence[str] = (),
    *,
    saved: Collection[str] = (),
    defaults: Sequence[Override] = (),
) -> Config:
    """Load and check gin files, then bindings ("NAME = value").

    Later values override earlier ones. Modules are imported first. This clears gin's own state, which is global;
    `Config.build` fills it.

    Args:
      gin_files: the gin files.
      bindings: bindings over those of the files.
      module_imports: modules to import.
      saved: those of the gin files that belong to a model folder. Reading a folder runs no code, so they import only modules
        that `module_imports` names too or that are imported already. Parameters that an earlier version did not have get the
        values that such a file means (`bertfam.moved.ADDED`).
      defaults: bindings under those of the files; a macro that nothing else refers to is left out.

    Raises:
      UserError: for every mistake that can be found without building; the message names the file and line (or the flag)
        and the fix.
    """
    gin.clear_config()
    statements: list[Binding | Import] = [Import(module, Origin(f"--module_import={module}")) for module in module_imports]
    saved_sources: set[str] = set()
    sizes: list[int] = []  # bindings of each file
    for name in gin_files:
        named_at = name if name in saved else f"--gin_file={name}"
        parsed = list(parse_file(name, named_at, is_saved=name in saved))
        if name in saved:
            check_imported([statement for statement in parsed if isinstance(statement, Import)], module_imports)
            saved_sources |= {statement.origin.source for statement in parsed}
        statements += parsed
        sizes.append(sum(isinstance(statement, Binding) for statement in parsed))
    statements += map(parse_override, bindings)
    statements = [*_referred(defaults, statements), *statements]

    imports = [statement for statement in statements if isinstance(statement, Import)]
    for statement in imports:
        import_module(statement)

    if saved_sources:
        # First, so that a file which states them overrides them.
        statements = [*lint.added(), *statements]
    with _other_versions(saved_sources):
        complete = [lint.complete(statement) for statement in statements if isinstance(statement, Binding)]
        live: lint.Bindings = {binding.key: binding for binding in complete}
        lint.check_duplicates(complete)
        lint.check_macros(complete, live)
        lint.check_scopes(complete)
        live = lint.drop_retired(live)
        lint.check_types(live)
    modules = tuple(dict.fromkeys(statement.module for statement in imports))
    overridden = _overridden(gin_files, sizes, complete, len(bindings))
    _report_lost_text([binding for binding in complete if binding.origin.source not in saved_sources])
    return Config(lint.reduce(live), modules, tuple(gin_files), frozenset(saved_sources), overridden)


def _overridden(
    gin_files: Sequence[str], sizes: Sequence[int], bindings: Sequence[Binding], flags: int
) -> Mapping[str, tuple[str, ...]]:
    """Return the files of which later files or flags override every binding, some with another value, and what overrides them.

    Args:
      gin_files: the gin files.
      sizes: the number of bindings of each file and those that it includes.
      bindings: all bindings; those of the files come in their order, before those of flags.
      flags: the number of bindings of flags.
    """
    ends = [len(bindings) - flags - sum(sizes[number + 1 :]) for number in range(len(sizes))]
    last = {binding.key: index for index, binding in enumerate(bindings)}
    overridden: dict[str, tuple[str, ...]] = {}
    for name, size, end in zip(gin_files, sizes, ends, strict=True):
        own = {binding.key: binding for binding in bindings[end - size : end]}
        in_effect = [last[key] for key in own]
        if in_effect and min(in_effect) >= end and any(bindings[last[key]].value != own[key].value for key in own):
            files = {
                index: next((file for file, after in zip(gin_files, ends, strict=True) if index < after), None)
                for index in in_effect
            }
            overridden[name] = tuple(dict.fromkeys(files[index] or str(bindings[index].origin) for index in sorted(in_effect)))
    return overridden


def _report_lost_text(bindings: Iterable[Binding]) -> None:
    """Warn about text that a gin file of the user names, and that a shipped file after it replaces by its own."""
    corpora = [binding for binding in bindings if (binding.selector, binding.parameter) == _TEXT]
    folder = str(packaged_folder())
    is_shipped = [os.path.abspath(binding.origin.source).startswith(folder) for binding in corpora]
    for own, shipped in zip(corpora, is_shipped, strict=True):
        last = corpora[-1]
        if is_shipped[-1] and not shipped and own.origin.line and own.value != last.value:
            warn_once(
                f"{own.origin}: TextData.corpus = {render(own.value)} has no effect: {last.origin}, which is read after it, "
                f"binds {render(last.value)}; give {own.origin.source} after the other files"
            )


def _referred(defaults: Sequence[Override], statements: Iterable[Binding | Import]) -> list[Binding]:
    """Return the default bindings without the macros that no statement refers to."""
    values = (statement.value for statement in statements if isinstance(statement, Binding))
    macros = {part.name for value in values for part in parts(value) if isinstance(part, Macro)}
    return [binding for binding in map(parse_override, defaults) if not binding.is_macro or binding.parameter in macros]


@contextmanager
def _other_versions(saved: Collection[str]) -> Iterator[None]:
    """Add to a mistake in the file of a model folder, which no person wrote, that a newer version may have saved it."""
    try:
        yield
    except UserError as error:
        if not str(error).startswith(tuple(f"{source}:" for source in saved)):
            raise
        raise UserError(
            f"{error}; a run has saved this, perhaps by a newer version: this is bertfam {__version__}, so update it "
            "(pip install --upgrade bertfam)"
        ) from error


def file_binds(gin_files: Sequence[str], name: str, *, saved: bool = False) -> bool:
    """Return True if one of the gin files, or a file that it includes, binds `Configurable.parameter`.

    Args:
      gin_files: the gin files.
      name: the parameter.
      saved: whether they belong to a model folder, and include no other.

    Raises:
      UserError: if a file is missing or does not parse.
    """
    statements = (
        statement for file in gin_files for statement in parse_file(file, file if saved else f"--gin_file={file}", is_saved=saved)
    )
    bindings = (statement for statement in statements if isinstance(statement, Binding))
    return any(f"{binding.selector}.{binding.parameter}" == name for binding in bindings)


@dataclass(frozen=True)
class Config:
    """A checked configuration.

    Attributes:
      bindings: the bindings in effect.
      modules: the modules that were imported.
      files: the gin files.
      saved_sources: the files of a model folder, as origins name them.
      overridden: the files without effect, each with the files and flags that override all its bindings.
    """

    bindings: lint.Bindings
    modules: tuple[str, ...]
    files: tuple[str, ...]
    saved_sources: frozenset[str] = frozenset()
    overridden: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    def build(self, name: str) -> Any:
        """Build the object of `@name()` with everything that it refers to.

        Raises:
          UserError: if a required parameter is not bound, or a constructor rejects its values (by ValueError or UserError).
            Other exceptions are faults of the program and propagate.
        """
        here = Origin(" ".join(self.files) or "command line")
        lint.check_required(self.bindings, name, here)
        lint.check_flags(self.bindings, name)
        gin.clear_config()
        for binding in self.bindings.values():  # parsing the text of a run would take three quarters of the time of building it
            key = (binding.parameter, "gin.macro", "value") if binding.is_macro else binding.key
            gin.bind_parameter(key, _gin_value(binding.value))
        for key, modules in self._modules_of_folders():
            gin.bind_parameter(key, modules)
        try:
            return gin.get_configurable(name)()
        except (ValueError, UserError) as error:
            raise self._located(error) from error

    def complete(self, root: str) -> Config:
        """Return the configuration with the defaults of `root` and of every configurable that a value refers to.

        A saved configuration then means the same under a later version with other defaults. Defaults that are not plain
        values, or are longer than a line, are not written out.
        """
        referred = {part.name for b in self.bindings.values() for part in parts(b.value) if isinstance(part, Reference)}
        bindings = dict(self.bindings)
        for name in sorted(referred | {root}):
            (configurable,) = registry.find(name)
            for parameter, default in registry.defaults(configurable.selector).items():
                binding = Binding("", configurable.selector, parameter, default, Origin("default"))
                if len(render_binding(lint.label(binding), default)) <= _LINE:
                    bindings.setdefault(binding.key, binding)
        return dataclasses.replace(self, bindings=bindings)

    def rebound(self, name: str, value: Any) -> Config:
        """Return the configuration with another value for `Configurable.parameter` wherever that is bound."""
        changed = {key: dataclasses.replace(b, value=value) for key, b in self.bindings.items() if lint.label(b) == name}
        return dataclasses.replace(self, bindings={**self.bindings, **changed})

    def replaced(self, old: str, new: str) -> Config:
        """Return the configuration with the text `new` wherever a value is `old`."""
        changed = {key: dataclasses.replace(binding, value=new) for key, binding in self.bindings.items() if binding.value == old}
        return dataclasses.replace(self, bindings={**self.bindings, **changed})

    def with_binding(self, override: Override) -> Config:
        """Return the configuration with one more binding, which overrides its own."""
        binding = lint.complete(parse_override(override))
        return dataclasses.replace(self, bindings={**self.bindings, binding.key: binding})

    def restricted(self, root: str) -> Config:
        """Return the configuration with only the bindings that `build(root)` may use.

        A user's own configurable may call any other, so that everything is kept if `root` refers to one.
        """
        (configurable,) = registry.find(root)
        selectors, macros = lint.reachable(self.bindings, configurable.selector)
        if not selectors <= set(registry.CONFIGURABLES):
            return self
        kept = {key: b for key, b in self.bindings.items() if (b.parameter in macros if b.is_macro else b.selector in selectors)}
        return dataclasses.replace(self, bindings=lint.reduce(kept))

    def with_binding_of(self, other: Config, name: str) -> Config:
        """Return the configuration with the binding of `Configurable.parameter` in `other`, unless it has one itself."""
        if self.binds(name):
            return self
        taken = {key: binding for key, binding in other.bindings.items() if lint.label(binding) == name}
        return dataclasses.replace(self, bindings={**self.bindings, **taken})

    def binds(self, name: str) -> bool:
        """Return True if any binding sets `Configurable.parameter`."""
        return any(lint.label(binding) == name for binding in self.bindings.values())

    def bindings_of(self, name: str) -> list[Binding]:
        """Return the bindings of `Configurable.parameter` outside any scope."""
        return [binding for binding in self.bindings.values() if lint.label(binding) == name]

    def value(self, name: str) -> Any:
        """Return the value of `Configurable.parameter` outside any scope, macros replaced; None if it is not bound."""
        binding = next((binding for binding in self.bindings.values() if lint.label(binding) == name), None)
        return None if binding is None else lint.resolve(binding.value, self.bindings)

    def refers_to(self, name: str) -> bool:
        """Return True if a value in effect refers to the configurable of this name."""
        references = (part for b in self.bindings.values() for part in parts(b.value) if isinstance(part, Reference))
        return any(registry.find(reference.name)[0].selector.endswith(f".{name}") for reference in references)

    def _modules_of_folders(self) -> Iterator[tuple[tuple[str, str, str], FolderModules]]:
        """Yield the keys of the bindings whose values are modules that a model folder names, each with its modules."""
        for binding in self.bindings.values():
            if lint.label(dataclasses.replace(binding, scope="")) in MODULE_PARAMETERS:
                named = lint.last(binding, self.bindings)
                if named.origin.source in self.saved_sources:
                    modules = lint.resolve(named.value, self.bindings)
                    yield binding.key, FolderModules(modules, named.origin)

    def text(self) -> str:
        """Return the configuration as self-contained gin text: imports, macros, then bindings, without includes."""
        imports = [f"import {module}" for module in self.modules]
        return _paragraphs(imports, *([line for line, _ in block] for block in self._blocks()))

    def show(self) -> str:
        """Return the gin text with the origin (FILE:LINE or flag) of every value beside it."""
        blocks = self._blocks()
        width = max((len(line.splitlines()[-1]) for block in blocks for line, _ in block), default=0)
        return _paragraphs(
            *(
                [line + " " * (width - len(line.splitlines()[-1])) + f"  # {binding.origin}" for line, binding in block]
                for block in blocks
            )
        )

    def _blocks(self) -> list[list[tuple[str, Binding]]]:
        """Return blocks of (gin text, binding): the macros, then one block per scope and configurable, all sorted."""
        ordered = sorted(self.bindings.values(), key=_position)
        groups = groupby(ordered, key=lambda binding: (binding.scope, binding.selector))
        return [[(render_binding(lint.label(b), b.value), b) for b in block] for _, block in groups]

    def _located(self, error: Exception) -> UserError:
        """Convert a constructor's exception to a UserError that names where the values are bound."""
        message = str(error).split("\n  In call to configurable ")[0]  # gin appends the chain of calls
        # gin keeps the selector and scope of a call in its wrapper's frame; the innermost call is the one that raised.
        calls = [frame.f_locals for frame, _ in traceback.walk_tb(error.__traceback__) if frame.f_code.co_name == "gin_wrapper"]
        selector, scopes = calls[-1]["selector"], tuple(filter(None, calls[-1]["scope_str"].split("/")))
        bound = lint.bound(self.bindings, selector, scopes)
        mentioned = [b for b in bound.values() if re.search(rf"\b{b.parameter}\b", message)] or list(bound.values())
        places = [f"{lint.label(b)} from {b.origin}{lint.macro_origins(b.value, self.bindings)}" for b in mentioned]
        name = registry.short_name(selector)
        message = message if message.startswith(name) else f"{name}: {message}"
        return UserError(f"{message} ({', '.join(places) or 'nothing is bound'})")


def _gin_value(value: Any) -> Any:
    """Replace the references and macros in a value by those of gin."""
    if isinstance(value, Reference):
        return gin.config.ConfigurableReference("/".join((*value.scopes, value.name)), value.evaluated)
    if isinstance(value, Macro):
        return gin.config.ParserDelegate().macro(value.name)
    if isinstance(value, tuple):
        return tuple(map(_gin_value, value))
    if isinstance(value, dict):
        return {_gin_value(key): _gin_value(item) for key, item in value.items()}
    return value


def _position(binding: Binding) -> tuple:
    """Return the sort key: macros by name, then configurables by name and scope, parameters in the signature's order."""
    if binding.is_macro:
        return "", "", 0, binding.parameter
    order = list(registry.parameters(binding.selector) or ())
    place = order.index(binding.parameter) if binding.parameter in order else len(order)
    return registry.short_name(binding.selector), binding.scope, place, binding.parameter


def _paragraphs(*blocks: Iterable[str]) -> str:
    """Join blocks of lines with an empty line between them."""
    return "\n\n".join(filter(None, ("\n".join(block) for block in blocks))) + "\n"
