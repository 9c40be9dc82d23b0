"""Token cache builds from named corpora: a cache is complete or absent."""

import hashlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bertfam.data.corpora.corpus import SPLITS, Corpus
from bertfam.data.corpora.document_batches import batches
from bertfam.data.parallel.worker_pool import WorkerPool
from bertfam.data.token_cache.build_folder import BuildFolder, clear_finished, open_build_folder
from bertfam.data.token_cache.cache import FORMAT, TokenCache, check_fingerprint, check_names, difference
from bertfam.data.token_cache.progress import Progress
from bertfam.data.token_cache.tokenize import Tokeniser, token_dtype
from bertfam.data.token_cache.writer import Counts, SplitWriter
from bertfam.data.vocabularies import Vocabulary
from bertfam.errors import UserError
from bertfam.plurals import plural
from bertfam.storage import buckets, locks
from bertfam.storage.buckets import is_remote
from bertfam.storage.files import is_used
from bertfam.storage.paths import cache_root, to_path

_RECORD_SECONDS = 0.25  # the least time between two records of progress
_RECORD_SHARE = 0.05  # the largest share of the time spent on records, however slow the disk is

# Writes the splits of a corpus into a build folder: (folder, name, corpus, label in messages) -> the counts of each split.
CorpusWriter = Callable[[BuildFolder, str, Corpus, str], dict[str, Counts]]


def fingerprint(corpora: Mapping[str, Corpus], vocabulary: Vocabulary) -> dict[str, Any]:
    """Return everything that determines the cache of these corpora with this vocabulary, as JSON."""
    return {
        "corpora": {name: corpus.fingerprint() for name, corpus in corpora.items()},
        "vocabulary": vocabulary.fingerprint,
    }


def check_sources(cache: TokenCache, corpora: Mapping[str, Corpus] | None, vocabulary: Vocabulary | None) -> None:
    """Raise UserError, with the first difference, if a cache is of other text or another vocabulary; None is not compared."""
    given = {
        "corpora": (
            {name: corpus.fingerprint() for name, corpus in corpora.items()} if corpora else cache.fingerprint["corpora"]
        ),
        "vocabulary": vocabulary.fingerprint if vocabulary else cache.fingerprint["vocabulary"],
    }
    check_fingerprint(cache, given)


def build(
    corpora: Mapping[str, Corpus],
    vocabulary: Vocabulary,
    directory: str | Path,
    *,
    least_documents: int = 1,
    processes: int = 0,
) -> TokenCache:
    """Tokenise named corpora into a cache that is complete or absent, with progress on stderr.

    An interrupted build is resumed (see `build_folder`), and a build by another process is waited for. The bytes depend on
    neither, nor on `processes`.

    Args:
      corpora: the corpora by name.
      vocabulary: the vocabulary of the ids.
      directory: the folder of the cache, local or in a bucket.
      least_documents: the least number of training documents in each corpus.
      processes: the number of processes that split sentences and tokenise while this one reads and writes; with 0 this process
        does all of it.

    Raises:
      UserError: if a corpus cannot be read or has too few documents, or `directory` cannot be written or holds another cache.
    """

    def write_corpus(work: BuildFolder, name: str, corpus: Corpus, label: str) -> dict[str, Counts]:
        tokeniser = Tokeniser(corpus, vocabulary, str(work.cache / "vocab"))
        with WorkerPool(processes, "tokenisation") as workers:
            return {split: _write_split(work, name, tokeniser, split, workers, label) for split in SPLITS}

    return build_with(write_corpus, corpora, vocabulary, directory, least_documents)


def build_with(
    write_corpus: CorpusWriter, corpora: Mapping[str, Corpus], vocabulary: Vocabulary, directory: str | Path, least_documents: int
) -> TokenCache:
    """Build a cache as `build` does, from the tokens that `write_corpus` writes."""
    if is_remote(directory):
        _build_remote(write_corpus, corpora, vocabulary, to_path(directory), least_documents)
        cache = TokenCache(directory)
        check_sources(cache, corpora, vocabulary)
        return cache
    # The cache would replace a symbolic link, so build where the link points to.
    target = Path(os.path.realpath(directory) if os.path.islink(directory) else directory)
    check_names(corpora)
    expected = fingerprint(corpora, vocabulary)
    if not is_used(target):
        with open_build_folder(target) as work:
            if not is_used(target):  # another process was first
                work.start(expected, vocabulary)
                if work.is_resumable:
                    print(
                        f"resuming in {work.folder}, which has {plural(work.documents, 'document')} already",
                        file=sys.stderr,
                        flush=True,
                    )
                written = {}
                for name, corpus in corpora.items():
                    label = f" {name}" if len(corpora) > 1 else ""
                    counts = write_corpus(work, name, corpus, label)
                    check_size(
                        f"corpus{label}", counts["train"].documents, 1 if corpus.pairs or corpus.labels else least_documents
                    )
                    dtypes = {"tokens": token_dtype(vocabulary), "sentence_starts": "int64"}
                    dtypes |= {"units": "uint8"} if corpus.units else {}
                    dtypes |= {"labels": "float32"} if corpus.labels else {}
                    kind: dict[str, Any] = {"pairs": True} if corpus.pairs else {}
                    kind |= {"labels": corpus.labels} if corpus.labels else {}
                    kind |= {"labels_words": True} if corpus.labels_words else {}
                    written[name] = {
                        split: {"counts": asdict(split_counts), "dtypes": dtypes, **kind}
                        for split, split_counts in counts.items()
                    }
                if (now := fingerprint(corpora, vocabulary)) != expected:
                    raise UserError(
                        f"the text changed while it was tokenised ({difference(expected, now)}): run the same command again"
                    )
                work.finish({"format": FORMAT, "fingerprint": expected, "corpora": written}, target)
    else:
        clear_finished(target)
    cache = TokenCache(directory)
    check_fingerprint(cache, expected)
    return cache


def _build_remote(
    write_corpus: CorpusWriter, corpora: Mapping[str, Corpus], vocabulary: Vocabulary, target: Path, least_documents: int
) -> None:
    """Build in a local folder, where an interrupted build can be resumed, and upload the cache."""
    staged = cache_root() / "buckets" / hashlib.sha256(str(target).encode()).hexdigest()[:16] / "cache"
    # Another machine may build the same cache: this one waits for it beside the target.
    with locks.hold_beside(target, seconds=None), locks.hold_beside(staged.parent, seconds=None):
        if is_used(target):
            return
        if is_used(staged) and TokenCache(staged).fingerprint != fingerprint(corpora, vocabulary):
            shutil.rmtree(staged)  # a cache of other text whose upload was interrupted
        build_with(write_corpus, corpora, vocabulary, staged, least_documents)
        buckets.upload(staged, target)
        shutil.rmtree(staged.parent)


def check_not_empty(corpus: Corpus, split: str) -> None:
    """Raise the corpus' own UserError if a split must not be empty but has no documents."""
    if corpus.parts(split):
        next(corpus.texts(split), None)


def check_size(corpus: str, documents: int, least_documents: int) -> None:
    """Raise UserError if a corpus (its name in messages) has too few training documents."""
    if not documents:
        raise UserError(f"the {corpus} has no training document with any token in it; give more text")
    if documents < least_documents:
        raise UserError(
            f"the {corpus} has {documents} training document and its rows need at least {least_documents}; separate documents by "
            "blank lines, or choose another --input_format"
        )


def _write_split(work: BuildFolder, name: str, tokeniser: Tokeniser, split: str, workers: WorkerPool, label: str) -> Counts:
    """Append the missing documents to the part of a split that an interrupted build has written."""
    corpus, dtype = tokeniser.corpus, token_dtype(tokeniser.vocabulary)
    parts = corpus.parts(split)
    done = work.done(name, split) or {"part": 0, "read": 0, "characters": 0, "counts": {}}
    counts = Counts.from_json(done["counts"])
    progress = Progress(f"tokenising{label} {split}", [part.size for part in parts], counts, done["characters"])
    writer = SplitWriter(work.cache / name / split, dtype, counts, corpus)
    due = 0.0

    def record(part: int, read: int, characters: int) -> None:
        nonlocal due
        begin = time.monotonic()
        writer.sync()
        work.record(name, split, {"part": part, "read": read, "characters": characters, "counts": asdict(writer.counts)})
        due = time.monotonic() + max(_RECORD_SECONDS, (time.monotonic() - begin) / _RECORD_SHARE)

    try:
        if done["part"] == len(parts) and done["counts"]:
            writer.sync()
            return counts
        characters = done["characters"]
        remaining = batches(corpus, split, parts, done["part"], done["read"], characters)
        for batch, block in workers.results(tokeniser, remaining):
            writer.append(block)
            characters = batch.characters
            if time.monotonic() > due:
                record(batch.part, batch.read, characters)
            progress.show(writer.counts, batch.part, characters)
        if writer.counts == Counts():
            check_not_empty(corpus, split)
        record(len(parts), 0, characters)
    finally:
        writer.close()
    progress.finish(writer.counts)
    return writer.counts
