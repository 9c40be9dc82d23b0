"""Local copies of folders in buckets.

fsspec's file caches (`fsspec.implementations.cached`, read in version 2026.9.0) are not used: `filecache` and `simplecache` keep
single files under hashed names, do not compare the downloaded bytes with the store's checksums, and do not make concurrent
processes share one download. A token cache or an export is used as a folder, complete or absent.
"""

import base64
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertfam.errors import UserError
from bertfam.storage import buckets, locks
from bertfam.storage.files import new_folder

Infos = Mapping[str, Mapping[str, Any]]  # the store's metadata of objects, by their names within a folder


def mirror(folder: Path, root: Path, infos: Infos | None = None) -> Path:
    """Return a local copy of a folder, downloaded once for each version and verified against the store's own checksums.

    All processes of a machine share the copy: the first one downloads it, the others wait.

    Args:
      folder: A folder in a bucket.
      root: The local folder that holds the copies of all folders.
      infos: The objects to copy, from `buckets.object_infos`; None: all.

    Raises:
      UserError: If the folder cannot be read, other bytes arrive than the store has, or the disk is full.
    """
    infos = buckets.object_infos(folder) if infos is None else infos
    target = copies(root) / version(folder, infos)
    if target.is_dir():
        return target
    with locks.hold_beside(target, seconds=None, fix="set BERTFAM_CACHE to another folder"):
        if not target.is_dir():
            with new_folder(target, first_wins=True) as partial:
                buckets.fetch(folder, infos, partial)
                for name, info in infos.items():
                    _check_bytes(f"{str(folder).rstrip('/')}/{name}", partial / name, info)
    return target


def copies(root: Path) -> Path:
    """Return the folder of all that is kept of buckets."""
    return root / "buckets"


def version(folder: Path, infos: Infos) -> str:
    """Return a name for objects of a folder, which changes with their content."""
    states = [[name, info["size"], info.get("crc32c"), info.get("etag")] for name, info in infos.items()]
    return hashlib.sha256(json.dumps([str(folder), states]).encode()).hexdigest()[:16]


def _check_bytes(address: str, path: Path, info: Mapping[str, Any]) -> None:
    import google_crc32c

    checksum = google_crc32c.Checksum()
    with open(path, "rb") as file:
        while piece := file.read(1 << 22):
            checksum.update(piece)
    stated = info.get("crc32c")
    if path.stat().st_size != info["size"] or (stated and base64.b64encode(checksum.digest()).decode() != stated):
        raise UserError(f"{address} was downloaded with other bytes than the store has; run the same command again")
