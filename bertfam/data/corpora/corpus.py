"""Base class of all text sources.

A document is a list of sentences; a sentence is a stripped, non-empty line of text. Documents never span files.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

SPLITS = ("train", "validation")

Kind = Literal["phrase", "entity"]


class Span(NamedTuple):
    """A phrase or entity: characters begin .. end - 1 of a sentence."""

    kind: Kind
    begin: int
    end: int


@dataclass(frozen=True)
class Part:
    """A piece of a split that one machine reads.

    Attributes:
      name: Distinguishes the parts of a split: a path, for example.
      size: In bytes, or in another unit that is the same for all parts; 0 if unknown.
    """

    name: str = ""
    size: int = 0


class Corpus(ABC):
    """Base class of sources that yield documents.

    A subclass implements `texts` and `fingerprint`; everything else has a default. Reading (`texts`) and sentence splitting
    (`sentences`) are separate, so that one process reads and many split.

    Attributes:
      units: True if phrases and entities are marked; `marked_sentences` then returns them.
      reads_seqio: True if reading it imports TensorFlow, which only a child process may do.
    """

    units: ClassVar[bool] = False
    reads_seqio: ClassVar[bool] = False

    @property
    def pairs(self) -> bool:
        """True if the documents are pairs: two lines, inputs and targets, either of which may be empty."""
        return False

    @property
    def joins_pairs(self) -> bool:
        """True if the targets of a pair continue its inputs, so that they are encoded as inside a text."""
        return False

    @property
    def labels(self) -> int:
        """Numbers that label each document: 0 unless the corpus is labelled.

        The last line of a labelled document has them, separated by spaces; "nan" is a label that is not known. The lines before
        are its texts: one or two, of which any may be empty; or its words, where `labels_words`.
        """
        return 0

    @property
    def labels_words(self) -> bool:
        """True if each word of a document has a label, and not the document."""
        return False

    @property
    def labels_spans(self) -> bool:
        """True if the two labels of a document are the first character of a span of its second text, and the end.

        In a token cache they are the first and the last token of the span. Both are -1 where there is no such span.
        """
        return False

    @property
    def bare(self) -> "Corpus":
        """The corpus that the text comes from: this one, unless it only annotates another."""
        return self

    @property
    def is_in_files(self) -> bool:
        """True if the text is stored in files, so that a sample can be read without producing all of it."""
        return False

    def without_held_out(self) -> "Corpus":
        """Return a corpus whose training split includes the documents that this one holds out of it by their hash."""
        return self

    @abstractmethod
    def texts(self, split: str) -> Iterator[list[str]]:
        """Yield the stripped non-blank lines of each document of "train" or "validation", always in the same order.

        An empty split yields nothing.
        """

    def parts(self, split: str) -> list[Part]:
        """Return the parts into which `texts` can be divided among machines: one, unless a subclass has more."""
        return [Part()]

    def part(self, split: str, part: Part) -> Iterator[list[str]]:
        """Yield the `texts` of one of the `parts`; those of all parts, in their order, make up the split."""
        return self.texts(split)

    def sentences(self, lines: list[str]) -> list[str]:
        """Return the sentences of a document, given its lines from `texts`: the lines themselves, unless a subclass splits them.

        A pure function. It is pickled with the corpus and runs in other processes.
        """
        return lines

    def marked_sentences(self, lines: list[str]) -> list[tuple[str, list[Span]]]:
        """Return the sentences of a document, each with its marked phrases and entities (none, unless a subclass marks them)."""
        return [(sentence, []) for sentence in self.sentences(lines)]

    def documents(self, split: str) -> Iterator[list[str]]:
        """Yield the sentences of each document of a split, in the order of `texts`, without documents that have none."""
        return filter(None, map(self.sentences, self.texts(split)))

    @abstractmethod
    def fingerprint(self) -> dict[str, Any]:
        """Return everything that determines the documents (files, sizes, digests, settings) as JSON; equal iff they are."""
