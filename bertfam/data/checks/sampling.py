"""A bounded sample of a corpus, tokenised in memory: what can be said of text before a token cache is built."""

from dataclasses import dataclass
from itertools import islice

import numpy as np

from bertfam.data.corpora.corpus import Corpus, Part
from bertfam.data.token_cache.documents import Documents
from bertfam.data.token_cache.tokenize import tokenise
from bertfam.data.vocabularies import Vocabulary

CHARACTERS, DOCUMENTS = 1_000_000, 2_000  # of a sample, at most
_PARTS = 16  # that are read for it, evenly spaced
_SMALL = 4_000_000  # bytes of a split that is read wholly to look for held-out documents


@dataclass(frozen=True)
class Sample:
    """Some documents of a split.

    Attributes:
      documents: tokenised.
      is_whole: whether they are all that there are.
    """

    documents: Documents
    is_whole: bool


def can_be_sampled(corpus: Corpus) -> bool:
    """Whether the text lies in files, so that a part of it can be read by itself; other text must first be made."""
    return corpus.is_in_files or any(part.size for part in corpus.parts("train"))


def sample(corpus: Corpus, split: str, vocabulary: Vocabulary, name: str) -> Sample:
    """Reads the beginnings of some parts of a split; `name` is what messages call the split."""
    parts = corpus.parts(split)
    chosen = [parts[number] for number in np.unique(np.linspace(0, len(parts) - 1, _PARTS).astype(int))] if parts else []
    texts: list[list[str]] = []
    is_whole = len(chosen) == len(parts)
    for part in chosen:
        found, ended = _beginning(corpus, split, part, CHARACTERS // len(chosen), DOCUMENTS // len(chosen))
        texts += found
        is_whole &= ended
    block = tokenise(corpus, vocabulary, texts)
    starts, bounds = (np.concatenate([[0], np.cumsum(sizes)]) for sizes in (block.sentences, block.documents))
    return Sample(
        Documents(name if is_whole else f"a sample of {name}", block.tokens, starts, bounds, block.units, corpus.pairs), is_whole
    )


def held_out_documents(corpus: Corpus, at_most: int) -> int | None:
    """How many held-out documents there are, counted up to `at_most`; None where to find out would take much reading."""
    parts = corpus.parts("validation")
    if sum(part.size for part in parts) > _SMALL:
        return None
    found = (lines for part in parts for lines in corpus.part("validation", part) if corpus.sentences(lines))
    return sum(1 for _ in islice(found, at_most))


def _beginning(corpus: Corpus, split: str, part: Part, characters: int, documents: int) -> tuple[list[list[str]], bool]:
    """Documents until one of the limits is reached, the last cut short, and whether the part ended before."""
    found: list[list[str]] = []
    for lines in corpus.part(split, part):
        if len(found) == documents or characters <= 0:
            return found, False
        sizes = np.cumsum([len(line) for line in lines])
        # The line that reaches the limit is the last; a pair is not cut.
        fitting = len(lines) if corpus.pairs else int(np.searchsorted(sizes, characters)) + 1
        found.append(lines[:fitting])
        characters -= int(sizes[-1])
        if fitting < len(lines):
            return found, False
    return found, True
