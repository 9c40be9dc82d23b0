"""Cleaning rules of C4 for a single page, which remove lines or the whole page.

They are the rules of the program that made C4 (`c4_utils.clean_page` of TensorFlow Datasets), in its order. The first rule that
removes a line or page counts it:

    long_word       remove lines with a word of more than 1,000 characters
    citation        remove Wikipedia's marks [1], [], [edit], [citation needed]
    end_mark        remove lines that do not end in . ! ? or an end quotation mark, or that end in "..."
    short_line      remove lines of fewer than 5 words
    lorem_ipsum     remove pages with the placeholder "lorem ipsum"
    javascript      remove lines that name Javascript: most ask to turn it on
    curly_bracket   remove pages with {, which is program text
    policy          remove lines with "terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies" or
                    "use cookies"
    bad_word        remove pages with a word of the user's list
    few_sentences   remove pages with fewer than 3 remaining sentences, or without lines
    language        remove pages that are not in the requested language with a probability of at least 0.99
    repeated        remove spans of three sentences that occurred before (see `repeated`), then pages with too few sentences

A rule applies to the text that the previous rules left: a line of program text without end mark is removed as a line, so that
its { does not remove the page. Before 2020 the paper said 3 words and 5 sentences; its last version and the program have 5 and 3.

Beyond the published rules, end marks of other scripts count as well, and in scripts without spaces each character counts as a
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
# Full stops, question and exclamation marks of all scripts, and closing quotation marks.
_END_MARKS = tuple('.!?"”»」』。．！？｡؟۔।॥։።፧༎។៕။')
_ELLIPSIS = "..."
_POLICY = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")
# Thai, Lao, Tibetan, Burmese, Khmer; kana and ideographs.
_UNSPACED = (
    "\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
_IS_UNSPACED = re.compile(f"[{_UNSPACED}]")
# A word character of a script with spaces; a word of such a script has none of them next to it.
_SPACED = rf"[^\W{_UNSPACED}]"


class Line(NamedTuple):
    """A line that is kept, and its sentences in order, each a part of the line."""

    text: str
    sentences: list[str]


@dataclass(frozen=True)
class PageRules:
    """Rules for a single page: a pure function, independent of other pages.

    Attributes:
      rules: names of the `RULES` to apply; "repeated" is not applied here.
      bad_words: lower-case words that remove a page.
      min_words: least number of words in a line.
      min_sentences: least number of sentences in a page.
      max_word: greatest number of characters in a word.
      language: language of the sentence splitter, see `sentences.LANGUAGES`.
      is_wanted: function that is True for text in the requested language; None accepts all languages.
    """

    rules: frozenset[str] = frozenset(RULES)
    bad_words: tuple[str, ...] = ()
    min_words: int = 5
    min_sentences: int = 3
    max_word: int = 1000
    language: str = "en"
    is_wanted: Callable[[str], bool] | None = None

    def __call__(self, page: list[str], tally: Tally) -> list[Line]:
        """Return the lines to keep of a page of stripped non-blank lines, none if it is removed; count the removed text.

        The remaining lines are not counted as kept yet, since the rule "repeated" may remove some of their sentences.
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
        split = [Line(line, split_sentences(line, self.language)) for line in lines]
        if self.has_few_sentences(split):
            self._remove_page("few_sentences", lines, tally)
            return []
        if "language" in self.rules and self.is_wanted and not self.is_wanted("\n".join(lines)):
            self._remove_page("language", lines, tally)
            return []
        return split

    @property
    def counted(self) -> tuple[str, ...]:
        """Rules by which the removed text is counted: a page without sentences is always one of few."""
        return tuple(rule for rule in RULES if rule in self.rules or rule == "few_sentences")

    def has_few_sentences(self, lines: list[Line]) -> bool:
        """Return True if a page has too few sentences; a page without sentences always has too few."""
        least = self.min_sentences if "few_sentences" in self.rules else 1
        return sum(len(line.sentences) for line in lines) < least

    def _line(self, line: str, tally: Tally) -> tuple[str, str]:
        """Return the line without citation marks, and the rule that removes it or its page; "" if there is none."""
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
        # Searching for each word is many times faster than one expression for all of them.
        if "bad_word" in rules and any(word in lower and pattern.search(lower) for word, pattern in self._bad_words):
            return line, "bad_word"
        return line, ""

    def _without_citations(self, line: str, tally: Tally) -> str:
        match = _CITATION.search(line)
        if not match:
            return line
        remaining = _CITATION.sub("", line).strip()
        tally.removed["citation"].add(characters=len(line) - len(remaining), example=line[max(match.start() - 40, 0) :])
        return remaining

    @cached_property
    def _bad_words(self) -> list[tuple[str, re.Pattern[str]]]:
        """Return each word with a pattern that matches it as a whole word, or anywhere in scripts without spaces."""
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
    """Raise UserError for a name that is not in `RULES`."""
    for name in names:
        if name not in RULES:
            hint = did_you_mean(name, RULES, f"one of {', '.join(RULES)}")
            raise UserError(f"{name!r} is not a cleaning rule{hint}")
