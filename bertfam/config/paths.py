"""Where gin files are found: as named, then among those that come with bertfam."""

from collections.abc import Iterator
from pathlib import Path

from bertfam.errors import UserError
from bertfam.storage.paths import to_path
from bertfam.suggest import nearest

_PACKAGE = Path(__file__).resolve().parent.parent


def packaged_folder() -> Path:
    """The gin files shipped with bertfam: beside its modules when installed, else at the root of the repository."""
    installed = _PACKAGE / "gin_configs"
    return installed if installed.is_dir() else _PACKAGE.parent / "gin_configs"


def read(name: str, named_at: str) -> tuple[str, str]:
    """The path of a gin file, as error lines show it, and its text.

    `named_at` is the flag or the file and line that names it. Raises UserError when there is no such file.
    """
    for path in (to_path(name), packaged_folder() / name):
        if path.is_file():
            try:
                return shown(path), path.read_text(encoding="utf-8")
            except OSError as error:
                raise UserError(f"{named_at}: {shown(path)} cannot be read ({error.strerror})") from error
            except UnicodeDecodeError as error:
                line = error.object.count(b"\n", 0, error.start) + 1
                raise UserError(
                    f"{named_at}: {shown(path)}:{line} is not UTF-8; a gin file is text, which is saved as UTF-8"
                ) from error
        if path.is_dir():
            raise UserError(f"{named_at}: {name} is a folder; name a gin file in it")
    near = nearest(name, _candidates(to_path(name).parent), count=3)
    hint = f"did you mean {' or '.join(near)}?" if near else "write a path, or a name as in gin_configs/"
    raise UserError(f"{named_at}: no gin file {name} here or among those of bertfam; {hint}")


def shown(path: Path) -> str:
    """Relative to the current folder where the file lies in it, so that the line is short and can be opened."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_absolute() and path.is_relative_to(here) else str(path)


def _candidates(folder: Path) -> Iterator[str]:
    packaged = packaged_folder()
    yield from (path.relative_to(packaged).as_posix() for path in packaged.rglob("*.gin"))
    yield from (str(path) for path in folder.glob("*.gin"))
