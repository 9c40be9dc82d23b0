"""Text with marked phrases and entities, which ERNIE masks as wholes (Sun et al. 2019, section 3.2).

    ⟨in the end⟩ ⟦New York⟧ had ⟦8,804,190⟧ inhabitants

⟨ ⟩ (U+27E8, U+27E9) enclose a phrase and ⟦ ⟧ (U+27E6, U+27E7) an entity, in text of any format. The program that finds phrases
and entities (a chunker, a tagger) writes them. Either may be nested in the other, but not in its own kind. The four characters
are never part of the text: they are removed before tokenization, even where they have no counterpart. On the command line,
--marks=given declares text as marked in this way, --marks=names marks names and numbers, and --marks=salient names and dates:

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

_MONTH = (
    r"(?:January|February|March|April|May|June|July|August|September|October|November|December"
    r"|(?:Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept|Sep|Oct|Nov|Dec)\.)"
)
_YEAR, _DAY = r"(?:1\d{3}|20\d{2})", r"\d{1,2}(?:st|nd|rd|th)?"
_DATE = re.compile(
    rf"(?<!\d[.,])\b(?:{_DAY} {_MONTH}(?:,? {_YEAR})?|{_MONTH} (?:{_DAY}(?:, ?{_YEAR})?|{_YEAR})|{_YEAR}-\d\d-\d\d|{_YEAR}s?)"
    r"(?![\w%]|[.,]\d)"
)

Marks = Literal["given", "names", "salient"]


@dataclass(frozen=True)
class MarkedText(Corpus):
    """Text of another corpus with marks, which only the token cache sees.

    Attributes:
      corpus: The source of the text.
      marks: "given" for marks in the text, as in the module's docstring; or "names" for text without marks: runs of capitalised
        words and numbers are entities (`find_names`); or "salient" for those that are names and dates (`find_salient`).
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
        if self.marks != "given":
            find = find_names if self.marks == "names" else find_salient
            return [(sentence, find(sentence)) for sentence in self.corpus.sentences(lines)]
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


def find_salient(sentence: str) -> list[Span]:
    """Return the names and dates of a sentence, for REALM's salient spans (Guu et al. 2020, section 3.4).

    The paper's names come from a tagger and its dates from a regular expression. Here names are the runs of capitalised words of
    `find_names`. Dates are years from 1000 to 2099, alone, as in "the 1920s" or as in "1969-07-20", and days and months with an
    English name, with or without a year.
    """
    dates = [Span("entity", *match.span()) for match in _DATE.finditer(sentence)]
    names = [
        name
        for name in find_names(sentence)
        if not sentence[name.begin].isdigit() and not any(name.begin < date.end and date.begin < name.end for date in dates)
    ]
    return sorted([*dates, *names], key=lambda span: span.begin)
