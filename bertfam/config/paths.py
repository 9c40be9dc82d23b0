"""Lookup of gin files: beside the file that includes them, then the named path, then the files shipped with bertfam.

What a shipped file includes is shipped too, so that no file of the current folder takes its place.
"""

import functools
import os
from collections.abc import Iterator
from pathlib import Path

from bertfam.errors import UserError, warn
from bertfam.storage.paths import broken_link, to_path
from bertfam.storage.untrusted import check_file, check_size
from bertfam.suggest import nearest, one_each

_PACKAGE = Path(__file__).resolve().parent.parent


def packaged_folder() -> Path:
    """Return the folder of gin files shipped with bertfam: inside the package if installed, else in the repository's root."""
    installed = _PACKAGE / "gin_configs"
    return installed if installed.is_dir() else _PACKAGE.parent / "gin_configs"


def shipped(name: str) -> str:
    """Return the path of the shipped file of this name, whatever the current folder has; the name itself if there is none."""
    path = packaged_folder() / name
    return str(path) if path.is_file() else name


def read(name: str, named_at: str, beside: str | None = None, *, is_saved: bool = False) -> tuple[str, str]:
    """Return the path of a gin file, as error messages show it, and its text.

    Args:
      name: path, or name of a shipped file.
      named_at: the flag, or the file and line, that names it.
      beside: path of the file that includes it; its folder is searched first.
      is_saved: True for the file of a model folder, which is a small regular file in it.

    Raises:
      UserError: if there is no such file or it cannot be read.
    """
    packaged = packaged_folder()
    beside_it = [to_path(beside).parent / name] if beside else []
    is_shipped = beside is not None and Path(os.path.realpath(beside)).is_relative_to(packaged)
    for path in (*beside_it, *([] if is_shipped else [to_path(name)]), packaged / name):
        if path.is_file():
            if is_saved:
                check_file(path)
            check_size(f"{named_at}: {shown(path)}", path.stat().st_size)
            if path == to_path(name) and (packaged / name).is_file():
                _report_shadow(named_at, name, packaged / name)
            try:
                return shown(path), path.read_text(encoding="utf-8-sig")  # Windows editors begin files with a byte order mark
            except OSError as error:
                raise UserError(f"{named_at}: {shown(path)} cannot be read ({error.strerror})") from error
            except UnicodeDecodeError as error:
                line = error.object.count(b"\n", 0, error.start) + 1
                raise UserError(f"{named_at}: {shown(path)}:{line} is not UTF-8; save the gin file as UTF-8 text") from error
        if path.is_dir():
            raise UserError(f"{named_at}: {name} is a folder; name a gin file in it")
        if path.exists():
            raise UserError(f"{named_at}: {name} is a pipe or device; save the gin file, and name that")
    if link := broken_link(name):
        raise UserError(f"{named_at}: {link}")
    near = nearest(name, _candidates(to_path(name).parent), count=3)
    hint = f"; did you mean {' or '.join(near)}?" if near else "; give a path, or a name as in gin_configs/"
    hint = one_each(name, _exists) or hint
    raise UserError(f"{named_at}: no gin file {name} here or among those shipped with bertfam{hint}")


def _exists(name: str) -> bool:
    return any(path.is_file() for path in (to_path(name), packaged_folder() / name))


@functools.cache
def _report_shadow(named_at: str, name: str, other: Path) -> None:
    """Warn once about a file of the current folder that is read in place of a shipped one of the same name."""
    if os.path.realpath(name) != os.path.realpath(other) and Path(name).read_bytes() != other.read_bytes():
        warn([f"{named_at}: {name} is the file in the current folder, not the one shipped with bertfam ({other})"])


def shown(path: Path) -> str:
    """Return the path relative to the current folder if the file is inside it, so that messages are short."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_absolute() and path.is_relative_to(here) else str(path)


def _candidates(folder: Path) -> Iterator[str]:
    packaged = packaged_folder()
    yield from (path.relative_to(packaged).as_posix() for path in packaged.rglob("*.gin"))
    yield from (str(path) for path in folder.glob("*.gin"))
