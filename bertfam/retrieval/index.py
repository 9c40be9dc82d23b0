"""Index of passages: their vectors and texts, in a folder of shards that are complete or absent.

    index.json                                what the vectors were computed from, and how the passages are divided
    shards/00000.npy, shards/00000.jsonl      float32[passages, width], and a JSON string per passage
    shards/00000.json                         the SHA-256 of both, written last

FAISS (1.12) has no shards that several processes write and that an interrupted build resumes, and keeps no texts; the vectors of
`Index.vectors` are what its indexes take.
"""

import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Self

import numpy as np

from bertfam.errors import UserError
from bertfam.plurals import listed, plural
from bertfam.storage.files import check_unused, write_bytes, write_text
from bertfam.storage.untrusted import check_file, check_subfolder, parse_json, read_json, typed

NAME = "index.json"
_SHARDS, _VERSION, _SHOWN = "shards", 1, 3
_MOST_PASSAGES, _MOST_WIDTH = 2**31 - 1, 2**16  # indices of passages are int32 on devices


@dataclass(frozen=True)
class Index:
    """Index of passages in a folder.

    Attributes:
      folder: the folder.
      passages: number of passages.
      width: numbers of a vector.
      shard_size: passages of a shard; the last one may have fewer.
      source: everything that determines the vectors, as JSON: "model" is how queries are embedded, "passages" the files.
    """

    folder: Path
    passages: int
    width: int
    shard_size: int
    source: Mapping[str, Any]

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """Open an index, which may be incomplete; see `check_complete`.

        Raises:
          UserError: if there is no index, or its description is damaged.
        """
        path = Path(folder) / NAME
        if not path.is_file():
            raise UserError(f"{folder} is no index: it has no {NAME}; make one by bertfam index")
        content = read_json(path)
        numbers = {name: typed(content, name, int, path) for name in ("version", "passages", "width", "shard_size")}
        source = typed(content, "source", dict, path)
        limits = {"passages": _MOST_PASSAGES, "width": _MOST_WIDTH, "shard_size": _MOST_PASSAGES}
        for name, limit in limits.items():
            if not 1 <= (numbers[name] or 0) <= limit:
                raise UserError(f"{path}: {name} is {numbers[name]}, and must be from 1 to {limit:,}; make the index again")
        if numbers["version"] != _VERSION or source is None:
            raise UserError(f"{path} is of another version of bertfam; make the index again")
        passages, width, shard_size = (numbers[name] or 0 for name in limits)
        return cls(Path(folder), passages, width, shard_size, source)

    def create(self) -> None:
        """Write the description, the first file of an index; an index of the same source is kept.

        Raises:
          UserError: if the folder holds another index, or cannot be written.
        """
        if (self.folder / NAME).exists():
            existing = Index.open(self.folder)
            names = ("source", "passages", "width", "shard_size")
            if different := [name for name in names if getattr(existing, name) != getattr(self, name)]:
                what = ", ".join(sorted(_differences(existing.source, self.source)) or different)
                raise UserError(f"{self.folder} holds the index of another {what}: name another folder, or remove it")
            return
        check_unused(self.folder)
        (self.folder / _SHARDS).mkdir(parents=True, exist_ok=True)
        numbers = {"version": _VERSION, "passages": self.passages, "width": self.width, "shard_size": self.shard_size}
        write_text(self.folder / NAME, json.dumps(numbers | {"source": self.source}, indent=2) + "\n")

    @property
    def shards(self) -> int:
        """Number of shards."""
        return -(-self.passages // self.shard_size)

    def size(self, shard: int) -> int:
        """Return the number of passages of a shard."""
        return min(self.shard_size, self.passages - shard * self.shard_size)

    def missing(self) -> list[int]:
        """Return the shards that are not there yet."""
        return [shard for shard in range(self.shards) if not self._path(shard, "json").exists()]

    def write_shard(self, shard: int, vectors: np.ndarray, texts: Sequence[str]) -> None:
        """Write a shard, with the file that completes it last.

        Args:
          shard: its number.
          vectors: float32[passages, width].
          texts: the texts of the passages.
        """
        stream = io.BytesIO()
        np.save(stream, vectors.astype("<f4"), allow_pickle=False)
        contents = {"npy": stream.getvalue(), "jsonl": "".join(json.dumps(text) + "\n" for text in texts).encode()}
        for ending, content in contents.items():
            write_bytes(self._path(shard, ending), content)
        digests = {ending: hashlib.sha256(content).hexdigest() for ending, content in contents.items()}
        write_text(self._path(shard, "json"), json.dumps(digests) + "\n")

    def check_complete(self) -> None:
        """Check that all shards are there, with the content that was written.

        Raises:
          UserError: if shards are missing or damaged.
        """
        check_subfolder(self.folder / _SHARDS)
        if missing := self.missing():
            raise UserError(
                f"{self.folder} lacks {len(missing)} of {plural(self.shards, 'shard')} ({listed(missing, _SHOWN)}): the same "
                "bertfam index command computes what is missing"
            )
        for shard in range(self.shards):
            digests = read_json(self._path(shard, "json"))
            for ending in ("npy", "jsonl"):
                path = self._path(shard, ending)
                check_file(path, None)
                if _sha256(path) != digests.get(ending):
                    raise UserError(
                        f"{path} is damaged: its content is not what was written; remove {self._path(shard, 'json').name} beside "
                        "it, and the same bertfam index command computes the shard again"
                    )

    def vectors(self, begin: int = 0, end: int | None = None) -> np.ndarray:
        """Read the vectors of the passages from `begin` up to `end`, by default of all: float32[passages, width].

        Raises:
          UserError: if a shard has another shape.
        """
        end = self.passages if end is None else end
        vectors = np.empty((end - begin, self.width), np.float32)
        for shard, part in self._parts(begin, end):
            path, first = self._path(shard, "npy"), shard * self.shard_size
            try:
                stored = np.load(path, mmap_mode="r", allow_pickle=False)
            except (OSError, ValueError) as error:
                raise UserError(f"{path} is damaged ({error}); make the index again") from error
            if (stored.shape, stored.dtype) != ((self.size(shard), self.width), np.dtype("<f4")):
                raise UserError(f"{path} has {stored.dtype}{list(stored.shape)}, and not the vectors that {NAME} states")
            vectors[first + part.start - begin : first + part.stop - begin] = stored[part]
        return vectors

    def texts(self, begin: int = 0, end: int | None = None) -> Iterator[str]:
        """Yield the texts of the passages from `begin` up to `end`, by default of all."""
        for shard, part in self._parts(begin, self.passages if end is None else end):
            yield from islice(self._texts(shard), part.start, None if part.stop == self.size(shard) else part.stop)

    def _parts(self, begin: int, end: int) -> Iterator[tuple[int, slice]]:
        """Yield the shards that have passages from `begin` up to `end`, and which of each shard's those are."""
        for shard in range(begin // self.shard_size, -(-end // self.shard_size)):
            first = shard * self.shard_size
            yield shard, slice(max(begin - first, 0), min(end - first, self.size(shard)))

    def texts_of(self, passages: Iterable[int]) -> dict[int, str]:
        """Return the texts of some passages by their numbers, which count from 0."""
        by_shard: dict[int, set[int]] = {}
        for passage in passages:
            by_shard.setdefault(passage // self.shard_size, set()).add(passage)
        texts: dict[int, str] = {}
        for shard, wanted in by_shard.items():
            begin = shard * self.shard_size
            texts |= {begin + place: text for place, text in enumerate(self._texts(shard)) if begin + place in wanted}
        return texts

    def _texts(self, shard: int) -> Iterator[str]:
        """Yield the texts of a shard."""
        path, count = self._path(shard, "jsonl"), 0
        with open(path, "rb") as file:
            for count, line in enumerate(file, 1):
                try:
                    text = parse_json(line)
                except ValueError as error:
                    raise UserError(f"{path}:{count}: the line is damaged ({error}); make the index again") from error
                if not isinstance(text, str):
                    raise UserError(f"{path}:{count}: the line is no JSON string; make the index again")
                yield text
        if count != self.size(shard):
            states = f"and {NAME} states {self.size(shard)}"
            raise UserError(f"{path} has {plural(count, 'passage')}, {states}; make the index again")

    def _path(self, shard: int, ending: str) -> Path:
        return self.folder / _SHARDS / f"{shard:05d}.{ending}"


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> set[str]:
    """Return the names whose values differ in two sources, such as "model"."""
    return {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}
