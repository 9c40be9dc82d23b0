"""New folders that are complete or absent."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bertfam.errors import UserError


def check_unused(folder: str | Path) -> None:
    """Raises UserError unless the folder can be made: it does not exist, or is empty."""
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists already: name another folder, or remove it first")


@contextmanager
def new_folder(folder: str | Path) -> Iterator[Path]:
    """Gives a folder beside it to write into, which takes its place when all went well and vanishes otherwise."""
    folder = Path(folder).absolute()
    check_unused(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        yield partial
        os.chmod(partial, 0o777 & ~_umask())  # mkdtemp's are private
        os.replace(partial, folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
