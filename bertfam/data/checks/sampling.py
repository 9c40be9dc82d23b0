"""Bounded samples of a corpus, tokenised in memory, to check text before a token cache is built."""

from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from bertfam.data.corpora.corpus import Corpus, Part
from bertfam.data.token_cache.documents import Documents
from bertfam.data.token_cache.tokenize import tokenise
from bertfam.data.vocabularies import Vocabulary

CHARACTERS, DOCUMENTS = 1_000_000, 2_000  # upper bounds of a sample
_PARTS = 16  # number of evenly spaced parts that are read for a sample
_SMALL = 32_000_000  # bytes of the largest split that is read completely to count held-out documents


@dataclass(frozen=True)
class Sample:
    """Sample of the documents of a split.

    Attributes:
      documents: the tokenised documents.
      is_whole: True if these are all documents of the split.
    """

    documents: Documents
    is_whole: bool


def can_be_sampled(corpus: Corpus) -> bool:
    """Return True if a part of the text can be read without producing all of it, as with text in files."""
    return corpus.is_in_files or any(part.size for part in corpus.parts("train"))


def sample(corpus: Corpus, split: str, vocabulary: Vocabulary, name: str) -> Sample:
    """Tokenise the beginnings of some parts of a split; `name` is the name of the split in messages."""
    parts = corpus.parts(split)
    chosen = [parts[number] for number in np.unique(np.linspace(0, len(parts) - 1, _PARTS).astype(int))] if parts else []
    texts: list[list[str]] = []
    is_whole = len(chosen) == len(parts)
    for part in chosen:
        beginning, is_end = _read_beginning(corpus, split, part, CHARACTERS // len(chosen), DOCUMENTS // len(chosen))
        texts += beginning
        is_whole &= is_end
    block = tokenise(corpus, vocabulary, texts)
    starts, bounds = (np.concatenate([[0], np.cumsum(sizes)]) for sizes in (block.sentences, block.documents))
    name = name if is_whole else f"a sample of {name}"
    labels: dict[str, Any] = {"labels": block.labels, "label_count": corpus.labels, "labels_words": corpus.labels_words}
    return Sample(Documents(name, block.tokens, starts, bounds, block.units, corpus.pairs, **labels), is_whole)


def held_out_documents(corpus: Corpus, at_most: int) -> int | None:
    """Count the held-out documents, up to `at_most`; return None if that means reading a large split."""
    parts = corpus.parts("validation")
    if sum(part.size for part in parts) > _SMALL:
        return None
    documents = (lines for part in parts for lines in corpus.part("validation", part) if corpus.sentences(lines))
    return sum(1 for _ in islice(documents, at_most))


def _read_beginning(corpus: Corpus, split: str, part: Part, characters: int, documents: int) -> tuple[list[list[str]], bool]:
    """Read documents up to a limit, where the last one is truncated; return also True if the part ended before the limit."""
    texts: list[list[str]] = []
    for lines in corpus.part(split, part):
        if len(texts) == documents or characters <= 0:
            return texts, False
        sizes = np.cumsum([len(line) for line in lines])
        # The line that reaches the limit is the last one; a pair or a labelled text is never truncated.
        fitting = len(lines) if corpus.pairs or corpus.labels else int(np.searchsorted(sizes, characters)) + 1
        texts.append(lines[:fitting])
        characters -= int(sizes[-1])
        if fitting < len(lines):
            return texts, False
    return texts, True
