"""Import of modules that a user names."""

import importlib
import os
import pkgutil
import sys
import sysconfig
import traceback
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Self

from bertfam.config.parse import Import, Origin
from bertfam.config.paths import shown
from bertfam.errors import MissingFlag, UserError
from bertfam.suggest import did_you_mean, one_each

_INSTALL = "install it, or run the command in the folder that contains it"
LONGEST = 200  # characters of an import error that are quoted


# Parameters whose values are names of modules to import.
MODULE_PARAMETERS = ("SeqioTask.modules",)


class FolderModules(tuple[str, ...]):
    """Modules that a model folder names and the user does not; equal to the tuple of their names."""

    origin: Origin

    def __new__(cls, modules: Iterable[str], origin: Origin) -> Self:
        """Keep the place that names the modules."""
        self = super().__new__(cls, modules)
        self.origin = origin
        return self

    def __getnewargs__(self) -> tuple[tuple[str, ...], Origin]:
        """Return the arguments that copy and pickle pass to `__new__`."""
        return tuple(self), self.origin


def check_named(modules: Sequence[str]) -> None:
    """Raise UserError if reading text would import modules that only a model folder names: reading a folder runs no code."""
    if isinstance(modules, FolderModules) and any(module not in sys.modules for module in modules):
        raise UserError(
            f"{modules.origin}: the text needs the modules of SeqioTask.modules, and reading a folder runs no code: if you "
            "trust them, give --task=NAME and --module_import=MODULE again, or --cache_dir=DIR of a token cache of the text"
        )


def _is_module(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def _module_of_file(name: str) -> str | None:
    """Return the module for the name of a Python file that is in the search path; None if it is no such name."""
    stem, ending = os.path.splitext(os.path.normpath(name))
    module = stem.replace(os.sep, ".")
    if ending not in (".py", ".pyc") or not _is_module(module):
        return None
    paths = [os.path.join(folder, *module.split(".")) for folder in ("", *sys.path)]
    # A package may have a module of the name py.
    is_file = any(os.path.isfile(f"{path}.py") for path in paths) and not (_is_module(name) and any(map(os.path.isdir, paths)))
    return module if is_file else None


def import_module(statement: Import) -> None:
    """Import `statement.module`, also from the current folder; raise UserError for any failure."""
    name, origin = statement
    if (here := os.getcwd()) not in sys.path and "" not in sys.path:
        sys.path.append(here)  # `python -m bertfam` searches there already, an installed `bertfam` does not
    if module := _module_of_file(name):
        raise UserError(f"{origin}: {name} is the name of a file; write that of its module, {module}")
    if not _is_module(name):
        hint = one_each(name, _is_module) or "; write it as in a Python import, without a folder or .py"
        raise UserError(f"{origin}: {name} is not a module name{hint}")
    try:
        importlib.import_module(name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "__gin__":
            raise UserError(
                f"{origin}: {name} is of t5x's gin files; bertfam's classes need no import: remove the line"
            ) from error
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise UserError(
                f"{origin}: no module {error.name}{did_you_mean(error.name, _siblings(error.name), _INSTALL)}"
            ) from error
        summary = next(iter(str(error).splitlines()), "")
        raise UserError(f"{origin}: {_place(error)}: {type(error).__name__}: {summary[:LONGEST]}") from error


def check_imported(statements: Iterable[Import], given: Collection[str]) -> None:
    """Raise UserError for a module of a model folder that the user has not named: reading a folder runs no code.

    Args:
      statements: the imports of the folder's configuration.
      given: the modules that the user names; modules that are imported already are permitted too.
    """
    for module, origin in statements:
        if module not in given and module not in sys.modules:
            raise MissingFlag(
                f"{origin}: the model needs the module {module}, and reading a folder runs no code: if you trust the module, "
                f"give --module_import={module} (in Python, import it first)",
                f"--module_import={module}",
            )


def _siblings(name: str) -> list[str]:
    """Return the modules of the package, or of the path, in which `name` was searched."""
    package = name.rpartition(".")[0]
    path = getattr(sys.modules.get(package), "__path__", []) if package else None
    return [f"{package}.{module.name}".lstrip(".") for module in pkgutil.iter_modules(path)]


def _place(error: BaseException) -> str:
    """Return file and line of the error: the last frame in the user's own code if there is one, else the last frame."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{shown(Path(error.filename))}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)[1:]  # without import_module itself
    libraries = ("<frozen", *{sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
    frame = ([frame for frame in frames if not frame.filename.startswith(libraries)] or list(frames))[-1]
    return f"{shown(Path(frame.filename))}:{frame.lineno}"
