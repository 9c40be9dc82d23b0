"""Modules that are imported when a test uses them, and not when tests are collected."""

import importlib
import importlib.util
from types import ModuleType
from typing import Any

import pytest


class LateModule(ModuleType):
    """Stand-in for a module of this name."""

    def __getattr__(self, name: str) -> Any:
        """Import the module; pytest looks for names with underscores in everything that it collects."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(importlib.import_module(self.__name__), name)


def late_import(name):
    """Return a module that is imported when its first attribute is read; without its package skip the tests of the file.

    TensorFlow takes five seconds in each process that only collects the tests.
    """
    package = name.partition(".")[0]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"no module {package}", allow_module_level=True)
    return LateModule(name)
