"""Blocks of objects in a bucket, kept on the local disk up to a limit.

A block is fetched when it is first read, checked by its reader, and written into a slot of one local file. When all slots are in
use, those of the blocks that were not read for the longest time are used again. The file has no name: its space is free again
when the process ends, however it ends, and processes share nothing.

fsspec's caches (2026.9.0) are not used. `fsspec.implementations.cached.CachingFileSystem` ("blockcache") keeps each block on the
disk until its whole file expires, so that the disk has no bound. `fsspec.caching.BlockCache` and `BackgroundBlockCache` have one,
but they keep their blocks in memory, and request them one after another. None of them has its reader check a block before it is
kept. `fsspec`'s `cat_ranges`, which requests many ranges at once, is used. The `cache_pool` of TensorStore (0.1.86) is memory.
"""

import errno
import os
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from bertfam.errors import warn
from bertfam.storage import buckets
from bertfam.storage.faults import cannot_write

_PORTION = 256  # blocks in memory at once
_TOGETHER = 64  # most blocks of a request
_SHARE = 3  # blocks are fetched in advance up to this part of the slots
_EVICTED = 64  # part of the slots that is freed at once
_WRITING = np.iinfo(np.int64).max  # time of use of a slot that is being written

Check = Callable[[int, memoryview], None]  # raises an error for a block that is not as it should be, given its number


class BlockStore:
    """Blocks of the objects of a folder; threads share it."""

    def __init__(self, folder: Path, sizes: Mapping[str, int], block_bytes: int, limit_bytes: int, root: Path) -> None:
        """Create an empty store.

        Args:
          folder: The folder in a bucket.
          sizes: Size in bytes of each object, by its name within the folder.
          block_bytes: Size of a block, a power of two.
          limit_bytes: Maximum number of bytes on the disk; there is room for one block at least.
          root: The local folder to keep the blocks in.

        Raises:
          UserError: If nothing can be written to `root`.
        """
        self._folder, self._sizes, self._block_bytes = folder, sizes, block_bytes
        blocks = {name: -(-size // block_bytes) for name, size in sizes.items()}
        self._capacity = max(1, min(limit_bytes // block_bytes, sum(blocks.values())))
        try:
            root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=root) as file:
                self._file = os.dup(file.fileno())
            weakref.finalize(self, os.close, self._file)
            os.truncate(self._file, self._capacity * block_bytes)  # a hole, which takes no space
            with open(self._file, "rb", closefd=False) as file:
                self._bytes = np.memmap(file, np.uint8, "r").view(np.ndarray)
        except OSError as error:
            raise cannot_write(root, error, "set BERTFAM_CACHE to another folder") from error
        self._lock = threading.Lock()
        self._names = list(blocks)
        self._slots = {name: np.full(count, -1, np.int32) for name, count in blocks.items()}
        self._owners = np.full((self._capacity, 2), -1, np.int64)  # the number of the object, and the block
        self._used = np.zeros(self._capacity + 1, np.int64)  # time of use; the last one is that of blocks without a slot
        self._clock = self._fresh = 0
        self._free = np.zeros(0, np.int64)
        self._has_warned = False

    def take(self, name: str, places: np.ndarray, dtype: np.dtype, check: Check) -> np.ndarray:
        """Return the values of an object at `places`, all of which exist, fetching the blocks that are not here."""
        shift = (self._block_bytes // dtype.itemsize).bit_length() - 1
        blocks, within = places >> shift, places & ((1 << shift) - 1)
        with self._lock:
            slots = self._slots[name].take(blocks)
            self._clock += 1
            self._used[slots] = self._clock
            result = self._bytes.view(dtype).take((slots.astype(np.int64) << shift) + within, mode="clip")
        absent = np.flatnonzero(slots < 0)
        if len(absent):
            flat, blocks, within = result.reshape(-1), blocks.reshape(-1)[absent], within.reshape(-1)[absent]
            for portion in _portions(np.unique(blocks)):
                numbers, content = self._fetch(name, portion, check)
                here = np.flatnonzero((blocks >= portion[0]) & (blocks <= portion[-1]))
                flat[absent[here]] = content.view(dtype)[np.searchsorted(numbers, blocks[here]), within[here]]
        return result

    def prefetch(self, name: str, blocks: np.ndarray, check: Check) -> None:
        """Fetch blocks, in rising order, that are soon read; nothing if the limit leaves little room beside so many."""
        if len(blocks) <= self._capacity // _SHARE:
            for portion in _portions(blocks[self._slots[name][blocks] < 0]):
                self._fetch(name, portion, check)

    def _fetch(self, name: str, blocks: np.ndarray, check: Check) -> tuple[np.ndarray, np.ndarray]:
        """Fetch blocks in rising order, and single blocks between two of them, by several requests at once, and keep them.

        Returns:
          The numbers of the blocks int64[n], and their bytes uint8[n, block_bytes], filled up with zeros.
        """
        size = self._block_bytes
        runs = [
            (int(run[0]), int(run[-1]) + 1)
            for whole in np.split(blocks, np.flatnonzero(np.diff(blocks) > 2) + 1)
            for run in np.split(whole, np.flatnonzero(np.diff((whole - whole[0]) // _TOGETHER)) + 1)
        ]
        ranges = [(name, first * size, min(end * size, self._sizes[name])) for first, end in runs]
        numbers = np.concatenate([np.arange(first, end) for first, end in runs])
        content = np.zeros((len(numbers), size), np.uint8)
        row = 0
        for (first, end), run_bytes in zip(runs, buckets.read_ranges(self._folder, ranges), strict=True):
            for number in range(first, end):
                block = memoryview(run_bytes)[(number - first) * size : (number - first + 1) * size]
                check(number, block)
                content[row, : len(block)] = np.frombuffer(block, np.uint8)
                row += 1
        self._keep(name, numbers, content)
        return numbers, content

    def _keep(self, name: str, numbers: np.ndarray, content: np.ndarray) -> None:
        """Write blocks into slots, as many as there are."""
        with self._lock:
            new = np.flatnonzero(self._slots[name][numbers] < 0)
            slots = self._claim(len(new))
        written = np.zeros(len(slots), bool)
        for index, (row, slot) in enumerate(zip(new.tolist(), slots.tolist(), strict=False)):
            try:
                # Fewer bytes, or none, fit on a full disk; the slot is not used again then.
                written[index] = os.pwrite(self._file, content[row], slot * self._block_bytes) == self._block_bytes
                reason = os.strerror(errno.ENOSPC)
            except OSError as error:
                reason = os.strerror(error.errno or errno.EIO)
            if not written[index]:
                self._warn_once(reason)
        blocks, slots = numbers[new[: len(slots)][written]], slots[written]
        with self._lock:
            absent = self._slots[name][blocks] < 0  # another thread may have written the same block meanwhile
            self._free = np.concatenate([self._free, slots[~absent]])
            blocks, slots = blocks[absent], slots[absent]
            self._slots[name][blocks] = slots
            self._owners[slots, 0], self._owners[slots, 1] = self._names.index(name), blocks
            self._used[slots] = self._clock

    def _claim(self, count: int) -> np.ndarray:
        """Return at most `count` slots, whose blocks are forgotten, as being written: int64[slots]."""
        fresh = np.arange(self._fresh, min(self._fresh + count, self._capacity))
        self._fresh += len(fresh)
        self._used[fresh] = _WRITING
        missing = count - len(fresh)
        if missing > len(self._free):
            self._evict(max(missing - len(self._free), self._capacity // _EVICTED))
        slots = np.concatenate([fresh, self._free[:missing]])
        self._free = self._free[missing:]
        self._used[slots] = _WRITING
        return slots

    def _evict(self, count: int) -> None:
        """Free slots in use, those that were not used for the longest time first."""
        used = self._used[: self._fresh].copy()
        used[self._free] = _WRITING
        count = min(count, len(used))
        oldest = np.argpartition(used, count - 1)[:count] if count else np.zeros(0, np.int64)
        oldest = oldest[used[oldest] != _WRITING]
        for number, name in enumerate(self._names):
            self._slots[name][self._owners[oldest[self._owners[oldest, 0] == number], 1]] = -1
        self._owners[oldest] = -1
        self._free = np.concatenate([self._free, oldest])

    def _warn_once(self, reason: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            warn(
                [
                    f"no more blocks of {self._folder} can be kept on this machine's disk ({reason}), so that they are "
                    "fetched again when they are read again; free some space, or set BERTFAM_CACHE to another folder"
                ]
            )


def _portions(blocks: np.ndarray) -> list[np.ndarray]:
    return [blocks[start : start + _PORTION] for start in range(0, len(blocks), _PORTION)]
