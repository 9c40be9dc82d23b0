"""Cleaning of a stream of pages."""

from collections.abc import Iterable, Iterator

from bertfam.data.corpora.c4.repeated import RepeatedSpans
from bertfam.data.corpora.c4.rules import Line, PageRules
from bertfam.data.corpora.c4.tally import Tally

_WITHOUT_SPACES = ("ja", "km", "lo", "my", "th", "zh")


def clean(pages: Iterable[list[str]], rules: PageRules, tally: Tally) -> Iterator[list[str]]:
    """Yield the remaining lines of each page that is kept, in order.

    Memory: one page at a time, and 8 bytes for each span of three sentences that is kept.

    Args:
      pages: the stripped non-blank lines of each page.
      rules: the rules to apply.
      tally: counts the text that is seen, kept and removed.
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
    """Return the lines without repeated sentences, or no lines if too little of the page is left."""
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
    """Return the lines reduced to the sentences of the page whose numbers are in `kept`."""
    joint = "" if language in _WITHOUT_SPACES else " "
    result, start = [], 0
    for line in lines:
        is_kept = [number in kept for number in range(start, start + len(line.sentences))]
        start += len(line.sentences)
        if all(is_kept):
            result.append(line)
            continue
        remaining = [sentence for sentence, keep in zip(line.sentences, is_kept, strict=True) if keep]
        text = joint.join(remaining)
        removed = line.sentences[is_kept.index(False)]
        tally.removed["repeated"].add(lines=not remaining, characters=len(line.text) - len(text), example=removed)
        if remaining:
            result.append(Line(text, remaining))
    return result
