"""Digests of a token cache by block, by which a changed byte is found when its block is first read.

DIRECTORY/digests.json {"format": 1, "files": {"text/train/tokens.bin": {"size": 1234, "crc32": "8 digits a block"}, ...}}

A block has 64 KiB. CRC-32 finds every flipped bit, and every burst of up to 32 bits; other damage escapes it once in 2^32 blocks.
Rows are scattered over the ids, so that larger blocks would read much more than the first rows need. `zlib.crc32` is used, since
`google_crc32c` is no dependency of a local cache and SHA-256 is no faster here.
"""

import functools
import json
import os
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bertfam.errors import UserError
from bertfam.plurals import plural
from bertfam.storage.untrusted import MAX_BYTES, check_size, shown

NAME = "digests.json"
BLOCK_BYTES = 1 << 16
_FORMAT = 1
_DIGITS = 8


@dataclass(frozen=True)
class FileDigests:
    """Digests of one file.

    Attributes:
      size: its bytes.
      blocks: uint32[blocks], the CRC-32 of each block.
    """

    size: int
    blocks: np.ndarray


def is_foreign(name: str) -> bool:
    """Return True for a file that systems put into every folder, such as .DS_Store, given its name."""
    return name.startswith(".") or name in ("Thumbs.db", "desktop.ini")


def compute(folder: Path, progress: Callable[[int], None] = lambda size: None) -> str:
    """Return the content of digests.json for all files of a folder; `progress` is called with the bytes of each block read."""
    files = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.name != NAME and not is_foreign(path.name)):
        digits = []
        size = 0
        for block in _blocks(path):
            digits.append(f"{zlib.crc32(block):0{_DIGITS}x}")
            size += len(block)
            progress(len(block))
        files[path.relative_to(folder).as_posix()] = {"size": size, "crc32": "".join(digits)}
    return json.dumps({"format": _FORMAT, "files": files}, indent=1) + "\n"


def read(folder: Path) -> dict[str, FileDigests] | None:
    """Read the digests of a cache's folder, by the name of the file; None if it has none.

    Raises:
      UserError: if digests.json is damaged.
    """
    path = folder / NAME
    if not path.is_file():
        return None
    try:
        # It grows with the cache.
        most = MAX_BYTES + sum(_digits_of(other) for other in folder.rglob("*") if other.name != NAME)
        check_size(path, path.stat().st_size, most)
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != _FORMAT:
            raise ValueError(f"its format is {content['format']}")
        if outside := next((name for name in content["files"] if name.startswith("/") or ".." in name.split("/")), None):
            raise ValueError(f"{shown(outside)} is no file of the folder")
        return {name: _parse(entry) for name, entry in content["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        why = error if isinstance(error, (OSError, ValueError)) else "it has not the entries that a build writes"
        raise UserError(f"{path} is damaged ({why}); delete {folder} and build it again") from None


def _digits_of(path: Path) -> int:
    """Return the number of digits for a file of a cache, or none for a folder."""
    return (path.stat().st_size // BLOCK_BYTES + 1) * _DIGITS if path.is_file() else 0


def check_file(
    folder: Path, name: str, digests: Mapping[str, FileDigests], progress: Callable[[int], None] | None = None
) -> None:
    """Raise UserError unless every byte of a file is as it was written; a file that is checked already is not read again."""
    entry, path = entry_of(folder, name, digests), folder / name
    if progress is None:
        stat = path.stat()
        _check_once(folder, name, stat.st_ino, stat.st_size, stat.st_mtime_ns, entry.blocks.tobytes())
        return
    for number, block in enumerate(_blocks(path)):
        check_block(folder, name, number, block, entry)
        progress(len(block))


@functools.lru_cache(maxsize=1024)
def _check_once(folder: Path, name: str, inode: int, size: int, changed: int, blocks: bytes) -> None:
    entry = FileDigests(size, np.frombuffer(blocks, np.uint32))
    for number, block in enumerate(_blocks(folder / name)):
        check_block(folder, name, number, block, entry)


class CheckedArray:
    """Read-only values of a file, of which each block is checked when it is first read.

    It has the part of the interface of `np.ndarray` that readers of tokens use. Threads share it: a block that two of them read
    at once is checked twice, which is harmless. Each process checks for itself.

    Attributes:
      dtype: of the values.
    """

    def __init__(self, folder: Path, name: str, values: np.ndarray, entry: FileDigests | None, limit: int | None) -> None:
        """Create the array.

        Args:
          folder: the folder of the cache.
          name: the file within it.
          values: its values, mapped into memory.
          entry: its digests; None if there are none.
          limit: the least value that is refused; None refuses none.
        """
        self._folder, self._name, self._values, self._entry, self._limit = folder, name, values, entry, limit
        self.dtype = values.dtype
        self._shift = (BLOCK_BYTES // values.itemsize).bit_length() - 1  # of a value's index, to give its block
        self._checked = np.zeros(max(1, -(-values.nbytes // BLOCK_BYTES)), bool)
        self._all_checked = entry is None and limit is None

    def __len__(self) -> int:
        return len(self._values)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self[:], dtype, copy=copy)

    def __getitem__(self, key: slice) -> np.ndarray:
        begin, end, _ = key.indices(len(self))
        if not self._all_checked and end > begin:
            first, last = begin >> self._shift, (end - 1) >> self._shift
            self._check(first + np.flatnonzero(~self._checked[first : last + 1]))
        return self._values[key]

    def take(self, indices: np.ndarray, /, *, mode: Literal["raise", "clip"] = "raise") -> np.ndarray:
        """Return the values at `indices`, as `np.ndarray.take` does."""
        if not self._all_checked and len(self):
            # Indices out of range are of the first or last block, whatever the mode does with them.
            blocks = np.right_shift(indices, self._shift)
            unchecked = ~self._checked.take(blocks, mode="clip")
            if unchecked.any():
                self._check(np.unique(np.clip(blocks[unchecked], 0, len(self._checked) - 1)))
        return self._values.take(indices, mode=mode)  # type: ignore[call-overload,no-any-return]

    def _check(self, blocks: np.ndarray) -> None:
        size = 1 << self._shift
        for number in blocks.tolist():
            values = self._values[number * size : (number + 1) * size]
            if self._entry is not None:
                check_block(self._folder, self._name, number, values.view(np.uint8).data, self._entry)
            if self._limit is not None and values.max() >= self._limit:
                raise unknown_id(self._folder, self._name, number, int(values.max()), self._limit)
            self._checked[number] = True
        if len(blocks) and self._checked.all():
            self._all_checked = True


class CheckedPositions:
    """Positions in a file that rise from 0, of which each block is checked when it is first read.

    They are read and not mapped: the system would read ahead of each of the distant positions that a plan by blocks needs first.

    Attributes:
      dtype: of the positions.
    """

    dtype = np.dtype(np.int64)

    def __init__(self, folder: Path, name: str, count: int, end: int, entry: FileDigests | None) -> None:
        """Open the file.

        Args:
          folder: the folder of the cache.
          name: the file within it.
          count: number of positions.
          end: the last position.
          entry: its digests; None if there are none.
        """
        self._folder, self._name, self._count, self._end, self._entry = folder, name, count, end, entry
        self._file = os.open(folder / name, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)
        self._block = BLOCK_BYTES // self.dtype.itemsize
        self._checked = np.zeros(-(-count // self._block), bool)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, key: slice) -> np.ndarray:
        begin, end, _ = key.indices(self._count)
        if end <= begin:
            return np.zeros(0, self.dtype)
        first, last = begin // self._block, (end - 1) // self._block + 1
        # From the last position of the block before, so that those of several blocks rise too.
        start = max(first * self._block - 1, 0)
        size = self.dtype.itemsize
        values = np.frombuffer(os.pread(self._file, (last * self._block - start) * size, start * size), self.dtype)
        for number in (first + np.flatnonzero(~self._checked[first:last])).tolist():
            self._check(number, values[max(number * self._block - 1, 0) - start : (number + 1) * self._block - start])
        return values[begin - start : end - start]

    def take(self, indices: np.ndarray, /, *, mode: Literal["raise", "clip"] = "raise") -> np.ndarray:
        """Return the positions at `indices`, as `np.ndarray.take` does."""
        places = np.clip(indices, 0, self._count - 1) if mode == "clip" else indices
        result = np.empty(places.shape, self.dtype)
        order = np.argsort(places, axis=None)
        in_order = places.reshape(-1)[order]
        blocks = in_order // self._block
        for part in np.split(np.arange(len(order)), np.flatnonzero(np.diff(blocks)) + 1) if len(order) else ():
            begin = int(blocks[part[0]]) * self._block
            result.reshape(-1)[order[part]] = self[begin : begin + self._block][in_order[part] - begin]
        return result

    def _check(self, number: int, values: np.ndarray) -> None:
        """Check a block, given its positions and the one before; digests alone would not show those made to harm."""
        own = values[min(number, 1) :]
        if self._entry is not None:
            check_block(self._folder, self._name, number, own.view(np.uint8).data, self._entry)
        is_last = (number + 1) * self._block >= self._count
        rises = values[-1] <= self._end and not (values[1:] < values[:-1]).any()
        if not rises or (number == 0 and values[0] != 0) or (is_last and values[-1] != self._end):
            raise falling_positions(self._folder, self._name, number, self._end)
        self._checked[number] = True


def check_block(folder: Path, name: str, number: int, block: bytes | memoryview, entry: FileDigests) -> None:
    """Raise UserError unless a block of a file of a cache is as it was written."""
    if number >= len(entry.blocks) or zlib.crc32(block) != entry.blocks[number]:
        begin = number * BLOCK_BYTES
        raise UserError(
            f"{folder / name}: block {number} (bytes {begin} to {begin + len(block) - 1}) is damaged: it is not as it was "
            f"written; delete {folder} and build it again"
        )


def unknown_id(folder: Path, name: str, number: int, value: int, limit: int) -> UserError:
    """Return the error for an id in a block that the vocabulary does not have."""
    return UserError(
        f"{folder / name}: block {number} holds the id {value}, and the vocabulary has {limit} pieces; delete {folder} and build "
        "it again"
    )


def falling_positions(folder: Path, name: str, number: int, end: int) -> UserError:
    """Return the error for a block of positions that do not rise from 0 to `end`."""
    return UserError(
        f"{folder / name} is damaged: its positions do not rise from 0 to {end} in block {number}; delete {folder} and build it "
        "again"
    )


def entry_of(folder: Path, name: str, digests: Mapping[str, FileDigests]) -> FileDigests:
    """Return the digests of a file, which must exist and have its size."""
    path = folder / name
    if name not in digests:
        raise UserError(f"{folder / NAME} has no digests of {name}: it is damaged; delete {folder} and build it again")
    if not path.is_file():
        raise UserError(f"{path} is missing; delete {folder} and build it again")
    if (size := path.stat().st_size) != digests[name].size:
        raise UserError(f"{path} has {plural(size, 'byte')} instead of {digests[name].size}; delete {folder} and build it again")
    return digests[name]


def _parse(entry: Mapping[str, Any]) -> FileDigests:
    size, digits = int(entry["size"]), bytes.fromhex(entry["crc32"])
    blocks = np.frombuffer(digits, ">u4").astype(np.uint32)
    if len(blocks) != -(-size // BLOCK_BYTES):
        raise ValueError(f"{len(blocks)} blocks are no digests of {size} bytes")
    return FileDigests(size, blocks)


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            yield block
