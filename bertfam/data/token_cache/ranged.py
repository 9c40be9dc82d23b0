"""Token caches in buckets that are read by ranges: a machine fetches the blocks that its rows need, and keeps some of them.

The blocks are those of the digests, so that each is checked when it is fetched. Small caches are copied as a whole, which is
faster, and so are those without digests, of which nothing could be checked.
"""

import functools
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from bertfam.data.token_cache import digests
from bertfam.data.token_cache.documents import FetchedValues, Mode
from bertfam.errors import UserError
from bertfam.plurals import plural
from bertfam.storage import buckets, mirror
from bertfam.storage.block_store import BlockStore, Check
from bertfam.storage.paths import cache_limit_bytes, cache_root

_WHOLE_BYTES = 2 << 30  # up to this size a cache is copied: half a minute at the speed of a usual network
_PART = 1 << 21  # values of a slice that are read at once


class RangedArray(FetchedValues):
    """Values of a file in a bucket.

    Attributes:
      dtype: of the values.
    """

    def __init__(
        self, store: BlockStore, folder: Path, name: str, dtype: np.dtype, count: int, check: Check, limit: int | None = None
    ) -> None:
        """Create the array.

        Args:
          store: the blocks.
          folder: the folder of the cache.
          name: the file within it.
          dtype: type of a value.
          count: number of values.
          check: check of a block that was fetched.
          limit: the least value that is refused; None refuses none.
        """
        self._store, self._folder, self._name, self._count = store, folder, name, count
        self.dtype, self._check, self._limit = dtype, check, limit

    def __len__(self) -> int:
        return self._count

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self[:], dtype, copy=copy)

    @override
    def __getitem__(self, key: slice) -> np.ndarray:
        begin, end, _ = key.indices(self._count)
        result = np.empty(max(0, end - begin), self.dtype)
        for start in range(begin, end, _PART):
            part = np.arange(start, min(start + _PART, end))
            result[start - begin : start - begin + len(part)] = self.take(part)
        return result

    @override
    def take(self, indices: np.ndarray, /, *, mode: Mode = "raise") -> np.ndarray:
        if not indices.size:
            return np.empty(indices.shape, self.dtype)
        if mode == "clip":
            indices = np.clip(indices, 0, self._count - 1)
        elif indices.min() < 0 or indices.max() >= self._count:
            raise IndexError(f"indices from {indices.min()} to {indices.max()} are not in 0 to {self._count - 1}")
        values = self._store.take(self._name, indices, self.dtype, self._check)
        if self._limit is not None and (largest := values.max()) >= self._limit:
            number = self._block(int(indices.reshape(-1)[values.argmax()]))
            raise digests.unknown_id(self._folder, self._name, number, int(largest), self._limit)
        return values

    @override
    def prefetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        blocks = [np.arange(self._block(begin), self._block(end - 1) + 1) for begin, end in ranges if end > begin]
        if blocks:
            self._store.prefetch(self._name, np.unique(np.concatenate(blocks)), self._check)

    def _block(self, index: int) -> int:
        return index * self.dtype.itemsize // digests.BLOCK_BYTES


class RangedFiles:
    """Files of a token cache in a bucket, shared by all that read it in a process.

    Attributes:
      sizes: size in bytes of each file, by its name within the folder.
      small_files: local folder with copies of the description, the digests and the vocabulary.
      digests: digests of all files.
    """

    def __init__(self, folder: Path, infos: mirror.Infos, limit_bytes: int) -> None:
        """Copy the small files, and open the others.

        Args:
          folder: the folder of the cache.
          infos: the store's metadata of its files.
          limit_bytes: the most bytes of blocks to keep on the disk.
        """
        self._folder, self._infos, self._root = folder, infos, cache_root()
        self.small_files = mirror.mirror(folder, self._root, {name: infos[name] for name in infos if not _is_large(name)})
        self.digests = digests.read(self.small_files) or {}
        self.sizes = {name: int(info["size"]) for name, info in infos.items()}
        sizes = {name: size for name, size in self.sizes.items() if _is_large(name)}
        self._store = BlockStore(folder, sizes, digests.BLOCK_BYTES, limit_bytes, mirror.copies(self._root))
        self._positions_checks: dict[str, Check] = {}

    def copy_of(self, name: str) -> Path:
        """Return a local folder with a copy of one file."""
        self._entry(name)
        return mirror.mirror(self._folder, self._root, {name: self._infos[name]})

    def values(self, name: str, dtype: str, count: int, limit: int | None = None) -> RangedArray:
        """Return the values of a file, of which `limit` and those above are refused."""
        entry = self._entry(name, count * np.dtype(dtype).itemsize)
        check = functools.partial(digests.check_block, self._folder, name, entry=entry)
        return RangedArray(self._store, self._folder, name, np.dtype(dtype), count, check, limit)

    def positions(self, name: str, count: int, end: int) -> RangedArray:
        """Return the positions in a file, which rise from 0 to `end`."""
        dtype = digests.CheckedPositions.dtype
        entry = self._entry(name, count * dtype.itemsize)
        check = self._positions_checks.setdefault(name, _check_positions(self._folder, name, count, end, entry))
        return RangedArray(self._store, self._folder, name, dtype, count, check)

    def _entry(self, name: str, size: int | None = None) -> digests.FileDigests:
        """Return the digests of a file, which must exist and have this size."""
        stored = self.sizes.get(name, -1)
        if name not in self.digests:
            raise UserError(
                f"{self._folder / digests.NAME} has no digests of {name}: it is damaged; delete {self._folder} and build it again"
            )
        expected = self.digests[name].size if size is None else size
        if not stored == expected == self.digests[name].size:
            state = "is missing" if stored < 0 else f"has {plural(stored, 'byte')} instead of {expected}"
            raise UserError(f"{self._folder / name} {state}; delete {self._folder} and build it again")
        return self.digests[name]


def open_ranged(folder: Path) -> RangedFiles | None:
    """Open a token cache in a bucket; None if it is to be copied as a whole. A line on stderr says which, once in a process."""
    infos = buckets.object_infos(folder)
    key = (mirror.version(folder, infos), str(cache_root()), os.environ.get("BERTFAM_CACHE_GIB", ""))
    with _lock:
        if key not in _opened:
            _opened[key] = _open(folder, infos)
        return _opened[key]


def _open(folder: Path, infos: mirror.Infos) -> RangedFiles | None:
    total, limit = sum(info["size"] for info in infos.values()), cache_limit_bytes()
    copies = mirror.copies(cache_root())
    if (copies / mirror.version(folder, infos)).is_dir():
        return None
    size = f"token cache: {folder} has {_gib(total)}"
    if digests.NAME not in infos or total <= min(_WHOLE_BYTES, limit):
        print(f"{size} and is copied to {copies}", file=sys.stderr, flush=True)
        return None
    print(
        f"{size} and is read by ranges; {copies} keeps up to {_gib(min(limit, total))} of it (BERTFAM_CACHE_GIB)",
        file=sys.stderr,
        flush=True,
    )
    return RangedFiles(folder, infos, limit)


_opened: dict[tuple[str, str, str], RangedFiles | None] = {}
_lock = threading.Lock()


def _gib(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB" if size >= 2**30 else f"{size / 2**20:,.1f} MiB"


def _is_large(name: str) -> bool:
    return name.endswith(".bin")


def _check_positions(folder: Path, name: str, count: int, end: int, entry: digests.FileDigests) -> Check:
    """Return a check of blocks by their digests, which also refuses positions that do not rise from 0 to `end`."""
    size = digests.BLOCK_BYTES // digests.CheckedPositions.dtype.itemsize
    blocks = -(-count // size)
    # The first and the last position of each block that was checked, by which neighbours are compared; -1 for others.
    edges = np.full((blocks, 2), -1)

    def check(number: int, block: memoryview) -> None:
        digests.check_block(folder, name, number, block, entry=entry)
        values = np.frombuffer(block, digests.CheckedPositions.dtype)
        edges[number] = values[0], values[-1]
        before = edges[number - 1, 1] if number else 0
        after = edges[number + 1, 0] if number + 1 < blocks else -1
        is_whole = (number > 0 or values[0] == 0) and (number + 1 < blocks or values[-1] == end)
        rises = values[0] >= max(before, 0) and values[-1] <= (after if after >= 0 else end)
        if not is_whole or not rises or (values[1:] < values[:-1]).any():
            raise digests.falling_positions(folder, name, number, end)

    return check
