"""Pages in, cleaned pages out, one at a time and in order."""

from collections.abc import Iterable, Iterator

from bertfam.data.corpora.c4.repeated import RepeatedSpans
from bertfam.data.corpora.c4.rules import Line, PageRules
from bertfam.data.corpora.c4.tally import Tally

_WITHOUT_SPACES = ("ja", "km", "lo", "my", "th", "zh")


def clean(pages: Iterable[list[str]], rules: PageRules, tally: Tally) -> Iterator[list[str]]:
    """The lines of each page that is kept.

    Memory: a page at a time, and 8 bytes for every three sentences in a row that are kept.

    Args:
      pages: stripped non-blank lines each.
      rules: what is removed.
      tally: counts what is seen, kept and removed.
    """
    repeated = RepeatedSpans() if "repeated" in rules.rules else None
    for page in pages:
        tally.seen.add(1, len(page), sum(map(len, page)))
        lines = rules(page, tally)
        if repeated is not None and lines:
            lines = _unique(lines, repeated, rules, tally)
        if lines:
            text = [line.text for line in lines]
            tally.kept.add(1, len(text), sum(map(len, text)))
            yield text


def _unique(lines: list[Line], repeated: RepeatedSpans, rules: PageRules, tally: Tally) -> list[Line]:
    """The lines without the sentences that stand before; none where too little is left of the page."""
    sentences = [sentence for line in lines for sentence in line.sentences]
    kept = set(repeated.unique(sentences))
    if len(kept) < len(sentences):
        lines = _with_sentences(lines, kept, rules.language, tally)
        if rules.has_few_sentences(lines):
            text = [line.text for line in lines]
            tally.removed["repeated"].add(1, len(text), sum(map(len, text)))
            return []
    repeated.keep([sentence for line in lines for sentence in line.sentences])
    return lines


def _with_sentences(lines: list[Line], kept: set[int], language: str, tally: Tally) -> list[Line]:
    """The lines with only those sentences of the page."""
    joint = "" if language in _WITHOUT_SPACES else " "
    found, begin = [], 0
    for line in lines:
        stays = [place in kept for place in range(begin, begin + len(line.sentences))]
        begin += len(line.sentences)
        if all(stays):
            found.append(line)
            continue
        stay = [sentence for sentence, here in zip(line.sentences, stays, strict=True) if here]
        text = joint.join(stay)
        gone = line.sentences[stays.index(False)]
        tally.removed["repeated"].add(lines=not stay, characters=len(line.text) - len(text), example=gone)
        if stay:
            found.append(Line(text, stay))
    return found
