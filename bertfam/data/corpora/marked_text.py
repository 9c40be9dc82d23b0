"""Text with marked phrases and entities, which ERNIE masks as wholes (Sun et al. 2019, section 3.2).

    ⟨in the end⟩ ⟦New York⟧ had ⟦8,804,190⟧ inhabitants

⟨ ⟩ (U+27E8, U+27E9) enclose a phrase and ⟦ ⟧ (U+27E6, U+27E7) an entity, in text of any format. The program that finds phrases
and entities (a chunker, a tagger) writes them. Either may be nested in the other, but not in its own kind. The four characters
are never part of the text: they are removed before tokenization, even where they have no counterpart. On the command line,
--marks=given declares text as marked in this way, and --marks=names marks names and numbers:

    bertfam pretrain --gin_file=runs/ernie_base.gin --input=text.txt --marks=given --vocab=vocab --model_dir=ernie
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args

from typing_extensions import override

from bertfam.data.corpora.corpus import Corpus, Kind, Part, Span
from bertfam.errors import UserError

_OPENING: dict[str, Kind] = {"⟨": "phrase", "⟦": "entity"}
_CLOSING: dict[str, Kind] = {"⟩": "phrase", "⟧": "entity"}
_MARKS = re.compile(f"[{''.join((*_OPENING, *_CLOSING))}]")
_WORD = re.compile(r"\d(?:[\d.,:/]*\d)?|\w[\w'’-]*")

Marks = Literal["given", "names"]


@dataclass(frozen=True)
class MarkedText(Corpus):
    """Text of another corpus with marks, which only the token cache sees.

    Attributes:
      corpus: The source of the text.
      marks: "given" for marks in the text, as in the module's docstring; or "names" for text without marks: runs of capitalised
        words and numbers are entities (`find_names`).
    """

    units: ClassVar[bool] = True

    corpus: Corpus
    marks: Marks = "given"

    def __post_init__(self) -> None:
        if self.marks not in get_args(Marks):
            raise UserError(f"MarkedText.marks is {self.marks!r}, but must be one of {', '.join(get_args(Marks))}")

    @property
    @override
    def bare(self) -> Corpus:
        return self.corpus.bare

    @override
    def without_held_out(self) -> "MarkedText":
        return replace(self, corpus=self.corpus.without_held_out())

    @property
    @override
    def is_in_files(self) -> bool:
        return self.corpus.is_in_files

    @override
    def texts(self, split: str) -> Iterator[list[str]]:
        return self.corpus.texts(split)

    @override
    def parts(self, split: str) -> list[Part]:
        return self.corpus.parts(split)

    @override
    def part(self, split: str, part: Part) -> Iterator[list[str]]:
        return self.corpus.part(split, part)

    @override
    def sentences(self, lines: list[str]) -> list[str]:
        return [sentence for sentence, _ in self.marked_sentences(lines)]

    @override
    def marked_sentences(self, lines: list[str]) -> list[tuple[str, list[Span]]]:
        # Sentences end where they would in the text without marks; phrases and entities that cross a boundary are dropped.
        if self.marks == "names":
            return [(sentence, find_names(sentence)) for sentence in self.corpus.sentences(lines)]
        read = [(text, spans) for text, spans in map(strip_marks, lines) if text.strip()]
        marked: list[tuple[str, list[Span]]] = []
        for text, spans in read:
            end = 0
            for sentence in self.corpus.sentences([text]):
                begin = text.find(sentence, end)
                end = max(end, begin + len(sentence))
                inside = [span for span in spans if begin >= 0 and begin <= span.begin and span.end <= end]
                marked.append((sentence, [Span(kind, first - begin, last - begin) for kind, first, last in inside]))
        return marked

    @override
    def fingerprint(self) -> dict[str, Any]:
        return {"kind": "marked_text", "marks": self.marks, "corpus": self.corpus.fingerprint()}


def strip_marks(sentence: str) -> tuple[str, list[Span]]:
    """Return a sentence without its marks, and the spans that they enclosed."""
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


def find_names(sentence: str) -> list[Span]:
    """Return runs of capitalised words, separated by single spaces, and numbers.

    The first word of a sentence begins a name only if a capitalised word follows.
    """
    spans: list[Span] = []
    last_capital = -1  # end of the last capitalised word
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
