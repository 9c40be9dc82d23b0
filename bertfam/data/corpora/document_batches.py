"""Documents of a corpus in batches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

from bertfam.data.corpora.corpus import Corpus, Part
from bertfam.data.corpora.read_ahead import read_in_order
from bertfam.storage.streams import is_address

_CHARACTERS = 1_000_000


@dataclass(frozen=True)
class Batch:
    """Documents that are processed together, and the position of the reader after them.

    Attributes:
      texts: documents, as `Corpus.texts` yields them.
      part: number of the part of the split that is being read.
      read: number of documents of this part read so far.
      characters: number of characters of the split read so far.
    """

    texts: list[list[str]]
    part: int
    read: int
    characters: int


def batches(
    corpus: Corpus, split: str, parts: Sequence[Part], first: int = 0, read: int = 0, characters: int = 0
) -> Iterator[Batch]:
    """Yield documents in batches of about a million characters, from document `read` of part `first` on.

    `characters` is the number of characters read before that position.
    """
    texts: list[list[str]] = []
    size = 0
    readers = [partial(corpus.part, split, part) for part in parts[first:]]
    is_stored = any(is_address(part.name) for part in parts)
    for number, documents in enumerate(read_in_order(readers, ahead=is_stored), first):
        skipped = read if number == first else 0
        for index, lines in enumerate(islice(documents, skipped, None), skipped + 1):
            texts.append(lines)
            size += sum(map(len, lines))
            if size >= _CHARACTERS:
                characters += size
                yield Batch(texts, number, index, characters)
                texts, size = [], 0
    if texts:
        yield Batch(texts, len(parts), 0, characters + size)
