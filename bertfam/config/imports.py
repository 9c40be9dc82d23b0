"""Importing the modules that a user names."""

import importlib
import importlib.util
import os
import pkgutil
import sys
import traceback

from bertfam.config.parse import Import
from bertfam.errors import UserError
from bertfam.suggest import did_you_mean


def import_module(statement: Import) -> None:
    """Imports `statement.module`, which may lie in the current folder. Raises UserError for whatever goes wrong."""
    name, origin = statement
    if (here := os.getcwd()) not in sys.path and "" not in sys.path:
        sys.path.append(here)  # an installed `bertfam` does not look there by itself, `python -m bertfam` does
    try:
        importlib.import_module(name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise UserError(f"{origin}: no module {error.name}{did_you_mean(error.name, _siblings(error.name))}") from error
        summary = next(iter(str(error).splitlines()), "")
        raise UserError(f"{origin}: {_place(error, name)}{type(error).__name__}: {summary}") from error


def _siblings(name: str) -> list[str]:
    """The modules in the package, or on the path, where `name` was looked for."""
    package = name.rpartition(".")[0]
    path = sys.modules[package].__path__ if package in sys.modules else None
    prefix = f"{package}." if package else ""
    return [prefix + module.name for module in pkgutil.iter_modules(path)]


def _place(error: Exception, name: str) -> str:
    """File and line of the fault: in the user's module if it passed there, else where it was raised."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: "
    frames = traceback.extract_tb(error.__traceback__)
    spec = importlib.util.find_spec(name)
    own = [frame for frame in frames if spec and frame.filename == spec.origin]
    frame = (own or list(frames))[-1]
    return f"{frame.filename}:{frame.lineno}: "
