"""Gin text to statements that know their file and line, by gin's own parser; and values back to gin text."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from gin import config_parser

from bertfam.config import paths
from bertfam.errors import UserError

LINE_LENGTH = 100


@dataclass(frozen=True)
class Reference:
    """`@scope/name()`, or `@scope/name` where it is not evaluated."""

    scopes: tuple[str, ...]
    name: str
    evaluated: bool


@dataclass(frozen=True)
class Macro:
    """`%NAME`."""

    name: str


class Origin(NamedTuple):
    """A line of a file, or (line None) a flag."""

    source: str
    line: int | None = None

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}"


class Override(NamedTuple):
    """A binding that is in no file; error lines name its origin, such as the flag that the user wrote."""

    text: str  # "NAME = value"
    origin: str


@dataclass(frozen=True)
class Binding:
    """`scope/selector.parameter = value`; a macro has selector "" and its name as parameter."""

    scope: str
    selector: str
    parameter: str
    value: Any
    origin: Origin

    @property
    def key(self) -> tuple[str, str, str]:
        return self.scope, self.selector, self.parameter

    @property
    def is_macro(self) -> bool:
        return not self.selector


class Import(NamedTuple):
    """`import module`."""

    module: str
    origin: Origin


class _Delegate(config_parser.ParserDelegate):
    def configurable_reference(self, scoped_configurable_name: str, evaluate: bool) -> Reference:
        *scopes, name = scoped_configurable_name.split("/")
        return Reference(tuple(scopes), name, evaluate)

    def macro(self, macro_name: str) -> Macro:
        return Macro(macro_name)


def parse_file(name: str, named_at: str, including: tuple[str, ...] = ()) -> Iterator[Binding | Import]:
    """The statements of a gin file in order, those of an included file in the place of the include.

    Raises UserError for a file that is missing, includes itself, or does not parse.
    """
    path, text = paths.read(name, named_at)
    if path in including:
        raise UserError(f"{named_at}: {' includes '.join([*including, path])}; take out one include")
    for statement in _statements(text, Origin(path)):
        if isinstance(statement, config_parser.IncludeStatement):
            origin = Origin(path, statement.location.line_num)
            yield from parse_file(statement.filename, str(origin), (*including, path))
        else:
            yield _own(statement, Origin(path, statement.location.line_num))


def parse_override(override: str | Override) -> Binding:
    """The binding of "NAME = value"; a bare string is what the flag --gin.NAME=value gave."""
    if isinstance(override, str):
        name, _, value = override.partition("=")
        override = Override(override, f"--gin.{name.strip()}={value.strip()}")
    origin = Origin(override.origin)
    statements = list(_statements(override.text, origin))
    if len(statements) != 1 or not isinstance(statements[0], config_parser.BindingStatement):
        raise UserError(f"{origin}: binds nothing; write NAME=value, with one name and one value")
    binding = _own(statements[0], origin)
    assert isinstance(binding, Binding)
    return binding


def _own(statement: Any, origin: Origin) -> Binding | Import:
    if isinstance(statement, config_parser.ImportStatement):
        return Import(statement.module, origin)
    scope, selector, parameter, value, _ = statement
    if not parameter:  # a macro
        scope, selector, parameter = "", "", f"{scope}/{selector}" if scope else selector
    return Binding(scope, selector, parameter, _frozen(value), origin)


def _frozen(value: Any) -> Any:
    """Convert lists to tuples: what goes into frozen dataclasses is immutable."""
    if isinstance(value, (list, tuple)):
        return tuple(map(_frozen, value))
    if isinstance(value, dict):
        return {key: _frozen(item) for key, item in value.items()}
    return value


def _statements(text: str, origin: Origin) -> Iterator[Any]:
    """gin's statements (bindings, imports, includes); its parse errors as UserErrors."""
    parser = None
    try:
        parser = config_parser.ConfigParser(io.StringIO(text), _Delegate())
        for statement in parser:
            if not isinstance(statement, config_parser.BlockDeclaration):  # its bindings follow
                yield statement
    except RecursionError:
        raise UserError(f"{origin}: brackets within brackets, too deep to be read; take some out") from None
    except (SyntaxError, tokenize.TokenError) as error:
        last_line = parser.current_token.start[0] if parser else 1
        _raise_syntax_error(error, origin, last_line)


def _raise_syntax_error(error: SyntaxError | tokenize.TokenError, origin: Origin, last_line: int) -> NoReturn:
    message, location = error.args  # SyntaxError: (file, line, ...); TokenError: (line, column)
    line = last_line if isinstance(error, tokenize.TokenError) else location[1]
    if bare := re.search(r"Failed to parse token '(.*)'", message):
        word = bare[1]
        quoted = f"'\"{word}\"'" if origin.source.startswith("--gin.") else f'"{word}"'
        fix = {"true": "True", "false": "False", "none": "None"}.get(word.lower())
        message = f"{word} is no value; write " + (fix or f"{quoted} for a string, %{word} for a macro, or @{word}()")
    elif "EOF in multi-line" in message:
        message = "a bracket or string that opens here is never closed"
    else:
        message = message.replace("Expected newline.", "only one value may follow the equals sign")
        message = message.replace("Unable to parse value", "no value that can be read stands behind the equals sign")
        message = "cannot be parsed: " + " ".join(message.split()).rstrip(".")
    where = origin if origin.line is None and origin.source.startswith("--") else Origin(origin.source, line)
    raise UserError(f"{where}: {message}") from error


def render(value: Any) -> str:
    """A value as gin text, on one line."""
    if isinstance(value, Reference):
        return f"@{'/'.join((*value.scopes, value.name))}{'()' if value.evaluated else ''}"
    if isinstance(value, Macro):
        return f"%{value.name}"
    if isinstance(value, tuple):
        return f"({', '.join(map(render, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{render(key)}: {render(item)}" for key, item in value.items()) + "}"
    return repr(value)


def render_binding(name: str, value: Any) -> str:
    """`name = value` as gin text, one item a line where it would be long."""
    line = f"{name} = {render(value)}"
    if len(line) <= LINE_LENGTH or not isinstance(value, (tuple, dict)):
        return line
    if isinstance(value, tuple):
        items, brackets = [render(item) for item in value], "()"
    else:
        items, brackets = [f"{render(key)}: {render(item)}" for key, item in value.items()], "{}"
    return "\n".join([f"{name} = {brackets[0]}", *(f"    {item}," for item in items), brackets[1]])


def parts(value: Any) -> Iterator[Reference | Macro]:
    """Every reference and macro within a value."""
    if isinstance(value, (Reference, Macro)):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from parts(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from parts(key)
            yield from parts(item)
