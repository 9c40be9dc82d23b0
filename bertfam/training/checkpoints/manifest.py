"""Manifest of a checkpoint: size and SHA-256 digest of every file of its items, by which any changed bit is found.

The manifest is written last, before the folder is renamed to its final name. Folders in a bucket have their final name from the
start, and one without a manifest is unfinished. Orbax's own metadata beside the items is left out, because Orbax still changes
it after the save and nothing reads it. Objects in a bucket are read back and hashed like files, so that a checkpoint may be
copied between disks and buckets.

STEP/digests.json {"format": 1, "written": "2026-01-31T12:00:00+00:00",
                   "files": {"params/_METADATA": {"size": 1234, "sha256": "..."}, ...}}
"""

import hashlib
import json
import os
import sys
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

from bertfam.errors import UserError
from bertfam.plurals import plural
from bertfam.storage import buckets
from bertfam.storage.buckets import is_remote
from bertfam.storage.faults import reason
from bertfam.storage.files import write_text
from bertfam.storage.untrusted import read_json

NAME = "digests.json"
_FORMAT = 1
_THREADS = 8  # hashing releases the interpreter lock
_REPORTED_BYTES = 2 << 30  # from this size on, a verification is reported
MISSING = f"no {NAME}: it was never finished"


def write(folder: Path) -> None:
    """Write the manifest of a checkpoint's folder; raise UserError or OSError if it cannot be written."""
    sizes = {name: size for name, size in _sizes(folder).items() if "/" in name}
    digests = _digests([folder / name for name in sizes])
    files = {name: {"size": size, "sha256": digest} for (name, size), digest in zip(sizes.items(), digests, strict=True)}
    content = {"format": _FORMAT, "written": datetime.now(UTC).isoformat(timespec="seconds"), "files": files}
    write_text(folder / NAME, json.dumps(content, indent=1) + "\n")


def fault(folder: Path, *, contents: bool = False, items: Collection[str] = (), report: bool = False) -> str | None:
    """Return the first fault of a checkpoint, or None.

    Args:
      folder: folder of one step.
      contents: whether to read every byte; otherwise only the sizes of the files are compared.
      items: names of the items to check; by default all.
      report: whether to print a line to stderr before a long verification.

    Returns:
      A description of the fault, such as "params/_METADATA is missing".
    """
    if not folder.is_dir():
        return "it is no folder"
    if not (folder / NAME).exists():
        return MISSING
    try:
        files = _read(folder / NAME)
    except UserError:
        return f"{NAME} is damaged"
    chosen = {name: entry for name, entry in files.items() if not items or name.partition("/")[0] in items}
    if "params" in items and not any(name.startswith("params/") for name in chosen):
        return "params is missing"
    if not is_remote(folder) and (stray := _stray(folder, items)):
        return stray
    sizes = _sizes(folder)
    for name, entry in chosen.items():
        if name not in sizes:
            return f"{name} is missing"
        if sizes[name] != entry["size"]:
            return f"{name} has {plural(sizes[name], 'byte')} of {entry['size']:,}"
    if contents:
        total = sum(entry["size"] for entry in chosen.values())
        if report and total >= _REPORTED_BYTES:
            print(f"verifying {folder}: {total / 2**30:,.1f} GiB", file=sys.stderr, flush=True)
        try:
            digests = _digests([folder / name for name in chosen])
        except OSError as error:
            if not error.filename:
                return f"a file cannot be read ({reason(error) or error})"
            return f"{Path(error.filename).relative_to(folder)} cannot be read ({error.strerror})"
        for (name, entry), digest in zip(chosen.items(), digests, strict=True):
            if digest != entry["sha256"]:
                return f"{name} has other bytes than were written"
    return None


def names(folder: Path, items: Collection[str]) -> list[str]:
    """Return the files of some items of a checkpoint, by their names within its folder; raise UserError if that is damaged."""
    return [name for name in _read(folder / NAME) if name.partition("/")[0] in items]


def written(folder: Path) -> str | None:
    """Return the time at which a checkpoint was completed, in ISO 8601; None if it has no readable manifest."""
    try:
        return datetime.fromisoformat(read_json(folder / NAME)["written"]).isoformat(timespec="seconds")
    except (UserError, KeyError, TypeError, ValueError):
        return None


def size(folder: Path) -> int:
    """Return the bytes of all files in a folder, which may be deleted meanwhile."""
    return sum(_sizes(folder).values())


def _sizes(folder: Path) -> dict[str, int]:
    """Return the bytes of all files in a folder, by name in sorted order; one request lists a folder in a bucket."""
    if is_remote(folder):
        return buckets.sizes(folder)
    found = {}
    for path in sorted(folder.rglob("*")):
        with suppress(FileNotFoundError):
            if path.is_file():
                found[path.relative_to(folder).as_posix()] = path.stat().st_size
    return found


def _stray(folder: Path, items: Collection[str]) -> str | None:
    """Return the fault of a file of some items that is outside of a local folder, or no regular file; None if there is none.

    Orbax reads files that the manifest does not list, and would follow a link, and wait for the writer of a pipe.
    """
    root = os.path.realpath(folder)
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        item, _, inner = name.partition("/")
        if items and item not in items and (inner or path.is_dir()):
            continue
        if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(root):
            return f"{name} is a link out of its folder"
        if os.path.lexists(path) and not (path.is_file() or path.is_dir()):
            return f"{name} is not a regular file"
    return None


def _read(path: Path) -> dict[str, dict[str, Any]]:
    files = read_json(path).get("files")
    if not isinstance(files, dict) or not files or not all(_is_entry(*item) for item in files.items()):
        raise UserError(f"{path} is damaged")
    return files


def _is_entry(name: str, entry: Any) -> bool:
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        return False
    return isinstance(entry, dict) and type(entry.get("size")) is int and isinstance(entry.get("sha256"), str)


def _digests(paths: list[Path]) -> list[str]:
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(_digest, paths))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, hashlib.sha256).hexdigest()
