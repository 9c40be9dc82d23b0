"""Files of a split of a token cache, written append-only, so that an interrupted build can be resumed."""

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from bertfam.data.corpora.corpus import Corpus
from bertfam.data.token_cache.cache import feature_path
from bertfam.data.token_cache.tokenize import Block
from bertfam.errors import UserError
from bertfam.plurals import plural

_VALUES_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class Counts:
    """Number of items in the files of a split, which determine the size of each file.

    Attributes:
      skipped_documents: documents without any token, which are not in the files.
      words: words of the text, see `Block`; None if a part was tokenised by a version that did not count them.
      bytes: bytes of the text, likewise.
    """

    documents: int = 0
    sentences: int = 0
    tokens: int = 0
    skipped_documents: int = 0
    words: int | None = 0
    bytes: int | None = 0

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Counts":
        """Restore counts from the `asdict` of this or an earlier version; {} gives zeros."""
        return cls(**{"words": None, "bytes": None, **content}) if content else cls()

    def __add__(self, other: "Counts") -> "Counts":
        pairs = zip(astuple(self), astuple(other), strict=True)
        sums: list[Any] = [None if None in pair else sum(pair) for pair in pairs]
        return Counts(*sums)


class SplitWriter:
    """Writer that appends documents to the four files of a split, or to the five of marked or labelled text.

    The start of each sentence and document is written as the end of the previous one, after an initial 0, so that written bytes
    never change.
    """

    def __init__(
        self,
        folder: Path,
        dtype: str,
        counts: Counts,
        corpus: Corpus,
    ) -> None:
        """Open the files.

        Args:
          folder: the folder of the split.
          dtype: the dtype of the tokens.
          counts: the number of items to keep; the files are truncated after them.
          corpus: says if the blocks have marks or labels.

        Raises:
          UserError: if the files hold fewer items.
        """
        self._dtype = np.dtype(dtype)
        self.counts = counts
        sizes = {
            ("tokens", "values"): counts.tokens * self._dtype.itemsize,
            ("sentence_starts", "values"): 8 * (counts.sentences + 1),
            ("sentence_starts", "offsets"): 8 * (counts.documents + 1),
            ("tokens", "offsets"): 8 * (counts.documents + 1),
        }
        if corpus.units:
            sizes["units", "values"] = counts.tokens
        if corpus.labels:
            sizes["labels", "values"] = 4 * corpus.labels * (counts.sentences if corpus.labels_words else counts.documents)
        folder.mkdir(parents=True, exist_ok=True)
        new = counts == Counts()
        with ExitStack() as opened:
            files = {
                name: opened.enter_context(_open(feature_path(folder, *name), size, new=new)) for name, size in sizes.items()
            }
            self._files = list(files.values())
            self._tokens, self._starts, self._sentence_offsets, self._token_offsets = self._files[:4]
            self._units, self._labels = (files.get((feature, "values")) for feature in ("units", "labels"))
            self._stack = opened.pop_all()

    def append(self, block: Block) -> None:
        """Append documents."""
        ends = self.counts.tokens + block.sentences.cumsum()
        sentences = block.documents.cumsum()
        self._tokens.write(block.tokens.astype(self._dtype, copy=False).tobytes())
        self._starts.write(ends.astype(np.int64).tobytes())
        self._sentence_offsets.write((self.counts.sentences + sentences).astype(np.int64).tobytes())
        self._token_offsets.write(ends[sentences - 1].astype(np.int64).tobytes())
        for file, values in ((self._units, block.units), (self._labels, block.labels)):
            if file is not None:
                assert values is not None
                file.write(values.tobytes())
        self.counts += Counts(
            len(block.documents), len(block.sentences), len(block.tokens), block.skipped, block.words, block.bytes
        )

    def append_files(self, folder: Path, counts: Counts) -> None:
        """Append the documents of a folder written by another `SplitWriter`."""
        for values in _values(feature_path(folder, "tokens", "values"), self._dtype):
            self._tokens.write(values.tobytes())
        for feature, dtype, more in (("units", np.uint8, self._units), ("labels", np.float32, self._labels)):
            if more is not None:
                for values in _values(feature_path(folder, feature, "values"), np.dtype(dtype)):
                    more.write(values.tobytes())
        for file, name, before in (
            (self._starts, ("sentence_starts", "values"), self.counts.tokens),
            (self._sentence_offsets, ("sentence_starts", "offsets"), self.counts.sentences),
            (self._token_offsets, ("tokens", "offsets"), self.counts.tokens),
        ):
            for values in _values(feature_path(folder, *name), np.dtype(np.int64), skip=1):
                file.write((before + values).tobytes())
        self.counts += counts

    def sync(self) -> None:
        """Flush everything to the disk."""
        for file in self._files:
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        """Close the files."""
        self._stack.close()


def _open(path: Path, size: int, *, new: bool) -> BinaryIO:
    """Open a file for appending after its first `size` bytes, which are zeros in a new file."""
    if new:
        file = open(path, "wb")
        file.write(bytes(size))
        return file
    actual = path.stat().st_size if path.exists() else -1
    if actual < size:
        raise UserError(
            f"{path} has {plural(max(actual, 0), 'byte')} where {size} were written: run the same command again, which starts "
            "over"
        )
    os.truncate(path, size)
    return open(path, "ab")


def _values(path: Path, dtype: np.dtype, skip: int = 0) -> Iterator[np.ndarray]:
    with open(path, "rb") as file:
        file.seek(skip * dtype.itemsize)
        while len(values := np.fromfile(file, dtype, _VALUES_AT_ONCE)):
            yield values
