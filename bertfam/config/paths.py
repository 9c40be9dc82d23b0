"""Lookup of gin files: beside the file that includes them, then the named path, then the files shipped with bertfam."""

from collections.abc import Iterator
from pathlib import Path

from bertfam.errors import UserError
from bertfam.storage.paths import to_path
from bertfam.suggest import nearest

_PACKAGE = Path(__file__).resolve().parent.parent


def packaged_folder() -> Path:
    """Return the folder of gin files shipped with bertfam: inside the package if installed, else in the repository's root."""
    installed = _PACKAGE / "gin_configs"
    return installed if installed.is_dir() else _PACKAGE.parent / "gin_configs"


def read(name: str, named_at: str, beside: str | None = None) -> tuple[str, str]:
    """Return the path of a gin file, as error messages show it, and its text.

    Args:
      name: path, or name of a shipped file.
      named_at: the flag, or the file and line, that names it.
      beside: path of the file that includes it; its folder is searched first.

    Raises:
      UserError: if there is no such file or it cannot be read.
    """
    folders = [to_path(beside).parent] if beside else []
    for path in (*(folder / name for folder in folders), to_path(name), packaged_folder() / name):
        if path.is_file():
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
    near = nearest(name, _candidates(to_path(name).parent), count=3)
    hint = f"did you mean {' or '.join(near)}?" if near else "give a path, or a name as in gin_configs/"
    raise UserError(f"{named_at}: no gin file {name} here or among those shipped with bertfam; {hint}")


def shown(path: Path) -> str:
    """Return the path relative to the current folder if the file is inside it, so that messages are short."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_absolute() and path.is_relative_to(here) else str(path)


def _candidates(folder: Path) -> Iterator[str]:
    packaged = packaged_folder()
    yield from (path.relative_to(packaged).as_posix() for path in packaged.rglob("*.gin"))
    yield from (str(path) for path in folder.glob("*.gin"))
