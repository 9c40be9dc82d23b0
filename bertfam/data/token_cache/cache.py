"""Token cache: named corpora as flat ids with sentence and document starts, memory-mapped.

    DIRECTORY/cache.json          format, fingerprint, counts
    DIRECTORY/vocab/              the vocabulary of the ids
    DIRECTORY/CORPUS/SPLIT/FEATURE.bin            all values, concatenated
    DIRECTORY/CORPUS/SPLIT/FEATURE.offsets.bin    int64[documents + 1], the start of each document's values

A feature is any ragged sequence of integers per document. Running text has two: `tokens` (uint16 or uint32) and
`sentence_starts` (int64, positions in `tokens`); text with marked phrases and entities also has `units` (uint8, one per token,
without offsets of its own). A corpus of pairs has "pairs": true in cache.json: its documents are two sentences, inputs and
targets, of which the inputs may be empty. The cache holds clean tokens, never noise. A single corpus is named "text".

A machine copies a cache in a bucket to $BERTFAM_CACHE (see `bertfam.storage.mirror`) and maps the copy: the same bytes, so the
same rows, at the speed of a disk. Shuffled rows are scattered over the ids, and each takes a request when read from the bucket:
256 rows of 128 tokens took 291 ms from a store on the same machine, and 0.8 ms from the copy (2 cores, 2026-11-28).

The offline cache of seqio 0.0.20 (`seqio.scripts.cache_tasks_main`, TFRecord files) is not used: it is read in
order, and tf.data needs 26 s to skip to step 5,000, where this cache seeks in 1.4 ms.
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
        """Open a cache.

        Args:
          directory: the folder, local or in a bucket.
          called: the name of the cache in messages; by default its folder.

        Raises:
          UserError: if the folder holds no cache, an incomplete one, or one of another format.
        """
        self.directory = to_path(directory)
        self._called = called or str(directory)
        check_whole(self.directory)
        manifest = self.directory / "cache.json"
        if not manifest.is_file():
            raise UserError(f"{self.directory} holds no token cache (no cache.json); build one with `bertfam cache`")
        try:
            content = json.loads(manifest.read_text())
            version = content["format"]
            if version == FORMAT:
                self._fingerprint, self._corpora = content["fingerprint"], content["corpora"]
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{manifest} is damaged ({error}); delete {self.directory} and build it again") from None
        if version != FORMAT:
            raise UserError(
                f"{self.directory} has cache format {version}, this version reads {FORMAT}; delete it and build it again"
            )

    @property
    def fingerprint(self) -> dict[str, Any]:
        """Everything that determines the tokens, as JSON."""
        return self._fingerprint

    @property
    def vocabulary_directory(self) -> Path:
        """The folder of the vocabulary of the ids."""
        return self.directory / "vocab"

    @property
    def corpora(self) -> tuple[str, ...]:
        """The names of the corpora, in the order of the build."""
        return tuple(self._corpora)

    def counts(self, split: str, corpus: str | None = None) -> dict[str, int]:
        """Return the counts of a split, of one corpus or (with None) of all corpora together.

        The counts are `documents`, `sentences`, `tokens`, `skipped_documents`, and `words` and `bytes` of the text (see
        `tokenize.Block`), except that the last two are missing if an earlier version has built a part of the cache.
        """
        if corpus is not None:
            return {name: count for name, count in self._of(corpus)[split]["counts"].items() if count is not None}
        by_corpus = [self.counts(split, name) for name in self.corpora]
        names = [name for name in by_corpus[0] if all(name in counts for counts in by_corpus)]
        return {name: sum(counts[name] for counts in by_corpus) for name in names}

    def documents(self, split: str, corpus: str) -> Documents:
        """Map a split of a corpus into memory."""
        counts, folder = self.counts(split, corpus), self._local / corpus / split
        sentences = self._map(folder, "sentence_starts", "offsets", "int64", counts["documents"] + 1)
        starts = self._map(folder, "sentence_starts", "values", "int64", counts["sentences"] + 1)
        dtypes = self._of(corpus)[split]["dtypes"]
        tokens = self._map(folder, "tokens", "values", dtypes["tokens"], counts["tokens"])
        units = self._map(folder, "units", "values", "uint8", counts["tokens"]) if "units" in dtypes else None
        name = f"the {split} split of {self._called}" + (f" ({corpus})" if len(self.corpora) > 1 else "")
        return Documents(name, tokens, starts, sentences, units, self.has_pairs(corpus))

    @functools.cached_property
    def _local(self) -> Path:
        """The folder of the cache, or the local copy of a cache in a bucket."""
        return local(self.directory)

    def has_pairs(self, corpus: str) -> bool:
        """Return True if the documents of a corpus are pairs of inputs and targets."""
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
    """Return the path of a feature's "values" or "offsets" in the folder of a split."""
    return directory / (f"{feature}.bin" if part == "values" else f"{feature}.{part}.bin")


def check_names(corpora: Iterable[str]) -> None:
    """Raise UserError for a name of a corpus that cannot be a folder of its own in a cache."""
    for name in corpora:
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name) or name.lower() in ("vocab", "cache.json"):
            raise UserError(f"{name!r} cannot be the name of a corpus: use letters, digits, _ . - and no name that a cache uses")


def check_fingerprint(cache: TokenCache, expected: dict[str, Any]) -> None:
    """Raise UserError, with the first difference, if a cache was built from something else."""
    if cache.fingerprint != expected:
        raise UserError(
            f"{cache.directory} was built from something else ({difference(cache.fingerprint, expected)}); delete it to "
            "rebuild it, choose another folder, or name no text to use it as it is"
        )


def difference(old: Any, new: Any, path: str = "") -> str:
    """Describe the first difference between two JSON values."""
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
