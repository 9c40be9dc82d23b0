"""Input files, local or in a store: resolution of paths and globs, and fingerprints of file contents."""

import glob
import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertfam.errors import UserError, warn_once
from bertfam.storage.paths import broken_link, similar_path
from bertfam.storage.streams import StoredFile, find_stored, is_address
from bertfam.suggest import one_each

InputFile = Path | StoredFile

_BUFFER = 1 << 20
_DIGESTED = 1 << 30  # upper bound of the bytes that a fingerprint reads


def find_files(patterns: tuple[str, ...]) -> list[InputFile]:
    """Return the files that match paths, addresses and globs: patterns in the given order, sorted within a glob, each file once.

    Raises:
      UserError: If a pattern matches no file, names a folder, or cannot be searched.
    """
    files: dict[str, InputFile] = {}  # identity -> path as given
    for given in patterns:
        pattern = given.removeprefix("file://")
        matches = find_stored(pattern) if is_address(pattern) else _find_local(pattern)
        if not matches:
            if protocol := re.match(r"(gs|s3|https?):/?(?!/)", pattern):
                address = f"{protocol[1]}://{pattern[protocol.end() :]}"
                raise UserError(f"no such file: {pattern}; an address begins with {protocol[1]}://: write {address}")
            kind = "no file matches" if glob.has_magic(pattern) else "no such file:"
            hint = "" if is_address(pattern) else f" (in {os.getcwd()}){_bracket_hint(pattern)}"
            if similar := None if is_address(pattern) or glob.has_magic(pattern) else similar_path(pattern, is_folder=False):
                hint += f"; did you mean {similar}?"
            raise UserError(f"{kind} {pattern}{hint}{one_each(pattern, lambda part: bool(glob.glob(part, recursive=True)))}")
        for match in matches:
            files.setdefault(identity(match), match)
    found = list(files.values())
    _warn_of_copies(found)
    return found


def _warn_of_copies(files: Sequence[InputFile]) -> None:
    """Warn about a file beside a compressed one of the same name, as a program that unpacks it leaves them."""
    by_name: dict[str, InputFile] = {}
    for file in files:
        name = str(file).removesuffix(".gz").removesuffix(".zst")
        if (other := by_name.setdefault(name, file)) is not file:
            warn_once(f"{other} and {file} are both read: if one is a copy of the other, its text counts twice; name one of them")


def _bracket_hint(pattern: str) -> str:
    """Return the hint for a pattern below a folder that has brackets in its name; "" for others."""
    path = Path(os.path.expanduser(pattern))
    folder = next((parent for parent in path.parents if "[" in parent.name and parent.is_dir()), None)
    if folder is None:
        return ""
    escaped = os.path.join(glob.escape(str(folder)), *path.parts[len(folder.parts) :])
    return f": brackets are a pattern, and the folder {folder} has them in its name; write {escaped}"


def identity(path: InputFile) -> str:
    """Return the address of a stored file, or the path of a local one without symbolic links."""
    return path.address if isinstance(path, StoredFile) else os.path.realpath(path)


def size_of(path: InputFile) -> int:
    """Return the size in bytes; 0 if a store does not report it."""
    return path.size if isinstance(path, StoredFile) else path.stat().st_size


def _find_local(pattern: str) -> list[InputFile]:
    path = Path(os.path.expanduser(pattern))
    if os.path.isdir(path):
        raise UserError(f"{pattern} is a folder; name the files in it, for example {os.path.join(pattern, '*.txt')}")
    if os.path.exists(path):  # an existing name with glob characters is meant literally
        matches = [path]
    else:
        matches = [Path(name) for name in sorted(glob.glob(str(path), recursive=True)) if not os.path.isdir(name)]
    if link := next(filter(None, map(broken_link, matches)), None):
        raise UserError(link)
    if not matches and not glob.has_magic(pattern) and (reason := _unreadable(path)):
        raise UserError(f"{pattern} cannot be read: {reason}")
    if unfit := next((match for match in matches if os.path.exists(match) and not os.path.isfile(match)), None):
        raise UserError(f"{unfit} is a pipe or device, but text is read more than once; write it to a file first")
    return [*matches]


def _unreadable(path: Path) -> str | None:
    """Return the reason why a path cannot be read, or None if it is readable or just missing."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return error.strerror
    return None


def file_fingerprints(paths: Sequence[InputFile]) -> list[dict[str, Any]]:
    """Return the name without folder, the size in bytes and a SHA-256 of the bytes on disk of each file.

    If the files have more than 1 GiB together, each gets an equal share of it, so that fingerprints take about a second for any
    amount of text: files larger than their share are digested at evenly spaced blocks. Stored files have the version that their
    store reports in place of a digest, so that none of them is read.
    """
    try:
        local = [path for path in paths if isinstance(path, Path)]
        sizes = [path.stat().st_size for path in local]
        share = _DIGESTED // max(1, len(local)) if sum(sizes) > _DIGESTED else max(sizes, default=0)
        digests = {
            path: {"name": _as_text(path.name), "size": size, "sha256": _digest(path, size, share)}
            for path, size in zip(local, sizes, strict=True)
        }
    except OSError as error:
        raise UserError(f"{error.filename} cannot be read: {error.strerror}") from error
    return [
        digests[path] if isinstance(path, Path) else {"name": path.name, "size": path.size, "version": path.version}
        for path in paths
    ]


def _as_text(name: str) -> str:
    """Return a name with the bytes that are not UTF-8 as escapes, which JSON can hold."""
    return os.fsencode(name).decode(errors="backslashreplace")


def _digest(path: Path, size: int, share: int) -> str:
    """Return the SHA-256 of a file, or of about `share` bytes of a larger one: its beginning, its end, and blocks between."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        if size <= share:
            while block := file.read(_BUFFER):
                digest.update(block)
        else:
            count = max(2, share // _BUFFER)
            length = min(_BUFFER, share // count)
            for i in range(count):
                file.seek((size - length) * i // (count - 1))
                digest.update(file.read(length))
    return digest.hexdigest()
