"""The manifest of a checkpoint: size and digest of every file of its items, so that no change of a single bit passes for good.

It is written last, before the folder gets its name; in a bucket, where it has its name from the beginning, a folder without one
is unfinished. Orbax's own notes beside the items are not in it: it adds the time to them even later, and nothing reads them. A
bucket's objects are read back and hashed as files are, so that a checkpoint may be copied from anywhere to anywhere.

STEP/digests.json {"format": 1, "written": "2026-01-31T12:00:00+00:00",
                   "files": {"params/_METADATA": {"size": 1234, "sha256": "..."}, ...}}
"""

import hashlib
import json
import sys
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bertfam.errors import UserError
from bertfam.storage import buckets
from bertfam.storage.buckets import is_remote
from bertfam.storage.files import read_json, refusal, write_text

NAME = "digests.json"
_FORMAT = 1
_THREADS = 8  # hashing lets the interpreter go on
_TOLD = 2 << 30  # bytes, from which on the reading of them is told
MISSING = f"no {NAME}: it was never finished"


def write(folder: Path) -> None:
    """Write the manifest of a checkpoint's folder; raises UserError or OSError where it cannot be written."""
    sizes = {name: size for name, size in _sizes(folder).items() if "/" in name}
    found = _digests([folder / name for name in sizes])
    files = {name: {"size": size, "sha256": digest} for (name, size), digest in zip(sizes.items(), found, strict=True)}
    content = {"format": _FORMAT, "written": datetime.now(UTC).isoformat(timespec="seconds"), "files": files}
    write_text(folder / NAME, json.dumps(content, indent=1) + "\n")


def fault(folder: Path, *, contents: bool = False, items: Collection[str] = (), tell: bool = False) -> str | None:
    """Return the first fault of a checkpoint, or None.

    Args:
      folder: of one step.
      contents: reads every byte; otherwise only the files' sizes are compared.
      items: looks at these folders alone; by default at all.
      tell: writes a line to stderr before much is read.

    Returns:
      the first fault in words, such as "params/_METADATA is missing".
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
    sizes = _sizes(folder)
    for name, entry in chosen.items():
        if name not in sizes:
            return f"{name} is missing"
        if sizes[name] != entry["size"]:
            return f"{name} has {sizes[name]:,} bytes of {entry['size']:,}"
    if contents:
        total = sum(entry["size"] for entry in chosen.values())
        if tell and total >= _TOLD:
            print(f"verifying {folder}: {total / 2**30:,.1f} GiB", file=sys.stderr, flush=True)
        try:
            found = _digests([folder / name for name in chosen])
        except OSError as error:
            if not error.filename:
                return f"a file cannot be read ({refusal(error) or error})"
            return f"{Path(error.filename).relative_to(folder)} cannot be read ({error.strerror})"
        for (name, entry), digest in zip(chosen.items(), found, strict=True):
            if digest != entry["sha256"]:
                return f"{name} has other bytes than were written"
    return None


def written(folder: Path) -> str | None:
    """Return the time at which a checkpoint was completed, in ISO 8601; None where its manifest does not say."""
    try:
        return read_json(folder / NAME).get("written")
    except UserError:
        return None


def size(folder: Path) -> int:
    """Return the bytes of all files in a folder, which may be in deletion."""
    return sum(_sizes(folder).values())


def _sizes(folder: Path) -> dict[str, int]:
    """Return the bytes of all files in a folder by name, in order; of a bucket by one list."""
    if is_remote(folder):
        return buckets.sizes(folder)
    found = {}
    for path in sorted(folder.rglob("*")):
        with suppress(FileNotFoundError):
            if path.is_file():
                found[path.relative_to(folder).as_posix()] = path.stat().st_size
    return found


def _read(path: Path) -> dict[str, dict[str, Any]]:
    files = read_json(path).get("files")
    if not isinstance(files, dict) or not files or not all(_is_entry(entry) for entry in files.values()):
        raise UserError(f"{path} is damaged")
    return files


def _is_entry(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("size"), int) and isinstance(entry.get("sha256"), str)


def _digests(paths: list[Path]) -> list[str]:
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(_digest, paths))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, hashlib.sha256).hexdigest()
