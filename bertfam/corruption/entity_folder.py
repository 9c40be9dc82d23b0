"""Folder of known entities: the pieces of their names, and a vector of each. `bertfam entities` writes it."""

import functools
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertfam.corruption import keys
from bertfam.errors import UserError
from bertfam.storage.paths import to_path
from bertfam.storage.untrusted import parse_json, read_bytes

FORMAT = 1
_LIST, _VECTORS = "entities.json", "vectors.npy"
_SEED = 0x656E7469


@dataclass(frozen=True, eq=False)
class EntityFolder:
    """Entities with ids from 1; 0 stands for none.

    Attributes:
      path: The folder, for messages.
      vocabulary_size: Number of ids of the vocabulary that the names are written in.
      vocabulary_digest: Digest of its pieces.
      names: The name of each entity.
      pieces: The token ids of each name.
      counts: Occurrences of each name in the text.
      vectors: float32[entities + 1, size]; the first row is 0.
    """

    path: str
    vocabulary_size: int
    vocabulary_digest: str
    names: tuple[str, ...]
    pieces: tuple[tuple[int, ...], ...]
    counts: tuple[int, ...]
    vectors: np.ndarray

    def __len__(self) -> int:
        return len(self.names)

    def find(self, tokens: np.ndarray, row: np.ndarray, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Return the ids of the entities with these names: int64[mentions], 0 where there is none.

        Args:
          tokens: int[n, length].
          row: int64[mentions], the row of each name.
          begin: int64[mentions], its first token.
          end: int64[mentions], the token after its last.
        """
        hashes, ids = self._sorted
        mine = _hashes(tokens, row, begin, end)
        place = np.minimum(np.searchsorted(hashes, mine), len(hashes) - 1)
        return np.where(hashes[place] == mine, ids[place], 0)

    def check_size(self, size: int) -> None:
        """Raise UserError if a vocabulary of `size` ids is not the one of the names."""
        if size != self.vocabulary_size:
            raise UserError(
                f"{self.path} has names in the pieces of a vocabulary of {self.vocabulary_size:,}, and that of the text has "
                f"{size:,}: make it again with `bertfam entities` from this text's token cache"
            )

    @functools.cached_property
    def _sorted(self) -> tuple[np.ndarray, np.ndarray]:
        """Hashes of the names, ascending uint64[entities], and their ids int64[entities]."""
        sizes = np.array([len(pieces) for pieces in self.pieces])
        tokens = np.zeros((len(self), sizes.max()), np.int64)
        for number, pieces in enumerate(self.pieces):
            tokens[number, : len(pieces)] = pieces
        hashes = _hashes(tokens, np.arange(len(self)), np.zeros(len(self), np.int64), sizes)
        order = np.argsort(hashes)
        return hashes[order], order + 1


def _hashes(tokens: np.ndarray, row: np.ndarray, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return a hash of the pieces of each name, and of their number: uint64[mentions].

    Of a million names in a text of a billion, one in 2^24 texts has two with the same hash.
    """
    sizes = end - begin
    result = keys.fold(_SEED, sizes)
    for place in range(sizes.max(initial=0)):
        longer = np.flatnonzero(sizes > place)
        result[longer] = keys.fold(result[longer], tokens[row[longer], begin[longer] + place])
    return result


def with_no_entity(vectors: np.ndarray) -> np.ndarray:
    """Return vectors float32[entities, size] below a row of zeros: float32[entities + 1, size]."""
    return np.concatenate([np.zeros((1, vectors.shape[1]), np.float32), vectors])


def write_entities(path: Path, folder: EntityFolder) -> None:
    """Write the files of a folder into an empty one."""
    np.save(path / _VECTORS, folder.vectors.astype("<f4"), allow_pickle=False)
    entities = [
        {"name": name, "pieces": pieces, "count": count}
        for name, pieces, count in zip(folder.names, folder.pieces, folder.counts, strict=True)
    ]
    vocabulary = {"size": folder.vocabulary_size, "digest": folder.vocabulary_digest}
    content = {"format": FORMAT, "vocabulary": vocabulary, "entities": entities}
    (path / _LIST).write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


@functools.lru_cache(maxsize=8)
def read_entities(path: str | None) -> EntityFolder:
    """Read a folder; raise UserError where none is named, or it is none or damaged."""
    if path is None:
        raise UserError("no folder of entities is named: --gin.ENTITIES='\"DIR\"', made by `bertfam entities`")
    listed = to_path(path) / _LIST
    if not listed.is_file():
        raise UserError(f"{path} is no folder of entities ({_LIST} is missing): make one with `bertfam entities`")
    try:
        content = parse_json(read_bytes(listed))
        if content["format"] != FORMAT:
            raise UserError(f"{listed} has format {content['format']}, this version reads {FORMAT}: make it again")
        return _read(path, content, np.load(io.BytesIO(read_bytes(to_path(path) / _VECTORS)), allow_pickle=False))
    except (ValueError, KeyError, TypeError, AttributeError, OSError, EOFError) as error:
        raise UserError(f"{path} is damaged ({type(error).__name__}: {error}): make it again with `bertfam entities`") from None


def _read(path: str, content: dict[str, Any], vectors: np.ndarray) -> EntityFolder:
    """Return the folder of the content of its files; raise an error of Python where they clash."""
    size, entities = int(content["vocabulary"]["size"]), content["entities"]
    pieces: list[Sequence[int]] = [tuple(map(int, entity["pieces"])) for entity in entities]
    if not entities or vectors.ndim != 2 or len(vectors) != len(entities) + 1 or vectors.dtype != np.float32:
        raise ValueError(f"{len(entities)} entities and vectors {vectors.dtype}{list(vectors.shape)}")
    if not np.isfinite(vectors).all() or vectors[0].any():
        raise ValueError("vectors that are not finite, or a first one that is not 0")
    if any(not name or not all(0 <= piece < size for piece in name) for name in pieces):
        raise ValueError(f"a name without pieces, or with one that is not in 0 .. {size - 1}")
    return EntityFolder(
        path,
        size,
        str(content["vocabulary"]["digest"]),
        tuple(str(entity["name"]) for entity in entities),
        tuple(tuple(name) for name in pieces),
        tuple(int(entity["count"]) for entity in entities),
        vectors,
    )
