"""The rules of C4 for a page by itself: a list of its lines becomes a shorter one, or nothing.

They are those of the program that made C4 (`c4_utils.clean_page` of TensorFlow Datasets), in its order, which decides what a line
or page with several faults counts for:

    long_word       a line with a word of more than 1,000 characters goes
    citation        Wikipedia's marks go: [1], [], [edit], [citation needed]
    end_mark        a line goes that does not end in . ! ? or an end quotation mark, or that ends in "..."
    short_line      a line of fewer than 5 words goes
    lorem_ipsum     a page goes that has the placeholder "lorem ipsum"
    javascript      a line that names Javascript goes: most ask to turn it on
    curly_bracket   a page with { goes: it is program text
    policy          a line goes that has "terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies" or
                    "use cookies"
    bad_word        a page goes that has a word of the user's list
    few_sentences   a page goes of which fewer than 3 sentences are left, or no line
    language        a page goes that is not, with a probability of at least 0.99, in the language asked for
    repeated        sentences go that stand, three in a row, anywhere before (see `repeated`), and then a page with too few

A rule sees what the rules before it have left: a line of program text without end mark goes as a line, and its { costs no page.
Before 2020 the paper's text had 3 words and 5 sentences; its last version and the program have 5 and 3.

Beyond the published rules, end marks are those of other scripts too, and in scripts without spaces each character counts as a
word.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from bertfam.data.corpora.c4.tally import Tally
from bertfam.data.corpora.sentences import split_sentences
from bertfam.errors import UserError
from bertfam.suggest import did_you_mean

RULES = (
    "long_word", "citation", "end_mark", "short_line", "lorem_ipsum", "javascript", "curly_bracket", "policy", "bad_word",
    "few_sentences", "language", "repeated",
)  # fmt: skip

_CITATION = re.compile(r"\[\d*\]|\[edit\]|\[citation needed\]")
# A full stop, question or exclamation mark of any script that has its own, and quotation marks that close.
_END_MARKS = tuple('.!?"”»」』。．！？｡؟۔।॥։።፧༎។៕။')
_ELLIPSIS = "..."
_POLICY = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")
# Thai, Lao, Tibetan, Burmese, Khmer; kana and ideographs.
_UNSPACED = (
    "\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
_IS_UNSPACED = re.compile(f"[{_UNSPACED}]")
# A character of a word in a script with spaces: no word of such a script begins or ends beside it.
_SPACED = rf"[^\W{_UNSPACED}]"


class Line(NamedTuple):
    """A line that is kept, and its sentences in order, each of them a part of it."""

    text: str
    sentences: list[str]


@dataclass(frozen=True)
class PageRules:
    """The rules of a page by itself; a pure function, whatever came before.

    Attributes:
      rules: names of `RULES` to apply; "repeated" is not applied here.
      bad_words: lower-cased.
      min_words: of a line.
      min_sentences: of a page.
      max_word: characters of a word.
      language: how sentences end, see `sentences.LANGUAGES`.
      is_wanted: whether a text is in the language asked for; None: any is.
    """

    rules: frozenset[str] = frozenset(RULES)
    bad_words: tuple[str, ...] = ()
    min_words: int = 5
    min_sentences: int = 3
    max_word: int = 1000
    language: str = "en"
    is_wanted: Callable[[str], bool] | None = None

    def __call__(self, page: list[str], tally: Tally) -> list[Line]:
        """The lines that are left of a page of stripped non-blank lines, none where it goes; counts what is removed.

        What is left is not yet counted as kept: sentences may stand elsewhere too.
        """
        lines: list[str] = []
        for number, line in enumerate(page):
            kept, rule = self._line(line, tally)
            if rule in _OF_PAGES:
                self._remove_page(rule, [*lines, *page[number:]], tally, kept)
                return []
            if rule:
                tally.removed[rule].add(lines=1, characters=len(kept), example=kept)
            else:
                lines.append(kept)
        found = [Line(line, split_sentences(line, self.language)) for line in lines]
        if self.has_few_sentences(found):
            self._remove_page("few_sentences", lines, tally)
            return []
        if "language" in self.rules and self.is_wanted and not self.is_wanted("\n".join(lines)):
            self._remove_page("language", lines, tally)
            return []
        return found

    def has_few_sentences(self, lines: list[Line]) -> bool:
        """Whether a page has too few sentences; one without any always has."""
        least = self.min_sentences if "few_sentences" in self.rules else 1
        return sum(len(line.sentences) for line in lines) < least

    def _line(self, line: str, tally: Tally) -> tuple[str, str]:
        """The line without marks of citations, and the rule that removes it or its page, or ""."""
        rules = self.rules
        if "long_word" in rules and len(line) > self.max_word and max(map(len, line.split())) > self.max_word:
            return line, "long_word"
        if "citation" in rules and "[" in line:
            line = self._without_citations(line, tally)
            if not line:
                return line, "citation"
        lower = line.lower()
        if "end_mark" in rules and (not line.endswith(_END_MARKS) or line.endswith(_ELLIPSIS)):
            return line, "end_mark"
        if "short_line" in rules and _is_short(line, self.min_words):
            return line, "short_line"
        if "lorem_ipsum" in rules and "lorem ipsum" in lower:
            return line, "lorem_ipsum"
        if "javascript" in rules and "javascript" in lower:
            return line, "javascript"
        if "curly_bracket" in rules and "{" in line:
            return line, "curly_bracket"
        if "policy" in rules and any(words in lower for words in _POLICY):
            return line, "policy"
        # A search for each word is many times faster than one expression of all of them.
        if "bad_word" in rules and any(word in lower and found.search(lower) for word, found in self._bad_words):
            return line, "bad_word"
        return line, ""

    def _without_citations(self, line: str, tally: Tally) -> str:
        found = _CITATION.search(line)
        if not found:
            return line
        left = _CITATION.sub("", line).strip()
        tally.removed["citation"].add(characters=len(line) - len(left), example=line[max(found.start() - 40, 0) :])
        return left

    @cached_property
    def _bad_words(self) -> list[tuple[str, re.Pattern[str]]]:
        """Each word, and what finds it as a whole one; in scripts without spaces words stand anywhere."""
        return [(word, re.compile(_bounded(word))) for word in self.bad_words]

    def _remove_page(self, rule: str, lines: list[str], tally: Tally, example: str | None = None) -> None:
        shown = " ".join(lines)[:1000] if example is None else example
        tally.removed[rule].add(1, len(lines), sum(map(len, lines)), shown)


_OF_PAGES = ("lorem_ipsum", "curly_bracket", "bad_word")


def _is_short(line: str, least: int) -> bool:
    words = len(line.split())
    return words < least and words + len(_IS_UNSPACED.findall(line)) < least


def _bounded(word: str) -> str:
    def bound(character: str, look: str) -> str:
        return f"(?{look}{_SPACED})" if re.match(_SPACED, character) else ""

    return f"{bound(word[0], '<!')}{re.escape(word)}{bound(word[-1], '!')}"


def check_rules(names: list[str]) -> None:
    """Raises UserError for a name that is no rule's."""
    for name in names:
        if name not in RULES:
            hint = did_you_mean(name, RULES, f"one of {', '.join(RULES)}")
            raise UserError(f"{name!r} is no rule of cleaning{hint}")
