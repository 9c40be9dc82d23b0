"""Token cache: named corpora as flat ids with sentence and document starts, memory-mapped.

    DIRECTORY/cache.json          format, fingerprint, counts
    DIRECTORY/digests.json        digests by block of all files, see `digests`
    DIRECTORY/vocab/              the vocabulary of the ids
    DIRECTORY/CORPUS/SPLIT/FEATURE.bin            all values, concatenated
    DIRECTORY/CORPUS/SPLIT/FEATURE.offsets.bin    int64[documents + 1], the start of each document's values

A feature is any ragged sequence of integers per document. Running text has two: `tokens` (uint16 or uint32) and
`sentence_starts` (int64, positions in `tokens`); text with marked phrases and entities also has `units` (uint8, one per token,
without offsets of its own). Labelled text has `labels` (float32, without offsets): as many per document as "labels" in cache.json
says, or one per sentence with "labels_words": true. A corpus of pairs has "pairs": true in cache.json: its documents are two
sentences, inputs and targets, of which the inputs may be empty. The cache holds clean tokens, never noise. A single corpus is
named "text".

A machine copies a small cache in a bucket to $BERTFAM_CACHE (see `bertfam.storage.mirror`) and maps the copy: the same bytes, so
the same rows, at the speed of a disk. Shuffled rows are scattered over the ids, and each takes a request when read from the
bucket: 256 rows of 128 tokens took 291 ms from a store on the same machine, and 0.8 ms from the copy (2 cores, 2026-11-28). Of a
large cache a machine therefore keeps the blocks that it has read, up to a limit (see `ranged`).

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

from bertfam.data import vocabularies
from bertfam.data.corpora.corpus import SPLITS
from bertfam.data.token_cache import digests, ranged
from bertfam.data.token_cache.documents import Documents, StoredDocuments, Values
from bertfam.errors import UserError, warn
from bertfam.plurals import plural
from bertfam.storage.buckets import is_remote
from bertfam.storage.paths import check_whole, local, similar_path, to_path
from bertfam.storage.untrusted import check_file, check_subfolder, parse_json, read_bytes, shown

FORMAT = 2
_CACHE_DIR = re.compile(rb"""^TextData\.cache_dir\s*=[\s\\]*(["'])([^\n"'\\]+)\1""", re.MULTILINE)  # in a config.gin
# Types that builds write, by feature.
_DTYPES = {
    "tokens": ("uint16", "uint32"),
    "sentence_starts": ("int64",),
    "units": ("uint8",),
    "labels": ("float32",),
}


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
            raise UserError(f"{self.directory} holds no token cache (no cache.json); {_advice(self.directory)}")
        try:
            content = parse_json(read_bytes(manifest))
            version = content["format"]
            if version == FORMAT:
                self._fingerprint, self._corpora = dict(content["fingerprint"]), content["corpora"]
                has_digests = content.get("digests", False)
                _check_corpora(self._corpora)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            lacks = f"it has no {error}" if isinstance(error, KeyError) else "it has not the entries that a build writes"
            why = error if isinstance(error, ValueError) else lacks
            raise UserError(f"{manifest} is damaged ({why}); delete {self.directory} and build it again") from None
        if version != FORMAT:
            raise UserError(
                f"{self.directory} has cache format {version}, this version reads {FORMAT}; delete it and build it again"
            )
        if has_digests and not (self.directory / digests.NAME).is_file():
            raise UserError(f"{self.directory / digests.NAME} is missing; delete {self.directory} and build it again")
        for name, splits in self._corpora.items():
            for folder in (self.directory / name, *(self.directory / name / split for split in splits)):
                check_subfolder(folder)
        if not is_remote(self.directory):
            self._check_small_files(self.directory)

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

    def documents(self, split: str, corpus: str, vocabulary_size: int | None = None) -> Documents:
        """Map a split of a corpus into memory.

        Starts, which all rows need at once, are checked here, and tokens and units when they are first read.

        Args:
          split: the split.
          corpus: the name of the corpus.
          vocabulary_size: the least id that is refused; None refuses none.

        Raises:
          UserError: if a file is missing or damaged.
        """
        stored = self.stored_documents(split, corpus, vocabulary_size)
        counts, folder = self.counts(split, corpus), f"{corpus}/{split}"
        bounds = self._positions(folder, "offsets", counts["documents"] + 1, counts["sentences"])
        starts = self._positions(folder, "values", counts["sentences"] + 1, counts["tokens"])
        return Documents(**vars(stored) | {"sentence_starts": starts, "sentence_bounds": bounds})

    def stored_documents(self, split: str, corpus: str, vocabulary_size: int | None = None) -> StoredDocuments:
        """Map a split of a corpus into memory as `documents` does, and check starts as well when they are first read."""
        if self._digests is None:
            _warn_without_digests(self.directory)
        counts, folder = self.counts(split, corpus), f"{corpus}/{split}"
        bounds = self._stored_positions(folder, "offsets", counts["documents"] + 1, counts["sentences"])
        starts = self._stored_positions(folder, "values", counts["sentences"] + 1, counts["tokens"])
        dtypes = self._of(corpus)[split]["dtypes"]
        tokens = self._checked(folder, "tokens", dtypes["tokens"], counts["tokens"], vocabulary_size)
        units = self._checked(folder, "units", "uint8", counts["tokens"]) if "units" in dtypes else None
        width, labels_words = self.label_count(corpus), self.labels_words(corpus)
        labelled = width * counts["sentences" if labels_words else "documents"]
        labels = self._checked(folder, "labels", "float32", labelled) if width else None
        name = f"the {split} split of {self._called}" + (f" ({corpus})" if len(self.corpora) > 1 else "")
        return StoredDocuments(name, tokens, starts, bounds, units, self.has_pairs(corpus), labels, width, labels_words)

    @functools.cached_property
    def ranged_files(self) -> ranged.RangedFiles | None:
        """The files of a cache in a bucket that is read by ranges; None for any other cache."""
        ranged_files = ranged.open_ranged(self.directory) if is_remote(self.directory) else None
        if ranged_files:
            self._check_small_files(ranged_files.small_files)
        return ranged_files

    @functools.cached_property
    def _local(self) -> Path:
        """The folder of the cache, or the local copy of a cache in a bucket."""
        folder = local(self.directory)
        if folder != self.directory:
            self._check_small_files(folder)
        return folder

    @functools.cached_property
    def _digests(self) -> dict[str, digests.FileDigests] | None:
        return self.ranged_files.digests if self.ranged_files else digests.read(self._local)

    def has_pairs(self, corpus: str) -> bool:
        """Return True if the documents of a corpus are pairs of inputs and targets."""
        return any(split.get("pairs", False) for split in self._of(corpus).values())

    def label_count(self, corpus: str) -> int:
        """Return the number of labels of each document of a corpus; 0 if it is not labelled."""
        return max((split.get("labels", 0) for split in self._of(corpus).values()), default=0)

    def labels_words(self, corpus: str) -> bool:
        """Return True if the words of a labelled corpus have labels, and not its documents."""
        return any(split.get("labels_words", False) for split in self._of(corpus).values())

    def _of(self, corpus: str) -> dict[str, Any]:
        if corpus not in self._corpora:
            raise UserError(f"{self.directory} holds no text named {corpus}, only {', '.join(self.corpora)}")
        return self._corpora[corpus]

    def _check_small_files(self, folder: Path) -> None:
        """Check the description and the vocabulary, which every reader reads as a whole."""
        recorded = digests.read(folder)
        for name in recorded or ():
            if name == "cache.json" or name.startswith("vocab/"):
                digests.check_file(folder, name, recorded or {})

    def _positions(self, folder: str, part: str, count: int, end: int) -> np.ndarray:
        """Map positions that rise from 0 to `end`; digests alone would not tell a cache that somebody made to harm."""
        name = feature_path(Path(folder), "sentence_starts", part).as_posix()
        base = self.ranged_files.copy_of(name) if self.ranged_files else self._local
        positions = self._map(base, name, "int64", count)
        if self._digests is not None:
            digests.check_file(base, name, self._digests)
        if positions[0] != 0 or positions[-1] != end or (positions[1:] < positions[:-1]).any():
            raise UserError(
                f"{base / name} is damaged: its positions do not rise from 0 to {end}; delete {self.directory} and build it again"
            )
        return positions

    def _stored_positions(self, folder: str, part: str, count: int, end: int) -> Values:
        """Open positions that rise from 0 to `end`, whose blocks are checked when they are first read."""
        name = feature_path(Path(folder), "sentence_starts", part).as_posix()
        positions: Values
        if self.ranged_files:
            positions = self.ranged_files.positions(name, count, end)
        else:
            self._path(self._local, name, "int64", count)
            entry = None if self._digests is None else digests.entry_of(self._local, name, self._digests)
            positions = digests.CheckedPositions(self._local, name, count, end, entry)
        positions[count - 1 : count]
        return positions

    def _checked(self, folder: str, feature: str, dtype: str, count: int, limit: int | None = None) -> Values:
        """Map or open a feature whose blocks are checked when they are first read."""
        name = feature_path(Path(folder), feature, "values").as_posix()
        if self.ranged_files:
            return self.ranged_files.values(name, dtype, count, limit)
        values = self._map(self._local, name, dtype, count)
        entry = None if self._digests is None else digests.entry_of(self._local, name, self._digests)
        return digests.CheckedArray(self._local, name, values, entry, limit)

    def _map(self, folder: Path, name: str, dtype: str, count: int) -> np.ndarray:
        path = self._path(folder, name, dtype, count)
        # An empty file cannot be mapped.
        return np.memmap(path, dtype, "r", shape=(count,)).view(np.ndarray) if count else np.zeros(0, dtype)

    def _path(self, folder: Path, name: str, dtype: str, count: int) -> Path:
        """Return the path of a file in a local folder, which has the size of `count` values."""
        path = folder / name
        expected = count * np.dtype(dtype).itemsize
        size = path.stat().st_size if path.is_file() else -1
        if size != expected:
            state = "is missing" if size < 0 else f"has {plural(size, 'byte')} instead of {expected}"
            raise UserError(f"{path} {state}; delete {self.directory} and build it again")
        check_file(path, max_bytes=None)
        return path


@functools.lru_cache(maxsize=64)
def _warn_without_digests(directory: Path) -> None:
    """Warn, once for each cache."""
    warn([f"{directory} has no digests, so damage goes unnoticed; bertfam cache --verify --output={directory} adds them"])


def feature_path(directory: Path, feature: str, part: str) -> Path:
    """Return the path of a feature's "values" or "offsets" in the folder of a split."""
    return directory / (f"{feature}.bin" if part == "values" else f"{feature}.{part}.bin")


def check_names(corpora: Iterable[str]) -> None:
    """Raise UserError for a name of a corpus that cannot be a folder of its own in a cache."""
    for name in corpora:
        if not _is_name(name):
            raise UserError(f"{name!r} cannot be the name of a corpus: use letters, digits, _ . - and no name that a cache uses")


def _advice(directory: Path) -> str:
    """Return what to name in place of a folder that holds no cache, which may be a model folder."""
    if (directory / "cache" / "cache.json").is_file():
        return f"it is a model folder, so name {directory / 'cache'}"
    config = directory / "config.gin"
    if config.is_file() and (match := _CACHE_DIR.search(read_bytes(config))):
        return f"it is a model folder, whose run read the cache {match[2].decode(errors='replace')!r}: name that"
    if around := next((parent for parent in directory.parents[:2] if (parent / "cache.json").is_file()), None):
        return f"it is in the token cache {around}: name that"
    if vocabularies.is_vocabulary(directory):
        return "it is a vocabulary, for --vocab; build a cache with `bertfam cache`"
    similar = None if is_remote(directory) or directory.exists() else similar_path(directory, is_folder=True)
    return f"did you mean {similar}?" if similar else "build one with `bertfam cache`"


def _check_corpora(corpora: dict[str, Any]) -> None:
    """Raise ValueError, KeyError, TypeError or AttributeError for entries of cache.json that no build writes."""
    if not corpora:
        raise ValueError("it names no corpora")
    for name, splits in corpora.items():
        if not _is_name(name):
            raise ValueError(f"{shown(name)} is no name of a corpus")
        if missing := [split for split in SPLITS if split not in splits]:
            raise ValueError(f"the split {missing[0]} of {name} is missing")
        for split, entry in splits.items():
            counts = [entry["counts"][count] for count in ("documents", "sentences", "tokens")]
            # None: a part of the cache is by an earlier version, which did not count it.
            counts += [count for count in entry["counts"].values() if count is not None]
            counts.append(entry.get("labels", 0))
            has_dtypes = all(dtype in _DTYPES.get(feature, ()) for feature, dtype in entry["dtypes"].items())
            if not _is_name(split) or not all(type(count) is int and count >= 0 for count in counts) or not has_dtypes:
                raise ValueError(f"the split {shown(split)} of {name} has impossible counts or dtypes")


def _is_name(name: str) -> bool:
    return bool(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name)) and name.lower() not in ("vocab", "cache.json")


def check_fingerprint(cache: TokenCache, expected: dict[str, Any]) -> None:
    """Raise UserError, with the first difference, if a cache was built from something else."""
    if cache.fingerprint != expected:
        given = "vocabulary" if cache.fingerprint.get("corpora") == expected.get("corpora") else "text"
        fix = f"delete it to rebuild it, choose another folder, or name no {given} to use it as it is"
        model_dir = cache.directory.parent
        if cache.directory.name == "cache" and (model_dir / "config.gin").is_file():  # the run cannot resume without it
            fix = (
                f"a run keeps its {given}: name no {given}, or start a new run from this one by --init_from={model_dir} and "
                "another --model_dir"
            )
        raise UserError(f"{cache.directory} was built from something else ({difference(cache.fingerprint, expected)}); {fix}")


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
    text = plural(len(value), "entry", "entries") if isinstance(value, list | dict) else json.dumps(value)
    return text if len(text) <= 40 else f"{text[:16]}..."
