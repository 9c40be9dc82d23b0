"""Parser of gin text into statements with file and line, and rendering of values as gin text."""

from __future__ import annotations

import functools
import io
import os
import re
import tokenize
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from gin import config_parser
from typing_extensions import override

from bertfam.config import paths, registry
from bertfam.errors import UserError, warn_once
from bertfam.suggest import nearest, without_commas

LINE_LENGTH = 100
_UNITS = "kmb"
_LONGEST_WORD = 200  # that a message repeats
_YAML = re.compile(r"\s*([\w./]+)\s*:=?\s*(\S.*?)\s*")  # a line of a YAML file
_ABBREVIATED = re.compile(rf"[^=#]+=\s*(\d+(?:\.\d+)?)([{_UNITS}])\s*(?:#.*)?", re.IGNORECASE)  # NAME = 8k
_ODD_SPACE = re.compile("[\u00a0\u2000-\u200d\u202f\u2060\u3000\ufeff]")  # as text copied from web pages has
_WEB_PAGE = re.compile(r"\s*<(!doctype|html|head|body)\b", re.IGNORECASE)
_STRING_OR_COMMENT = re.compile(r"""("[^"]*"?|'[^']*'?|#.*)""")
_INCLUDE = re.compile(r"""\s*include\b\s*\(?\s*["'“”‘’]?([^"'“”‘’()\s]+)""")  # not as gin writes it
_WITH_ARGUMENTS = re.compile(r"@([\w./]+)\(\s*(\w+)\s*=\s*([^,)]+)")  # @NAME(parameter=value)
_COMPUTED = re.compile(r"[\w)]\s*(\*\*?|/|\+|-)\s*[\w%(]")  # an expression in place of a value
_OTHER_FORMATS = {".json": "JSON", ".py": "Python", ".toml": "TOML", ".yaml": "YAML", ".yml": "YAML"}
_FORMATTED = re.compile(r"""(f|rf|fr)["']""", re.IGNORECASE)
_WITH_COMMAS = re.compile(r"[^=#]+=\s*(-?\d+(?:,\d+)+\S*)\s*(?:#.*)?")  # NAME = 0,001


@dataclass(frozen=True)
class Reference:
    """Reference `@scope/name()`, or `@scope/name` if it is not evaluated."""

    scopes: tuple[str, ...]
    name: str
    evaluated: bool


@dataclass(frozen=True)
class Macro:
    """Macro `%NAME`."""

    name: str


class Origin(NamedTuple):
    """Origin of a statement: a line of a file, or a flag (line None)."""

    source: str
    line: int | None = None

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}"


class Override(NamedTuple):
    """Binding that comes from no file; error messages name its origin, such as a flag."""

    text: str  # "NAME = value"
    origin: str


@dataclass(frozen=True)
class Binding:
    """Binding `scope/selector.parameter = value`; a macro has selector "" and its name as parameter."""

    scope: str
    selector: str
    parameter: str
    value: Any
    origin: Origin

    @property
    def key(self) -> tuple[str, str, str]:
        """Scope, selector and parameter."""
        return self.scope, self.selector, self.parameter

    @property
    def is_macro(self) -> bool:
        """True if the binding defines a macro."""
        return not self.selector


class Import(NamedTuple):
    """Statement `import module`."""

    module: str
    origin: Origin


class _Delegate(config_parser.ParserDelegate):
    @override
    def configurable_reference(self, scoped_configurable_name: str, evaluate: bool) -> Reference:
        *scopes, name = scoped_configurable_name.split("/")
        return Reference(tuple(scopes), name, evaluate)

    @override
    def macro(self, macro_name: str) -> Macro:
        return Macro(macro_name)


def parse_file(
    name: str, named_at: str, including: tuple[str, ...] = (), *, is_saved: bool = False
) -> Iterator[Binding | Import]:
    """Yield the statements of a gin file in order; those of an included file replace the include.

    Args:
      name: the file.
      named_at: the flag, or the file and line, that names it.
      including: the files that include it, outermost first.
      is_saved: True for the file of a model folder, which is complete, and could otherwise lead out of the folder.

    Raises:
      UserError: if a file is missing, includes itself, or does not parse, or a saved one includes another.
    """
    path, text = paths.read(name, named_at, including[-1] if including else None, is_saved=is_saved)
    if os.path.realpath(path) in map(os.path.realpath, including):  # a link to its own folder gives a file ever new paths
        raise UserError(f"{named_at}: {' includes '.join([*including, path])}; remove one include")
    own: list[Binding] = []
    for statement in _statements(text, Origin(path)):
        if isinstance(statement, config_parser.IncludeStatement):
            origin = Origin(path, statement.location.line_num)
            if is_saved:
                raise _saved_include(origin)
            included = list(parse_file(statement.filename, str(origin), (*including, path)))
            _report_overridden(own, included, statement.location.line_num)
            yield from included
            continue
        converted = _converted(statement, Origin(path, statement.location.line_num))
        if isinstance(converted, Binding):
            own.append(converted)
        yield converted


def _report_overridden(own: Sequence[Binding], included: Sequence[Binding | Import], line: int) -> None:
    """Warn about bindings of a file that a file which it includes after them overrides."""
    last = {statement.key: statement for statement in included if isinstance(statement, Binding)}
    for binding in own:
        if (other := last.get(binding.key)) and other.value != binding.value:
            name = binding.parameter if binding.is_macro else f"{binding.selector}.{binding.parameter}"
            warn_once(
                f"{binding.origin}: {name} = {render(binding.value)} has no effect: {other.origin}, which line {line} includes "
                f"after it, binds {render(other.value)}; move the include above it"
            )


def parse_text(text: str, path: str) -> Iterator[Binding | Import]:
    """Yield the statements of gin text without includes; messages call it `path`."""
    for statement in _statements(text, Origin(path)):
        if isinstance(statement, config_parser.IncludeStatement):
            raise _saved_include(Origin(path, statement.location.line_num))
        yield _converted(statement, Origin(path, statement.location.line_num))


def _saved_include(origin: Origin) -> UserError:
    return UserError(f"{origin}: a saved configuration includes no file; remove the line")


def parse_override(binding: str | Override) -> Binding:
    """Parse "NAME = value"; a bare string comes from the flag --gin.NAME=value."""
    if isinstance(binding, str):
        name, _, value = binding.partition("=")
        binding = Override(binding, f"--gin.{name.strip()}={value.strip()}")
    origin = Origin(binding.origin)
    statements = list(_statements(binding.text, origin))
    if len(statements) != 1 or not isinstance(statements[0], config_parser.BindingStatement):
        raise UserError(f"{origin}: is not a binding; write NAME=value, with one name and one value")
    statement = _converted(statements[0], origin)
    assert isinstance(statement, Binding)
    return statement


def _converted(statement: Any, origin: Origin) -> Binding | Import:
    if isinstance(statement, config_parser.ImportStatement):
        return Import(statement.module, origin)
    scope, selector, parameter, value, _ = statement
    if not parameter:  # a macro
        scope, selector, parameter = "", "", f"{scope}/{selector}" if scope else selector
    return Binding(scope, selector, parameter, _frozen(value), origin)


def _frozen(value: Any) -> Any:
    """Convert lists to tuples, since the fields of frozen dataclasses are immutable."""
    if isinstance(value, (list, tuple)):
        return tuple(map(_frozen, value))
    if isinstance(value, dict):
        return {key: _frozen(item) for key, item in value.items()}
    return value


def _statements(text: str, origin: Origin) -> Iterator[Any]:
    """Yield gin's statements (bindings, imports, includes); convert its parse errors to UserErrors."""
    statements, error, last_line = _parsed(text)
    yield from statements
    if isinstance(error, RecursionError):
        raise UserError(f"{origin}: brackets within brackets are nested too deeply; remove some") from None
    if error is not None:
        _raise_syntax_error(error, origin, last_line, text.splitlines())


# A command reads most files several times: to check, to build and to compare a configuration.
@functools.lru_cache(maxsize=128)
def _parsed(text: str) -> tuple[list[Any], RecursionError | SyntaxError | tokenize.TokenError | None, int]:
    """Return gin's statements, the error that ends them, if any, and the line of the last token before it."""
    statements, parser = [], None
    try:
        parser = config_parser.ConfigParser(io.StringIO(text), _Delegate())
        for statement in parser:
            if not isinstance(statement, config_parser.BlockDeclaration):  # its bindings follow
                statements.append(statement)
    except (RecursionError, SyntaxError, tokenize.TokenError) as error:
        return statements, error.with_traceback(None), parser.current_token.start[0] if parser else 1
    return statements, None, 1


def _raise_syntax_error(
    error: SyntaxError | tokenize.TokenError, origin: Origin, last_line: int, lines: Sequence[str]
) -> NoReturn:
    message, location = error.args  # SyntaxError: (file, line, ...); TokenError: (line, column)
    line = last_line if isinstance(error, tokenize.TokenError) else location[1]
    where = origin if origin.line is None and origin.source.startswith("--") else Origin(origin.source, line)
    text = lines[line - 1] if line <= len(lines) else ""
    raise UserError(f"{where}: {_explained(message, origin.source, text, lines)}") from error


def _explained(message: str, source: str, line: str, lines: Sequence[str]) -> str:
    """Explain gin's message about a line of a source, which begins with `lines`."""
    bare = re.search(r"Failed to parse token '(.*)'", message)
    kind = _OTHER_FORMATS.get(os.path.splitext(source)[1].lower())
    if kind and not source.startswith("--"):
        return f"this is a {kind} file, not a gin file, whose lines are like TRAIN_STEPS = 1000 (bertfam configs lists some)"
    if _WEB_PAGE.match("\n".join(lines[:9])):
        return "this is a web page, not a gin file; download the file itself (on GitHub, by Raw)"
    if not bare and (odd := _ODD_SPACE.search(_STRING_OR_COMMENT.sub(lambda match: "_" * len(match[0]), line))):
        code = f"{unicodedata.name(odd[0])} (U+{ord(odd[0]):04X})"
        return f"cannot be parsed: column {odd.start() + 1} has {code}; write a plain space or nothing"
    if "\\" not in line and (included := _INCLUDE.match(line)):
        return f'a file is included by its name in quotes: write include "{included[1]}"'
    if bare:
        # gin ends a word at a dot of a file's name, and at other signs.
        value = line.partition("=")[2].strip()
        return _explained_word(value if re.fullmatch(rf"{re.escape(bare[1])}[./-][\w./-]+", value) else bare[1], source)
    if number := _ABBREVIATED.fullmatch(line):
        digits, unit = number.groups()
        return f"{digits}{unit} is not a number; write {' or '.join(_written_out(digits, unit))}"
    if (match := _WITH_COMMAS.fullmatch(line)) and (meant := without_commas(match[1])):
        pair = f"({match[1].replace(',', ', ')})"
        # A pair of numbers is written without leading zeros.
        several = f", or {pair} for several values" if re.fullmatch(r"[(]-?\d+(, (0|[1-9]\d*))+[)]", pair) else ""
        return f"{match[1]} is not a number; write {' or '.join(meant)}{several}"
    if yaml := _YAML.fullmatch(line):
        return f"cannot be parsed: a value follows an equals sign; write {yaml[1]} = {yaml[2]}"
    if reference := _WITH_ARGUMENTS.search(line):
        name, parameter, value = reference.groups()
        return f"a reference has no arguments; write @{name}(), and bind {name}.{parameter} = {value.strip()} by itself"
    if _FORMATTED.match(value := line.partition("=")[2].strip()):  # from Python 3.12 on these are several tokens
        return f"{value} is not a value; write a text in plain quotes, without a letter before them"
    if "EOF in multi-line" in message:
        return "a bracket or string opened here is never closed"
    message = message.replace("Expected newline.", _fix_of_rest(line) or "only one value may follow the equals sign")
    message = message.replace("Unable to parse value", "the text after the equals sign is not a value")
    return "cannot be parsed: " + " ".join(message.split()).rstrip(".")


def _explained_word(word: str, source: str) -> str:
    """Explain a word that is no value of gin."""
    if len(word) > _LONGEST_WORD:
        rule = "a number has at most 4,300 digits" if word.isdigit() else "write a text in quotation marks"
        return f"{word[:20]}..., a word of {len(word):,} characters, is not a value; {rule}"
    if "\\" in word:
        return f"{word} is not a value; write / in place of each backslash, or two backslashes"
    quoted = f"'\"{word}\"'" if source.startswith("--gin.") else f'"{word}"'
    if re.fullmatch(r"[\w./-]+[./-][\w./-]+", word):
        return f"{word} is not a value; write {quoted} for a text"
    if not re.fullmatch(r"\w+", word):
        return f"{word} is not a value; write a text in plain quotes, without a letter before them"
    if os.path.isfile(paths.packaged_folder() / "models" / f"{word}.gin"):  # not Path.is_file, which fails for long words
        return f"{word} is not a value; a model is chosen by its file, --gin_file=models/{word}.gin"
    fix = {"true": "True", "false": "False", "none": "None"}.get(word.lower())
    name = (nearest(word, registry.names()) or [word])[0]
    return f"{word} is not a value; write " + (fix or f"{quoted} for a string, %{word} for a macro, or @{name}()")


def _fix_of_rest(line: str) -> str:
    """Return how to write a line whose value is followed by something else; "" if that is not known."""
    value = _STRING_OR_COMMENT.sub("_", line.partition("=")[2]).strip()
    if share := re.fullmatch(r"(\d+(?:\.\d+)?)%", value):
        return f"{value} is not a number; write {float(share[1]) / 100:g}"
    if value.endswith(";"):
        return "no semicolon ends a line; remove it"
    if re.search(r"\s//", value):
        return "a comment begins with #, not //"
    if number := re.fullmatch(r"([\d.]+)-e(\d+)", value):
        return f"write {number[1]}e-{number[2]}"
    return "gin computes nothing; write the number itself" if _COMPUTED.search(value) else ""


def _written_out(digits: str, unit: str) -> list[str]:
    """Return the numbers that an abbreviated one such as 8k may mean, as gin text: by powers of two, and of ten."""
    power = _UNITS.index(unit.lower()) + 1
    return [f"{int(float(digits) * base**power):_}" for base in ((1024, 1000) if power < 3 else (1000,))]


def render(value: Any) -> str:
    """Render a value as gin text on one line."""
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
    """Render `name = value` as gin text, with one item per line if it is long."""
    line = f"{name} = {render(value)}"
    if len(line) <= LINE_LENGTH or not isinstance(value, (tuple, dict)):
        return line
    if isinstance(value, tuple):
        items, brackets = [render(item) for item in value], "()"
    else:
        items, brackets = [f"{render(key)}: {render(item)}" for key, item in value.items()], "{}"
    return "\n".join([f"{name} = {brackets[0]}", *(f"    {item}," for item in items), brackets[1]])


def parts(value: Any) -> Iterator[Reference | Macro]:
    """Yield every reference and macro within a value."""
    if isinstance(value, (Reference, Macro)):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from parts(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from parts(key)
            yield from parts(item)
