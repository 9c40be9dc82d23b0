"""Held-out documents that also occur in the training text, exactly or nearly, so that their loss says little about other text.

The index keeps the hash of one in 16 passages of the held-out text, and of fewer if there would be more than 4 million (96 MB
in all), and 24 bytes per document. Of the training text it keeps one document at a time.
"""

import hashlib
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from bertfam.data.checks.passages import are_kept, passages
from bertfam.data.corpora.corpus import Corpus
from bertfam.data.token_cache.cache import TokenCache
from bertfam.data.vocabularies import Vocabulary
from bertfam.errors import is_terminal

NEAR = 0.5  # a near duplicate has at least this share of its passages in one training document
_WINDOW_BYTES, _WINDOW_TOKENS = 64, 16
_ONE_IN, _MOST = 16, 1 << 22
_BOILERPLATE = 16  # passages in more held-out documents than this do not count
_LEAST = 4  # documents with fewer passages are compared exactly only
_SHOWN = 60


class Text(NamedTuple):
    """A document to compare.

    Attributes:
      source: file or corpus of the document.
      symbols: uint[n], bytes or tokens.
      window: number of symbols of a passage.
      first_words: function that returns the first words.
    """

    source: str
    symbols: np.ndarray
    window: int
    first_words: Callable[[], str]


@dataclass
class Duplicates:
    """Result of the comparison.

    Attributes:
      held_out: number of held-out documents compared.
      exact: number of them that occur in the training text, up to case and spaces.
      near: number of others with at least half of their passages in one training document.
      passages: share of the held-out passages that occur anywhere in the training text.
      example: the first duplicate: `held_out` and `training` (the sources of the two documents), `begins` (its first words) and
        `share` (of its passages); None if there is no duplicate.
    """

    held_out: int
    exact: int
    near: int
    passages: float
    example: dict[str, Any] | None = None

    @property
    def share(self) -> float:
        """Share of the held-out documents that occur in the training text, exactly or nearly."""
        return (self.exact + self.near) / max(self.held_out, 1)


def texts_of_corpora(corpora: Mapping[str, Corpus], split: str) -> Iterator[Text]:
    """Yield the documents of a split of corpora, without case and spaces."""
    for name, corpus in corpora.items():
        for part in corpus.parts(split):
            for lines in corpus.part(split, part):
                letters = "".join("".join(lines).lower().split()).encode("utf-8", "surrogatepass")
                first_words = " ".join(lines)[:_SHOWN]
                yield Text(part.name or name, np.frombuffer(letters, np.uint8), _WINDOW_BYTES, partial(str, first_words))


def texts_of_cache(cache: TokenCache, vocabulary: Vocabulary, split: str) -> Iterator[Text]:
    """Yield the documents of a split of a token cache."""
    for name in cache.corpora:
        documents = cache.documents(split, name)
        bounds = documents.sentence_starts[documents.sentence_bounds]
        for start, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            tokens = np.asarray(documents.tokens[start:end])
            yield Text(documents.name, tokens, _WINDOW_TOKENS, partial(_decoded, vocabulary, tokens))


def _decoded(vocabulary: Vocabulary, tokens: np.ndarray) -> str:
    return vocabulary.decode(tokens[:_SHOWN])[:_SHOWN]


def find_duplicates(held_out: Callable[[], Iterable[Text]], training: Iterable[Text]) -> Duplicates:
    """Compare held-out with training documents; `held_out` is called a second time to describe the example."""
    index = _Index(held_out())
    hits = np.zeros(len(index.hashes), bool)
    exact = np.zeros(len(index.digests), bool)
    near = np.zeros(len(index.digests))
    example: tuple[int, str, float] | None = None
    for text in _with_progress(training):
        digest = _digest(text)
        equal = index.order[slice(*(np.searchsorted(index.sorted_digests, digest, side) for side in ("left", "right")))]
        exact[equal] = True
        places = index.places(passages(text.symbols, text.window, index.one_in))
        hits[places] = True
        documents, counts = np.unique(index.owners[places], return_counts=True)
        shares = np.where(index.sizes[documents] >= _LEAST, counts / index.sizes[documents], 0)
        near[documents] = np.maximum(near[documents], shares)
        if example is None and len(equal):
            example = int(equal[0]), text.source, 1.0
        elif example is None and shares.max(initial=0) >= NEAR:
            example = int(documents[shares.argmax()]), text.source, float(shares.max())
    return Duplicates(
        len(exact),
        int(exact.sum()),
        int((~exact & (near >= NEAR)).sum()),
        float(hits.mean()) if len(hits) else 0.0,
        _example(held_out(), *example) if example else None,
    )


def _example(held_out: Iterable[Text], number: int, source: str, share: float) -> dict[str, Any]:
    text = next(text for index, text in enumerate(held_out) if index == number)
    return {"held_out": text.source, "training": source, "begins": text.first_words(), "share": share}


class _Index:
    """Index of the passages of the held-out documents.

    Attributes:
      one_in: one in this many passages is kept.
      hashes: uint64[passages], ascending.
      owners: int64[passages], the document of each passage.
      sizes: int64[documents], the number of passages of each document.
      digests: uint64[documents], hashes of the whole documents.
      sorted_digests: uint64[documents], the digests in ascending order.
      order: int64[documents], the documents in the order of `sorted_digests`.
    """

    def __init__(self, texts: Iterable[Text]) -> None:
        self.one_in = _ONE_IN
        digests = array("Q")
        hashes, owners = array("Q"), array("i")
        for number, text in enumerate(texts):
            digests.append(_digest(text))
            new = passages(text.symbols, text.window, self.one_in)
            hashes.frombytes(new.tobytes())
            owners.frombytes(np.full(len(new), number, np.int32).tobytes())
            while len(hashes) > _MOST:
                self.one_in *= 2
                kept = are_kept(np.array(hashes), self.one_in)
                hashes, owners = array("Q", np.array(hashes)[kept].tobytes()), array("i", np.array(owners)[kept].tobytes())
        self._sort(np.array(hashes, np.uint64), np.array(owners, np.int32), np.array(digests, np.uint64))

    def _sort(self, hashes: np.ndarray, owners: np.ndarray, digests: np.ndarray) -> None:
        order = np.argsort(hashes, kind="stable")
        hashes, owners = hashes[order], owners[order]
        _, inverse, times = np.unique(hashes, return_inverse=True, return_counts=True)
        rare = times[inverse] <= _BOILERPLATE
        self.hashes, self.owners = hashes[rare], owners[rare]
        self.sizes = np.bincount(self.owners, minlength=len(digests))
        self.digests = digests
        self.order = np.argsort(self.digests, kind="stable")
        self.sorted_digests = self.digests[self.order]

    def places(self, hashes: np.ndarray) -> np.ndarray:
        """Return the places of hashes in the index, several for a hash that it has several times: int64[...]."""
        start, end = (np.searchsorted(self.hashes, hashes, side) for side in ("left", "right"))
        counts = end - start
        return np.repeat(start, counts) + np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def _digest(text: Text) -> int:
    return int.from_bytes(hashlib.blake2b(text.symbols.tobytes(), digest_size=8).digest(), "little")


def _with_progress(texts: Iterable[Text]) -> Iterable[Text]:
    from tqdm import tqdm

    return tqdm(texts, unit=" documents", desc="comparing", disable=not is_terminal(sys.stderr), leave=False)
