"""The files of a split of a token cache, written by appending alone, so that a build can go on where it was stopped."""

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from bertfam.data.token_cache.cache import feature_path
from bertfam.data.token_cache.tokenize import Block
from bertfam.errors import UserError

_VALUES_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class Counts:
    """What lies in the files of a split; they say how long each file is.

    Attributes:
      skipped_documents: documents without any token, which are not there.
      words, bytes: of the text, see `Block`; None where a part of it was tokenised by a version that did not count them.
    """

    documents: int = 0
    sentences: int = 0
    tokens: int = 0
    skipped_documents: int = 0
    words: int | None = 0
    bytes: int | None = 0

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Counts":
        """Restore counts from `asdict`, also of earlier versions; {} gives zeros."""
        return cls(**{"words": None, "bytes": None, **content}) if content else cls()

    def __add__(self, more: "Counts") -> "Counts":
        pairs = zip(astuple(self), astuple(more), strict=True)
        sums: list[Any] = [None if None in pair else sum(pair) for pair in pairs]
        return Counts(*sums)


class SplitWriter:
    """Appends documents to the four files of a split, or the five of marked text.

    Starts, and the places where documents begin, are written as the ends of what is before them, behind a first 0: nothing
    that has been written is ever changed.
    """

    def __init__(self, folder: Path, dtype: str, counts: Counts = Counts(), *, units: bool = False) -> None:
        """Goes on behind `counts`; what the files hold beyond it is cut off. `units`: blocks have marks.

        Raises:
          UserError: the files hold less.
        """
        self._dtype = np.dtype(dtype)
        self.counts = counts
        sizes = {
            ("tokens", "values"): counts.tokens * self._dtype.itemsize,
            ("sentence_starts", "values"): 8 * (counts.sentences + 1),
            ("sentence_starts", "offsets"): 8 * (counts.documents + 1),
            ("tokens", "offsets"): 8 * (counts.documents + 1),
        }
        sizes |= {("units", "values"): counts.tokens} if units else {}
        folder.mkdir(parents=True, exist_ok=True)
        new = counts == Counts()
        with ExitStack() as opened:
            files = [opened.enter_context(_open(feature_path(folder, *name), size, new=new)) for name, size in sizes.items()]
            self._tokens, self._starts, self._sentence_offsets, self._token_offsets, *self._units = self._files = files
            self._stack = opened.pop_all()

    def append(self, block: Block) -> None:
        """Writes documents behind those that are there."""
        ends = self.counts.tokens + block.sentences.cumsum()
        sentences = block.documents.cumsum()
        self._tokens.write(block.tokens.astype(self._dtype, copy=False).tobytes())
        self._starts.write(ends.astype(np.int64).tobytes())
        self._sentence_offsets.write((self.counts.sentences + sentences).astype(np.int64).tobytes())
        self._token_offsets.write(ends[sentences - 1].astype(np.int64).tobytes())
        for file in self._units:
            assert block.units is not None
            file.write(block.units.tobytes())
        self.counts += Counts(
            len(block.documents), len(block.sentences), len(block.tokens), block.skipped, block.words, block.bytes
        )

    def append_files(self, folder: Path, counts: Counts) -> None:
        """Writes the documents of a folder that another `SplitWriter` has written."""
        for values in _values(feature_path(folder, "tokens", "values"), self._dtype):
            self._tokens.write(values.tobytes())
        for file in self._units:
            for values in _values(feature_path(folder, "units", "values"), np.dtype(np.uint8)):
                file.write(values.tobytes())
        for file, name, before in (
            (self._starts, ("sentence_starts", "values"), self.counts.tokens),
            (self._sentence_offsets, ("sentence_starts", "offsets"), self.counts.sentences),
            (self._token_offsets, ("tokens", "offsets"), self.counts.tokens),
        ):
            for values in _values(feature_path(folder, *name), np.dtype(np.int64), skip=1):
                file.write((before + values).tobytes())
        self.counts += counts

    def sync(self) -> None:
        """Returns when everything is on the disk."""
        for file in self._files:
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        """Closes the files."""
        self._stack.close()


def _open(path: Path, size: int, *, new: bool) -> BinaryIO:
    """A file to append to behind its first `size` bytes; those of a new one are zeros."""
    if new:
        file = open(path, "wb")
        file.write(bytes(size))
        return file
    found = path.stat().st_size if path.exists() else -1
    if found < size:
        raise UserError(
            f"{path} has {max(found, 0)} bytes where {size} were written: give the same command again, which starts anew"
        )
    os.truncate(path, size)
    return open(path, "ab")


def _values(path: Path, dtype: np.dtype, skip: int = 0) -> Iterator[np.ndarray]:
    with open(path, "rb") as file:
        file.seek(skip * dtype.itemsize)
        while len(values := np.fromfile(file, dtype, _VALUES_AT_ONCE)):
            yield values
