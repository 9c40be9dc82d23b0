"""Check that all processes run the same code: the same library versions and the same modules, file for file."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import bertfam
from bertfam.config.paths import packaged_folder
from bertfam.errors import UserError
from bertfam.plurals import listed

if TYPE_CHECKING:
    from bertfam.multihost.processes import Processes

_LIBRARIES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


def check_code(processes: Processes) -> None:
    """Raise UserError on process 0 (SystemExit on the others) unless all have the same bertfam, gin files and libraries."""
    with processes.on_all("the code"):
        files = _files("bertfam", Path(bertfam.__file__).parent, "*.py") | _files("gin_configs", packaged_folder(), "*.gin")
        _check_same(processes, {name: metadata.version(name) for name in _LIBRARIES} | _digests(files))


def check_modules(processes: Processes, names: Iterable[str]) -> None:
    """Check modules that the user imported in the same way; all files of a package are compared."""
    with processes.on_all("the code"):
        files: dict[str, Path] = {}
        for name in names:
            path = Path(getattr(sys.modules[name], "__file__", None) or "")
            if path.name == "__init__.py":
                files |= _files(name, path.parent, "*.py")
            elif path.is_file():
                files[path.name] = path
        _check_same(processes, _digests(files))


def _files(name: str, folder: Path, pattern: str) -> dict[str, Path]:
    return {f"{name}/{path.relative_to(folder)}": path for path in folder.rglob(pattern)}


def _digests(files: dict[str, Path]) -> dict[str, str]:
    return {name: hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest() for name, path in files.items()}


def _check_same(processes: Processes, mine: dict[str, str]) -> None:
    """Compare one digest over all files first, and single files only if it differs."""
    whole = hashlib.blake2b(repr(sorted(mine.items())).encode()).hexdigest()
    if len(set(processes.gather("the code", whole))) == 1:
        return
    first, *others = processes.gather("the code", mine)
    if not processes.first:
        return
    for other, theirs in enumerate(others, 1):
        if different := sorted(name for name in first.keys() | theirs.keys() if first.get(name) != theirs.get(name)):
            names = _describe(different, theirs, first)
            raise UserError(f"{processes.place(other)} has different code from process 0: {names}; install the same everywhere")


def _describe(different: list[str], theirs: dict[str, str], mine: dict[str, str]) -> str:
    """Describe the difference: a library with both versions, or at most three of the files that differ."""
    if library := next((name for name in different if name in _LIBRARIES), None):
        return f"{library} {theirs[library]}, {mine[library]} on process 0"
    return f"{listed(different, 3)} {'differs' if len(different) == 1 else 'differ'}"
