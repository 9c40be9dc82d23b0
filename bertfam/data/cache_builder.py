"""Builds a token cache from named corpora: complete or absent, with progress."""

import json
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bertfam.data.cache import FORMAT, TokenCache, check_fingerprint, feature_path
from bertfam.data.sources import Corpus
from bertfam.data.splits import SPLITS
from bertfam.data.vocabularies import Vocabulary
from bertfam.errors import UserError
from bertfam.files import new_folder

_BATCH_CHARACTERS = 1_000_000


def fingerprint(corpora: Mapping[str, Corpus], vocabulary: Vocabulary) -> dict[str, Any]:
    """What a cache of these corpora with this vocabulary depends on, as JSON."""
    return {
        "corpora": {name: corpus.fingerprint() for name, corpus in corpora.items()},
        "vocabulary": vocabulary.fingerprint,
    }


def check_sources(cache: TokenCache, corpora: Mapping[str, Corpus] | None, vocabulary: Vocabulary | None) -> None:
    """Refuses a cache of other text or of another vocabulary than is given, naming what differs; None is not compared."""
    given = {
        "corpora": (
            {name: corpus.fingerprint() for name, corpus in corpora.items()} if corpora else cache.fingerprint["corpora"]
        ),
        "vocabulary": vocabulary.fingerprint if vocabulary else cache.fingerprint["vocabulary"],
    }
    check_fingerprint(cache, given)


def build(
    corpora: Mapping[str, Corpus], vocabulary: Vocabulary, directory: str | Path, *, least_documents: int = 1
) -> TokenCache:
    """Tokenises named corpora into DIRECTORY, with progress on stderr; complete or absent.

    Raises:
      UserError: where a corpus cannot be read or has fewer than `least_documents` for training.
    """
    target = Path(directory)
    check_names(corpora)
    expected = fingerprint(corpora, vocabulary)
    with new_folder(target, first_wins=True) as partial:
        written: dict[str, Any] = {}
        for name, corpus in corpora.items():
            title = f" {name}" if len(corpora) > 1 else ""
            written[name] = {
                split: _write_split(corpus, split, vocabulary, partial / name / split, f"tokenising{title} {split}")
                for split in SPLITS
            }
            _check_size(f"corpus{title}", written[name]["train"]["counts"]["documents"], least_documents)
        vocabulary.save(partial / "vocab")
        manifest = {"format": FORMAT, "fingerprint": expected, "corpora": written}
        (partial / "cache.json").write_text(json.dumps(manifest, indent=1) + "\n")
    cache = TokenCache(target)
    # Another process may have been first; its bytes are the same if its fingerprint is.
    check_fingerprint(cache, expected)
    return cache


def check_names(corpora: Mapping[str, Corpus]) -> None:
    """Raises UserError for a name of a corpus that cannot be a folder of its own in a cache."""
    for name in corpora:
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name) or name.lower() in ("vocab", "cache.json"):
            raise UserError(f"{name!r} cannot be the name of a corpus: use letters, digits, _ . - and no name that a cache uses")


def _check_size(corpus: str, documents: int, least_documents: int) -> None:
    if not documents:
        raise UserError(f"the {corpus} has no training document with any token in it; give more text")
    if documents < least_documents:
        raise UserError(
            f"the {corpus} has {documents} training document and its rows need at least {least_documents}; separate documents by "
            "blank lines, or choose another --input_format"
        )


def _write_split(corpus: Corpus, split: str, vocabulary: Vocabulary, directory: Path, title: str) -> dict[str, Any]:
    directory.mkdir(parents=True)
    dtype = "uint16" if vocabulary.size <= 2**16 else "uint32"
    tokens, sentences, skipped = 0, 0, 0
    bounds = [0]
    token_offsets = [0]
    progress = _Progress(title)
    with (
        open(feature_path(directory, "tokens", "values"), "wb") as token_file,
        open(feature_path(directory, "sentence_starts", "values"), "wb") as start_file,
    ):
        for batch in _batches(corpus.documents(split)):
            encoded = iter(vocabulary.encode_batch([sentence for document in batch for sentence in document]))
            for document in batch:
                # A line that becomes no token at all is no sentence, and a document of such lines is none.
                pieces = [ids for _, ids in zip(document, encoded, strict=False) if len(ids)]
                if not pieces:
                    skipped += 1
                    continue
                lengths = np.array([len(ids) for ids in pieces])
                np.concatenate(pieces).astype(dtype).tofile(token_file)
                (tokens + np.concatenate([[0], lengths[:-1].cumsum()])).astype(np.int64).tofile(start_file)
                tokens += int(lengths.sum())
                sentences += len(pieces)
                bounds.append(sentences)
                token_offsets.append(tokens)
            progress.show(documents=len(bounds) - 1, tokens=tokens)
        np.array([tokens], np.int64).tofile(start_file)
    np.array(bounds, np.int64).tofile(feature_path(directory, "sentence_starts", "offsets"))
    np.array(token_offsets, np.int64).tofile(feature_path(directory, "tokens", "offsets"))
    progress.finish(documents=len(bounds) - 1, tokens=tokens, skipped=skipped)
    return {
        "counts": {"documents": len(bounds) - 1, "sentences": sentences, "tokens": tokens, "skipped_documents": skipped},
        "dtypes": {"tokens": dtype, "sentence_starts": "int64"},
    }


def _batches(documents: Iterable[list[str]]) -> Iterator[list[list[str]]]:
    """Groups documents into batches of about a million characters, enough for the tokenizer's threads."""
    batch: list[list[str]] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += sum(map(len, document))
        if size >= _BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class _Progress:
    """One line on stderr, renewed each second on a terminal and written once at the end elsewhere."""

    def __init__(self, title: str) -> None:
        self._title, self._begin, self._last = title, time.monotonic(), 0.0

    def _line(self, counts: dict[str, int]) -> str:
        seconds = max(time.monotonic() - self._begin, 1e-9)
        shown = ", ".join(f"{value:,} {name}" for name, value in counts.items() if value or name != "skipped")
        return f"{self._title}: {shown}, {seconds:.0f} s, {counts['tokens'] / seconds:,.0f} tokens/s"

    def show(self, **counts: int) -> None:
        if sys.stderr.isatty() and time.monotonic() - self._last > 1:
            self._last = time.monotonic()
            print(f"\r\x1b[K{self._line(counts)}", end="", file=sys.stderr, flush=True)

    def finish(self, **counts: int) -> None:
        print(("\r\x1b[K" if sys.stderr.isatty() else "") + self._line(counts), file=sys.stderr, flush=True)
