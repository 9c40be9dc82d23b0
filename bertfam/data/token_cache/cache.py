"""The token cache: named corpora as flat ids with sentence and document starts, memory-mapped.

    DIRECTORY/cache.json          format, fingerprint, counts
    DIRECTORY/vocab/              the vocabulary of the ids
    DIRECTORY/CORPUS/SPLIT/FEATURE.bin            all values, one after another
    DIRECTORY/CORPUS/SPLIT/FEATURE.offsets.bin    int64[documents + 1], where each document's values begin

A feature is any ragged sequence of integers per document. Running text has two: `tokens` (uint16 or uint32) and
`sentence_starts` (int64, places in `tokens`); text whose phrases and entities are marked has `units` too (uint8, one of each
token, without offsets of their own). A corpus of pairs says so in cache.json ("pairs": true): its documents are two sentences,
inputs and targets, the first of which may be empty. The cache holds clean tokens, never noise. A corpus that is alone is named
"text".

Of a cache in a bucket each machine makes itself a copy under $BERTFAM_CACHE (see `buckets.mirror`) and maps that: the same bytes,
so the same rows, at a disk's speed. Shuffled rows lie anywhere in the ids, and reading them from the bucket takes a request each:
256 rows of 128 tokens took 291 ms from a store on the same machine, and 0.8 ms from the copy (2 cores, 2026-11-28).
"""

import functools
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from bertfam.data.token_cache.documents import Documents
from bertfam.errors import UserError
from bertfam.storage.paths import check_whole, local, to_path

FORMAT = 2


class TokenCache:
    """A built cache, opened for reading."""

    def __init__(self, directory: str | Path, called: str | None = None) -> None:
        """Opens DIRECTORY, which messages call so; raises UserError where it is no cache, of another format, or not whole."""
        self.directory = to_path(directory)
        self._called = called or str(directory)
        check_whole(self.directory)
        manifest = self.directory / "cache.json"
        if not manifest.is_file():
            raise UserError(f"{self.directory} holds no token cache (no cache.json); build one with `bertfam cache`")
        try:
            content = json.loads(manifest.read_text())
            found = content["format"]
            if found == FORMAT:
                self._fingerprint, self._corpora = content["fingerprint"], content["corpora"]
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{manifest} is damaged ({error}); delete {self.directory} and build it again") from None
        if found != FORMAT:
            raise UserError(
                f"{self.directory} has cache format {found}, this version reads {FORMAT}; delete it and build it again"
            )

    @property
    def fingerprint(self) -> dict[str, Any]:
        """What the tokens depend on."""
        return self._fingerprint

    @property
    def vocabulary_directory(self) -> Path:
        """The vocabulary that made the ids."""
        return self.directory / "vocab"

    @property
    def corpora(self) -> tuple[str, ...]:
        """The names of the corpora, in the order in which they were given."""
        return tuple(self._corpora)

    def counts(self, split: str, corpus: str | None = None) -> dict[str, int]:
        """`documents`, `sentences`, `tokens` and `skipped_documents` of a split of one corpus; None: of all together.

        `words` and `bytes` of the text too (see `cache_tokens.Block`), unless an earlier version has built some of it.
        """
        if corpus is not None:
            return {name: count for name, count in self._of(corpus)[split]["counts"].items() if count is not None}
        each = [self.counts(split, name) for name in self.corpora]
        return {name: sum(counts[name] for counts in each) for name in each[0] if all(name in counts for counts in each)}

    def documents(self, split: str, corpus: str) -> Documents:
        """Maps a split of a corpus into memory."""
        counts, folder = self.counts(split, corpus), self._here / corpus / split
        sentences = self._map(folder, "sentence_starts", "offsets", "int64", counts["documents"] + 1)
        starts = self._map(folder, "sentence_starts", "values", "int64", counts["sentences"] + 1)
        dtypes = self._of(corpus)[split]["dtypes"]
        tokens = self._map(folder, "tokens", "values", dtypes["tokens"], counts["tokens"])
        units = self._map(folder, "units", "values", "uint8", counts["tokens"]) if "units" in dtypes else None
        name = f"the {split} split of {self._called}" + (f" ({corpus})" if len(self.corpora) > 1 else "")
        return Documents(name, tokens, starts, sentences, units, self.has_pairs(corpus))

    @functools.cached_property
    def _here(self) -> Path:
        """The cache, or of one in a bucket its copy on this machine."""
        return local(self.directory)

    def has_pairs(self, corpus: str) -> bool:
        """Whether the documents of a corpus are pairs of inputs and targets."""
        return any(split.get("pairs", False) for split in self._of(corpus).values())

    def _of(self, corpus: str) -> dict[str, Any]:
        if corpus not in self._corpora:
            raise UserError(f"{self.directory} holds no text named {corpus}, only {', '.join(self.corpora)}")
        return self._corpora[corpus]

    def _map(self, folder: Path, feature: str, part: str, dtype: str, count: int) -> np.ndarray:
        path = feature_path(folder, feature, part)
        expected = count * np.dtype(dtype).itemsize
        size = path.stat().st_size if path.is_file() else -1
        if size != expected:
            state = "is missing" if size < 0 else f"has {size} bytes instead of {expected}"
            raise UserError(f"{path} {state}; delete {self.directory} and build it again")
        # An empty file cannot be mapped.
        return np.memmap(path, dtype, "r", shape=(count,)).view(np.ndarray) if count else np.zeros(0, dtype)


def feature_path(directory: Path, feature: str, part: str) -> Path:
    """Where a split keeps a feature's "values" or "offsets"."""
    return directory / (f"{feature}.bin" if part == "values" else f"{feature}.{part}.bin")


def check_names(corpora: Iterable[str]) -> None:
    """Raises UserError for a name of a corpus that cannot be a folder of its own in a cache."""
    for name in corpora:
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name) or name.lower() in ("vocab", "cache.json"):
            raise UserError(f"{name!r} cannot be the name of a corpus: use letters, digits, _ . - and no name that a cache uses")


def check_fingerprint(cache: TokenCache, expected: dict[str, Any]) -> None:
    """Refuses a cache that was built from something else, naming what differs."""
    if cache.fingerprint != expected:
        raise UserError(
            f"{cache.directory} was built from something else ({difference(cache.fingerprint, expected)}); delete it to build "
            "it anew, choose another folder, or name no text to use it as it is"
        )


def difference(old: Any, new: Any, path: str = "") -> str:
    """Names the first place where two JSON values differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys(), key=lambda key: (key != "kind", key)):
            if old.get(key) != new.get(key):
                return difference(old.get(key), new.get(key), f"{path}.{key}" if path else key)
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (before, now) in enumerate(zip(old, new, strict=True)):
            if before != now:
                name = before.get("name", index) if isinstance(before, dict) else index
                return difference(before, now, f"{path}[{name}]")
    return f"{path} was {_short(old)} and is {_short(new)} now"


def _short(value: Any) -> str:
    text = f"{len(value)} entries" if isinstance(value, list | dict) else json.dumps(value)
    return text if len(text) <= 40 else f"{text[:16]}..."
