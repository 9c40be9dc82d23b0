"""The manifest of a checkpoint: size and digest of every file of its items, so that no change of a single bit passes for good.

It is written last, before the folder gets its name. Orbax's own notes beside the items are not in it: it adds the time to them
even later, and nothing reads them.

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
from bertfam.files import read_json, write_text

NAME = "digests.json"
_FORMAT = 1
_THREADS = 8  # hashing lets the interpreter go on
_TOLD = 2 << 30  # bytes, from which on the reading of them is told
MISSING = f"no {NAME}: it was never finished"


def write(folder: Path) -> None:
    """Writes the manifest of a checkpoint's folder; raises UserError or OSError where it cannot be written."""
    paths = sorted(path for path in folder.glob("*/**/*") if path.is_file())
    entries = [{"size": path.stat().st_size, "sha256": digest} for path, digest in zip(paths, _digests(paths), strict=True)]
    files = dict(zip([path.relative_to(folder).as_posix() for path in paths], entries, strict=True))
    content = {"format": _FORMAT, "written": datetime.now(UTC).isoformat(timespec="seconds"), "files": files}
    write_text(folder / NAME, json.dumps(content, indent=1) + "\n")


def fault(folder: Path, *, contents: bool = False, items: Collection[str] = (), tell: bool = False) -> str | None:
    """What is wrong with a checkpoint; None where nothing is.

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
    for name, entry in chosen.items():
        try:
            size = (folder / name).stat().st_size
        except OSError:
            return f"{name} is missing"
        if size != entry["size"]:
            return f"{name} has {size:,} bytes of {entry['size']:,}"
    if contents:
        total = sum(entry["size"] for entry in chosen.values())
        if tell and total >= _TOLD:
            print(f"verifying {folder}: {total / 2**30:,.1f} GiB", file=sys.stderr, flush=True)
        try:
            found = _digests([folder / name for name in chosen])
        except OSError as error:
            return f"{Path(error.filename).relative_to(folder)} cannot be read ({error.strerror})"
        for (name, entry), digest in zip(chosen.items(), found, strict=True):
            if digest != entry["sha256"]:
                return f"{name} has other bytes than were written"
    return None


def written(folder: Path) -> str | None:
    """When a checkpoint was complete, in ISO 8601; None where its manifest does not say."""
    try:
        return read_json(folder / NAME).get("written")
    except UserError:
        return None


def size(folder: Path) -> int:
    """Bytes of all files in a folder, which may be being deleted."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            total += path.stat().st_size if path.is_file() else 0
    return total


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
    with open(path, "rb") as file:
        return hashlib.file_digest(file, hashlib.sha256).hexdigest()
