"""Cleaning of a stream of pages: the rules for single pages in parallel, then the removal of repeated text in order."""

import json
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bertfam.data.corpora.c4.repeated import RepeatedSpans, sentence_digests
from bertfam.data.corpora.c4.rules import Line, PageRules
from bertfam.data.corpora.c4.tally import Tally
from bertfam.data.corpora.corpus import Corpus, Part
from bertfam.data.corpora.document_batches import batches
from bertfam.data.parallel import beam
from bertfam.data.parallel.worker_pool import WorkerPool

_WITHOUT_SPACES = ("ja", "km", "lo", "my", "th", "zh")
_PAGES = "pages.jsonl"


@dataclass(frozen=True)
class Page:
    """Rest of a page to which the rules for single pages were applied.

    Attributes:
      lines: the lines, with their sentences.
      digests: the digests of the sentences, if repeated ones are removed.
    """

    lines: list[Line]
    digests: list[bytes]


@dataclass(frozen=True)
class PageBatch:
    """Pages to which the rules for single pages were applied.

    Attributes:
      pages: the pages of which lines remain, in order.
      tally: the text seen, and the text removed by these rules.
    """

    pages: list[Page]
    tally: Tally

    def to_line(self) -> str:
        """Return the batch as a line of JSON."""
        pages = [[page.lines, b"".join(page.digests).hex()] for page in self.pages]
        return json.dumps([pages, self.tally.as_json()], ensure_ascii=False)

    @classmethod
    def from_line(cls, line: str) -> "PageBatch":
        """Return the batch of which `to_line` gave the line."""
        pages, tally = json.loads(line)
        return cls(
            [Page([Line(*parts) for parts in lines], _split(bytes.fromhex(digests))) for lines, digests in pages],
            Tally.from_json(tally),
        )


@dataclass(frozen=True)
class PageCleaner:
    """Rules for single pages as a function of many pages, which can be pickled.

    Attributes:
      rules: the rules.
    """

    rules: PageRules

    def __call__(self, pages: Sequence[list[str]]) -> PageBatch:
        """Apply the rules to pages, given as their stripped non-blank lines."""
        tally, remaining = Tally(self.rules.counted), []
        for page in pages:
            tally.seen.add(1, len(page), sum(map(len, page)))
            if lines := self.rules(page, tally):
                sentences = [sentence for line in lines for sentence in line.sentences]
                remaining.append(Page(lines, sentence_digests(sentences) if "repeated" in self.rules.rules else []))
        return PageBatch(remaining, tally)


def page_batches(corpus: Corpus, rules: PageRules, processes: int) -> Generator[PageBatch]:
    """Apply the rules to all pages of a corpus in `processes` worker processes, or with 0 in this one.

    Raises:
      UserError: if the text is not valid, or there is none.
    """
    is_empty = True
    with WorkerPool(processes, "cleaning") as workers:
        for _, batch in workers.results(PageCleaner(rules), batches(corpus, "train", corpus.parts("train"))):
            is_empty = False
            yield batch
    if is_empty:
        next(corpus.texts("train"), None)


def page_batches_with_beam(
    corpus: Corpus, rules: PageRules, output: Path, fingerprint: dict[str, Any], options: Sequence[str]
) -> Generator[PageBatch]:
    """Apply the rules to all pages of a corpus in a Beam pipeline, as `page_batches` does.

    Args:
      corpus: the corpus.
      rules: the rules.
      output: the output, beside which the workers write.
      fingerprint: the text and the settings; an interrupted pipeline resumes if they are the same.
      options: Beam's pipeline options.
    """
    beam.import_beam()
    parts = {f"{number:06}": part for number, part in enumerate(corpus.parts("train"))}
    is_empty = True
    with beam.parts_folder(output, fingerprint) as folder:
        beam.write_parts(partial(_write_part, corpus, PageCleaner(rules)), parts, folder, options)
        for name in parts:
            beam.read_part(folder / name)
            with open(folder / name / _PAGES, encoding="utf-8") as file:
                for line in file:
                    is_empty = False
                    yield PageBatch.from_line(line)
        if is_empty:
            next(corpus.texts("train"), None)


def _write_part(corpus: Corpus, cleaner: PageCleaner, folder: Path, part: Part) -> dict[str, Any]:
    with open(folder / _PAGES, "w", encoding="utf-8") as file:
        for batch in batches(corpus, "train", [part]):
            file.write(cleaner(batch.texts).to_line() + "\n")
    return {}


def clean(page_batches: Iterable[PageBatch], rules: PageRules, tally: Tally) -> Iterator[list[str]]:
    """Yield the remaining lines of each page that is kept, in order, without repeated text.

    Memory: one batch at a time, and 8 bytes for each span of three sentences that is kept.

    Args:
      page_batches: the pages, after the rules for single pages.
      rules: these rules, and "repeated" if repeated text is removed.
      tally: counts the text that is seen, kept and removed.
    """
    repeated = RepeatedSpans() if "repeated" in rules.rules else None
    for batch in page_batches:
        tally.merge(batch.tally)
        for page in batch.pages:
            if lines := page.lines if repeated is None else _unique(page, repeated, rules, tally):
                text = [line.text for line in lines]
                tally.kept.add(1, len(text), sum(map(len, text)))
                yield text


def _unique(page: Page, repeated: RepeatedSpans, rules: PageRules, tally: Tally) -> list[Line]:
    """Return the lines without repeated sentences, or no lines if too little of the page is left."""
    lines, kept = page.lines, repeated.unique(page.digests)
    if len(kept) < len(page.digests):
        lines = _with_sentences(lines, set(kept), rules.language, tally)
        if rules.has_few_sentences(lines):
            text = [line.text for line in lines]
            tally.removed["repeated"].add(1, len(text), sum(map(len, text)))
            return []
    repeated.keep([page.digests[number] for number in kept])
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


def _split(digests: bytes) -> list[bytes]:
    return [digests[start : start + 8] for start in range(0, len(digests), 8)]
