"""Records of benchmarks whose JSON lines hold several texts to label, or mark words by their number: a table of readers.

Each line becomes one flat record or several, whose fields are columns of `LabelledFiles`.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import index
from typing import Any, Literal, NamedTuple

from bertfam.data.corpora.formats import read_objects
from bertfam.errors import UserError

BenchmarkFormat = Literal["multirc", "record", "wsc", "minimal_pairs"]
_PLACEHOLDER = "@placeholder"
_HIGHLIGHT = re.compile(r"([.?!\"'])?\n@highlight\n")
_WORD = re.compile(r"\S+")


def read_benchmark(path: str | os.PathLike[str], name: BenchmarkFormat, encoding: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield (place, fields by name) for each record of a plain, gzipped or zstd-compressed file of a benchmark's layout.

    Raises:
      UserError: If a line is not of that layout.
    """
    layout = _LAYOUTS[name]
    for where, value in read_objects(path, encoding):
        try:
            records = list(layout.records(value))
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            problem = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
            raise UserError(f"{where}: not a line of {layout.title} ({problem}); it has {layout.form}") from error
        for record in records:
            yield where, record


def _multirc(value: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a record of each answer to each question about a passage."""
    passage = value["passage"]
    for question in passage["questions"]:
        for answer in question["answers"]:
            yield {
                "passage": passage["text"],
                "question": question["question"],
                "answer": answer["text"],
                "passage_idx": index(value["idx"]),
                "question_idx": index(question["idx"]),
                "answer_idx": index(answer["idx"]),
            } | ({"label": answer["label"]} if "label" in answer else {})


def _record(value: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a record of each entity of a passage in each query, without `label` where answers are not known.

    The lines of highlights become sentences of the passage, as in T5's published preprocessing.
    """
    passage = value["passage"]
    text = passage["text"]
    entities = dict.fromkeys(_entity(text, _place(entity["start"]), _place(entity["end"])) for entity in passage["entities"])
    spoken = _HIGHLIGHT.sub(lambda match: f"{match[1] or '.'} ", text)
    for question in value["qas"]:
        answers = [answer["text"] for answer in question.get("answers", ())]
        for entity in entities:
            yield {
                "passage": spoken,
                "query": question["query"].replace(_PLACEHOLDER, entity),
                "answer": entity,
                "question_idx": index(question["idx"]),
            } | ({"answers": answers, "label": entity in answers} if answers else {})


def _entity(text: str, first: int, last: int) -> str:
    if not first <= last < len(text):
        raise IndexError(f"no entity is at characters {first} to {last} of a text of {len(text):,}")
    return text[first : last + 1]


def _place(number: Any) -> int:
    """Return the place in a text that a file states; Python would count a negative one from the end."""
    place = index(number)
    if place < 0:
        raise IndexError(f"{place} is no place, which counts from 0")
    return place


def _wsc(value: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the record with the field `marked`: the text with `* noun *` and `# pronoun #`.

    The marks are those of T5 (Raffel et al. 2020, section 2.4 and the published code).
    """
    target, text = value["target"], value["text"]
    spans = [(_place(target[f"span{number}_index"]), target[f"span{number}_text"], mark) for number, mark in ((1, "*"), (2, "#"))]
    for first, span, mark in sorted(spans, reverse=True):  # from the end, so that places before stay as they are
        text = _marked(text, first, span, mark)
    return [value | {"marked": text}]


def _marked(text: str, first: int, span: str, mark: str) -> str:
    """Mark a span that begins with a word, by its number among those that white space separates.

    Some published spans differ from the text. Then as many words as they have are marked.
    """
    words = list(_WORD.finditer(text))[first:]
    begin = words[0].start()
    end = begin + len(span) if text.startswith(span, begin) else words[len(span.split()) - 1].end()
    return f"{text[:begin]}{mark} {text[begin:end]} {mark}{text[end:]}"


def _minimal_pair(value: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the record of a pair, whose sentences are in an order that a hash of both decides."""
    good, bad = value["sentence_good"], value["sentence_bad"]
    label = hashlib.blake2b(f"{good}\n{bad}".encode(errors="surrogatepass"), digest_size=1).digest()[0] % 2
    first, second = (bad, good) if label else (good, bad)
    return [{"question": "Which sentence is correct?", "first": first, "second": second, "label": label}]


class _Layout(NamedTuple):
    """Layout of the lines of a benchmark.

    Attributes:
      title: Its name, for messages.
      form: Outline of a line, for messages.
      records: Function that returns the records of a line.
    """

    title: str
    form: str
    records: Callable[[dict[str, Any]], Iterable[dict[str, Any]]]


_LAYOUTS: dict[BenchmarkFormat, _Layout] = {
    "multirc": _Layout(
        "MultiRC",
        '{"idx", "passage": {"text", "questions": [{"idx", "question", "answers": [{"idx", "text", "label"}]}]}}',
        _multirc,
    ),
    "record": _Layout(
        "ReCoRD",
        '{"passage": {"text", "entities": [{"start", "end"}]}, "qas": [{"idx", "query", "answers": [{"text"}]}]}',
        _record,
    ),
    "wsc": _Layout("WSC", '{"text", "target": {"span1_index", "span1_text", "span2_index", "span2_text"}, "label"}', _wsc),
    "minimal_pairs": _Layout("minimal pairs", '{"sentence_good", "sentence_bad"}', _minimal_pair),
}
