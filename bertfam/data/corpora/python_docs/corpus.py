"""The embedded corpus: docstrings of installed Python packages, so that no text has to be downloaded.

The docstrings of the standard library, NumPy, SciPy, JAX, TensorFlow and the other dependencies of bertfam are English text,
technical and repetitive: enough to see a model learn, not enough for a good one. No package is imported: source files are found
on the path and parsed. They are extracted once, in worker processes, into a cache folder that is named by the versions of
everything that the text depends on.

A document is a source file. Whole packages and modules are held out for validation. Since packages copy each other's docstrings,
a docstring is dropped if at least half of its sentences occurred before, and a training sentence if a held-out package has it.
"""

import gzip
import hashlib
import importlib.metadata
import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from typing_extensions import override

from bertfam.data.corpora.corpus import SPLITS, Corpus
from bertfam.data.corpora.formats import read_documents
from bertfam.data.corpora.python_docs import docstrings
from bertfam.data.corpora.python_docs.packages import HELD_OUT, PACKAGES, Source, find_package, find_sources, version
from bertfam.errors import UserError, is_terminal
from bertfam.plurals import plural
from bertfam.storage.files import check_writable, new_folder
from bertfam.storage.paths import cache_root
from bertfam.storage.untrusted import read_json
from bertfam.subprocesses import command, cores, environment

_CHUNK_BYTES = 3 << 20  # bytes of source per worker process
_SEEN_SHARE = 0.5


@dataclass(frozen=True)
class PythonDocs(Corpus):
    """The embedded corpus as a `Corpus`; the first use extracts it, in well under a minute.

    Attributes:
      directory: cache folder; by default $BERTFAM_CACHE, else $XDG_CACHE_HOME/bertfam, else ~/.cache/bertfam.
      packages: pairs of a folder on the path (with slashes) and the distribution whose version counts.
      held_out: packages, or first-level modules or files as "package/name", of the validation split.
      search_path: folders in which packages are searched; by default `sys.path`.
    """

    directory: str = ""
    packages: tuple[tuple[str, str], ...] = tuple(PACKAGES.items())
    held_out: tuple[str, ...] = HELD_OUT
    search_path: tuple[str, ...] = ()

    @override
    def texts(self, split: str) -> Iterator[list[str]]:
        # A document is the sentences of a source file.
        if split not in SPLITS:
            raise ValueError(f"split is {split!r}, but must be one of {SPLITS}")
        return read_documents(self.extract() / f"{split}.txt.gz")

    @override
    def fingerprint(self) -> dict[str, Any]:
        folders = self._folders()
        return {
            "kind": "python_docs",
            "extractor": docstrings.VERSION,
            "sentencex": importlib.metadata.version("sentencex"),
            "held_out": list(self.held_out),
            "packages": {name: version(dist) for name, dist in self.packages if name in folders},
        }

    def extract(self) -> Path:
        """Return the folder with train.txt.gz, validation.txt.gz ("sentences" format) and manifest.json; extract it if missing.

        The folder is complete or absent; several processes may call this at once.

        Raises:
          UserError: if the cache folder cannot be written.
        """
        digest = hashlib.sha256(json.dumps(self.fingerprint(), sort_keys=True).encode()).hexdigest()[:16]
        target = cache_root(self.directory) / "python_docs" / digest
        if _is_complete(target):
            return target
        shutil.rmtree(target, ignore_errors=True)  # remove an incomplete folder
        try:
            check_writable(target)
            with new_folder(target, first_wins=True) as partial:
                self._write(partial)
        except UserError as error:
            raise UserError(f"{error}, by setting BERTFAM_CACHE") from error
        return target

    def _folders(self) -> dict[str, Path]:
        """Return the folders of the installed packages."""
        folders = {name: find_package(name, self.search_path) for name, _ in self.packages}
        return {name: folder for name, folder in folders.items() if folder is not None}

    def _write(self, folder: Path) -> None:
        begin = time.monotonic()
        folders = self._folders()
        sources = [source for name, root in folders.items() for source in find_sources(name, root)]
        # Held-out files come first, so that sentences which others share with them are dropped from the training text.
        sources.sort(key=lambda source: (self._held_out_name(source) is None, source.name))
        print(f"python_docs: extracting the docstrings of {plural(len(sources), 'file')}, once", file=sys.stderr, flush=True)
        tally = _Tally()
        with (
            gzip.open(folder / "validation.txt.gz", "wt", encoding="utf-8", compresslevel=5) as validation,
            gzip.open(folder / "train.txt.gz", "wt", encoding="utf-8", compresslevel=5) as train,
        ):
            for source, extracted in _extract(sources):
                held_out = self._held_out_name(source)
                tally.add(held_out or source.package, extracted, held_out is not None, validation if held_out else train)
        manifest = {
            "fingerprint": self.fingerprint(),
            "absent": [name for name, _ in self.packages if name not in folders],
            "files": {f"{split}.txt.gz": (folder / f"{split}.txt.gz").stat().st_size for split in SPLITS},
            **tally.summary(),
        }
        (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
        sizes = manifest["splits"]
        shown = ", ".join(
            f"{split} {plural(counts['documents'], 'document')}, {plural(counts['sentences'], 'sentence')}, "
            f"{counts['bytes'] / 1e6:.1f} MB"
            for split, counts in sizes.items()
        )
        print(f"python_docs: {shown}, in {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)

    def _held_out_name(self, source: Source) -> str | None:
        return next((name for name in (source.package, source.unit) if name in self.held_out), None)


class _Tally:
    """Writer of documents that drops repeated sentences and counts."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._held_out: set[int] = set()
        self._splits: dict[str, Counter[str]] = {split: Counter() for split in SPLITS}
        self._packages: dict[str, Counter[str]] = {}
        self._dropped: Counter[str] = Counter(unparsable_files=0, docstrings=0, sentences=0)

    def add(self, name: str, extracted: list[list[str]] | None, held_out: bool, file: TextIO) -> None:
        """Write the document of a source file, counted under `name`, from the result of `docstrings.sentences_of`."""
        if extracted is None:
            self._dropped["unparsable_files"] += 1
        document = [sentence for sentences in extracted or () for sentence in self._fresh(sentences, held_out)]
        if not document:
            return
        text = "\n".join(document) + "\n\n"
        file.write(text)
        counts = {"documents": 1, "sentences": len(document), "bytes": len(text.encode())}
        self._splits["validation" if held_out else "train"].update(counts)
        self._packages.setdefault(name, Counter()).update(counts)

    def summary(self) -> dict[str, Any]:
        """Return the counts of the splits, of the packages, and of the dropped text."""
        return {"splits": self._splits, "packages": self._packages, "dropped": self._dropped}

    def _fresh(self, sentences: list[str], held_out: bool) -> list[str]:
        keys = [_key(sentence) for sentence in sentences]
        old = sum(key in self._seen for key in keys)
        if old >= _SEEN_SHARE * len(keys):
            fresh = []
        elif held_out:
            fresh = sentences
        else:
            fresh = [sentence for sentence, key in zip(sentences, keys, strict=True) if key not in self._held_out]
        self._dropped["docstrings"] += not fresh
        self._dropped["sentences"] += len(sentences) - len(fresh)
        self._seen.update(keys)
        if held_out:
            self._held_out.update(keys)
        return fresh


def _key(sentence: str) -> int:
    """Return a hash of the letters of a sentence, ignoring case and all other characters."""
    letters = "".join(filter(str.isalpha, sentence.lower()))
    return int.from_bytes(hashlib.blake2b(letters.encode(), digest_size=8).digest(), "big")


def _extract(sources: list[Source]) -> Iterator[tuple[Source, list[list[str]] | None]]:
    """Yield the sources with the sentences of their docstrings, in order, with progress."""
    from tqdm import tqdm

    chunks: list[list[Source]] = [[]]
    for source in sources:
        if sum(other.size for other in chunks[-1]) > _CHUNK_BYTES:
            chunks.append([])
        chunks[-1].append(source)
    progress = tqdm(total=len(sources), unit=" files", desc="python_docs", disable=not is_terminal(sys.stderr), leave=False)
    with ThreadPoolExecutor(min(cores(), 8)) as pool, progress:
        for chunk, extracted in zip(chunks, pool.map(_extract_chunk, chunks), strict=True):
            yield from zip(chunk, extracted, strict=True)
            progress.update(len(chunk))


def _extract_chunk(chunk: list[Source]) -> list[list[list[str]] | None]:
    worker = subprocess.run(
        command(docstrings.__name__),
        input=json.dumps([str(source.path) for source in chunk]),
        stdout=subprocess.PIPE,
        encoding="utf-8",
        check=True,
        env=environment(),
    )
    return [json.loads(line) for line in worker.stdout.splitlines()]


def _is_complete(folder: Path) -> bool:
    try:
        files = read_json(folder / "manifest.json")["files"]
        return all((folder / name).stat().st_size == size for name, size in files.items())
    except (OSError, UserError, KeyError):
        return False
