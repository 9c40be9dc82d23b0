"""Text whose phrases and entities are marked: what ERNIE masks as wholes (Sun et al. 2019, section 3.2).

    ⟨in the end⟩ ⟦New York⟧ had ⟦8,804,190⟧ inhabitants

⟨ ⟩ (U+27E8, U+27E9) stand around a phrase and ⟦ ⟧ (U+27E6, U+27E7) around an entity, in text of any format: whatever finds
phrases and entities (a chunker, a tagger) writes them. Either may lie within the other, but not within its own kind. The four
characters are never part of the text: they are taken out before it is tokenised, where they have no counterpart too. On the
command line --marks=given says that text is marked so, and --marks=names that names and numbers are to be marked:

    bertfam pretrain --gin_file=runs/ernie_base.gin --input=text.txt --marks=given --vocab=vocab --model_dir=ernie
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, get_args

from bertfam.data.corpora.text_files import Corpus, Part
from bertfam.errors import UserError

Kind = Literal["phrase", "entity"]
_OPENING: dict[str, Kind] = {"⟨": "phrase", "⟦": "entity"}
_CLOSING: dict[str, Kind] = {"⟩": "phrase", "⟧": "entity"}
_MARKS = re.compile(f"[{''.join((*_OPENING, *_CLOSING))}]")
_WORD = re.compile(r"\d(?:[\d.,:/]*\d)?|\w[\w'’-]*")

Marks = Literal["given", "names"]


class Span(NamedTuple):
    """A phrase or entity: characters begin .. end - 1 of a sentence."""

    kind: Kind
    begin: int
    end: int


@dataclass(frozen=True)
class MarkedText(Corpus):
    """Text of another corpus, with marks. Everything but the token cache sees it without them.

    Attributes:
      corpus: where the text is from.
      marks: "given", as in the text of this module; or "names": capitalised words that stand together and numbers are entities
        (`names_in`), for text that has no marks.
    """

    units: ClassVar[bool] = True

    corpus: Corpus
    marks: Marks = "given"

    def __post_init__(self) -> None:
        if self.marks not in get_args(Marks):
            raise UserError(f"MarkedText.marks is {self.marks!r}: it must be one of {', '.join(get_args(Marks))}")

    @property
    def bare(self) -> Corpus:
        """See `Corpus.bare`: the text without marks of its own."""
        return self.corpus.bare

    def texts(self, split: str) -> Iterator[list[str]]:
        """See `Corpus.texts`: with the marks that are given."""
        return self.corpus.texts(split)

    def parts(self, split: str) -> list[Part]:
        """See `Corpus.parts`."""
        return self.corpus.parts(split)

    def part(self, split: str, part: Part) -> Iterator[list[str]]:
        """See `Corpus.part`."""
        return self.corpus.part(split, part)

    def sentences(self, lines: list[str]) -> list[str]:
        """See `Corpus.sentences`: without marks."""
        return [sentence for sentence, _ in self.marked_sentences(lines)]

    def marked_sentences(self, lines: list[str]) -> list[tuple[str, list[Span]]]:
        """The sentences of a document without marks, and what was marked in each.

        Sentences end where they would in the text without marks; a phrase or entity that does not lie within one is none.
        """
        if self.marks == "names":
            return [(sentence, names_in(sentence)) for sentence in self.corpus.sentences(lines)]
        read = [(text, spans) for text, spans in map(unmarked, lines) if text.strip()]
        found: list[tuple[str, list[Span]]] = []
        for text, spans in read:
            end = 0
            for sentence in self.corpus.sentences([text]):
                begin = text.find(sentence, end)
                end = max(end, begin + len(sentence))
                inside = [span for span in spans if begin >= 0 and begin <= span.begin and span.end <= end]
                found.append((sentence, [Span(kind, first - begin, last - begin) for kind, first, last in inside]))
        return found

    def fingerprint(self) -> dict[str, Any]:
        """See `Corpus.fingerprint`."""
        return {"kind": "marked_text", "marks": self.marks, "corpus": self.corpus.fingerprint()}


def unmarked(sentence: str) -> tuple[str, list[Span]]:
    """A sentence without marks, and what was marked in it."""
    parts, spans, size, begin = [], [], 0, 0
    opened: dict[Kind, int] = {}
    for mark in _MARKS.finditer(sentence):
        parts.append(sentence[begin : mark.start()])
        size, begin = size + len(parts[-1]), mark.end()
        if kind := _OPENING.get(mark[0]):
            opened[kind] = size
        elif (kind := _CLOSING[mark[0]]) in opened:
            if (start := opened.pop(kind)) < size:
                spans.append(Span(kind, start, size))
    return "".join((*parts, sentence[begin:])), spans


def names_in(sentence: str) -> list[Span]:
    """Capitalised words that stand together, with one space between, and numbers.

    The first word of a sentence begins a name only where a capitalised one follows.
    """
    spans: list[Span] = []
    last_capital = -1  # where the last capitalised word ended
    for word in _WORD.finditer(sentence):
        begin, end = word.span()
        if word[0][0].isdigit():
            spans.append(Span("entity", begin, end))
        elif word[0][0].isupper():
            if last_capital >= 0 and sentence[last_capital:begin] == " ":
                spans[-1] = Span("entity", spans[-1].begin, end)
            else:
                spans.append(Span("entity", begin, end))
            last_capital = end
    first = _WORD.search(sentence)
    alone = first and spans and (spans[0].begin, spans[0].end) == first.span() and not first[0][0].isdigit()
    return spans[1:] if alone else spans
