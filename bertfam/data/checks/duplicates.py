"""Held-out documents that are in the training text too, exactly or nearly: their loss says little of other text.

Of the held-out text one passage in 16 is kept, by its hash, and fewer where that would be more than 4
million (96 MB with what belongs to them), besides 24 bytes a document; of the training text only one document at a time.
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

NEAR = 0.5  # the share of a document's passages in one training document from which it counts as nearly the same
_WINDOW_BYTES, _WINDOW_TOKENS = 64, 16
_ONE_IN, _MOST = 16, 1 << 22
_BOILERPLATE = 16  # a passage of more held-out documents than these is left out
_LEAST = 4  # passages that a document must have to be compared nearly
_SHOWN = 60


class Text(NamedTuple):
    """A document to compare.

    Attributes:
      where: its file, or its corpus.
      symbols: uint[n], bytes or tokens.
      window: symbols of a passage.
      begins: gives its first words.
    """

    where: str
    symbols: np.ndarray
    window: int
    begins: Callable[[], str]


@dataclass
class Duplicates:
    """What was found.

    Attributes:
      held_out: documents that were compared.
      exact: those of them that are in the training text, but for case and spaces.
      near: further ones of whose passages at least half are in one training document.
      passages: the share of the held-out passages that are anywhere in the training text.
      example: of the first that was found, `held_out`, `training` (where they are), `begins` and `share`; None: none was.
    """

    held_out: int
    exact: int
    near: int
    passages: float
    example: dict[str, Any] | None = None

    @property
    def share(self) -> float:
        """The share of the held-out documents that are in the training text, exactly or nearly."""
        return (self.exact + self.near) / max(self.held_out, 1)


def texts_of_corpora(corpora: Mapping[str, Corpus], split: str) -> Iterator[Text]:
    """The documents of text; case and spaces do not count."""
    for name, corpus in corpora.items():
        for part in corpus.parts(split):
            for lines in corpus.part(split, part):
                letters = "".join("".join(lines).lower().split()).encode("utf-8", "surrogatepass")
                begins = " ".join(lines)[:_SHOWN]
                yield Text(part.name or name, np.frombuffer(letters, np.uint8), _WINDOW_BYTES, partial(str, begins))


def texts_of_cache(cache: TokenCache, vocabulary: Vocabulary, split: str) -> Iterator[Text]:
    """The documents of a token cache."""
    for name in cache.corpora:
        documents = cache.documents(split, name)
        bounds = documents.sentence_starts[documents.sentence_bounds]
        for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            tokens = np.asarray(documents.tokens[begin:end])
            yield Text(documents.name, tokens, _WINDOW_TOKENS, partial(_decoded, vocabulary, tokens))


def _decoded(vocabulary: Vocabulary, tokens: np.ndarray) -> str:
    return vocabulary.decode(tokens[:_SHOWN])[:_SHOWN]


def find_duplicates(held_out: Callable[[], Iterable[Text]], training: Iterable[Text]) -> Duplicates:
    """Compares texts; `held_out` is called again for the example."""
    index = _Index(held_out())
    hits = np.zeros(len(index.hashes), bool)
    exact = np.zeros(len(index.digests), bool)
    near = np.zeros(len(index.digests))
    example: tuple[int, str, float] | None = None
    for text in _with_progress(training):
        digest = _digest(text)
        found = index.order[slice(*(np.searchsorted(index.sorted_digests, digest, side) for side in ("left", "right")))]
        exact[found] = True
        places = index.places(passages(text.symbols, text.window, index.one_in))
        hits[places] = True
        documents, counts = np.unique(index.owners[places], return_counts=True)
        shares = np.where(index.sizes[documents] >= _LEAST, counts / index.sizes[documents], 0)
        near[documents] = np.maximum(near[documents], shares)
        if example is None and len(found):
            example = int(found[0]), text.where, 1.0
        elif example is None and shares.max(initial=0) >= NEAR:
            example = int(documents[shares.argmax()]), text.where, float(shares.max())
    return Duplicates(
        len(exact),
        int(exact.sum()),
        int((~exact & (near >= NEAR)).sum()),
        float(hits.mean()) if len(hits) else 0.0,
        _example(held_out(), *example) if example else None,
    )


def _example(held_out: Iterable[Text], number: int, where: str, share: float) -> dict[str, Any]:
    text = next(text for place, text in enumerate(held_out) if place == number)
    return {"held_out": text.where, "training": where, "begins": text.begins(), "share": share}


class _Index:
    """The passages of the held-out documents.

    Attributes:
      one_in: one passage in so many is kept.
      hashes: uint64[passages], ascending.
      owners: int64[passages], the document of each.
      sizes: int64[documents], the passages of each document.
      digests: uint64[documents], of the whole text.
      sorted_digests, order: the digests ascending, and whose they are.
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
        """Where hashes stand in the index, each perhaps several times: int64[...]."""
        begin, end = (np.searchsorted(self.hashes, hashes, side) for side in ("left", "right"))
        counts = end - begin
        return np.repeat(begin, counts) + np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def _digest(text: Text) -> int:
    return int.from_bytes(hashlib.blake2b(text.symbols.tobytes(), digest_size=8).digest(), "little")


def _with_progress(texts: Iterable[Text]) -> Iterable[Text]:
    from tqdm import tqdm

    return tqdm(texts, unit=" documents", desc="comparing", disable=not sys.stderr.isatty(), leave=False)
