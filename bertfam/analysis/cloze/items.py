"""Cloze items: texts with a blank, accepted answers, and distractors."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bertfam.analysis.coreference import read_passages
from bertfam.data.corpora.formats import read_objects, replace_invalid, string_field
from bertfam.errors import UserError

BLANK = "___"
_FOLDER = Path(__file__).parent / "kinds"
KINDS = ("trivia", "syntax", "coreference", "topic", "sentiment", "reasoning", "arithmetic", "bias")
_FORM = f'each line must be {{"text": a text with {BLANK}, "answers": [...], "distractors": [...], "kind": a name}}'


class Item(NamedTuple):
    """Text with a blank.

    Attributes:
      before, behind: text before and behind the blank.
      answers: accepted answers; of the kind bias, those of the stereotype.
      distractors: wrong answers, with which the accepted ones are compared; may be empty.
      kind: name of the group of items.
      where: file and line.
    """

    before: str
    behind: str
    answers: tuple[str, ...]
    distractors: tuple[str, ...]
    kind: str
    where: str

    @property
    def text(self) -> str:
        """Text with the blank."""
        return f"{self.before}{BLANK}{self.behind}"


def shipped_items(kind: str) -> list[Item]:
    """Read the items of one of `KINDS`, about twenty English sentences each, written for this package."""
    return read_items(_FOLDER / f"{kind}.jsonl")


def read_items(path: str | os.PathLike[str]) -> list[Item]:
    """Read a file of JSON lines, plain or compressed.

    A line has "text" with one blank, "answers", a list of at least one text, and may have "distractors", such a list too, and
    "kind", by default the name of the file.

    Raises:
      UserError: a line is malformed, or there is none.
    """
    items = [_item(record, where, _stem(path)) for where, record in read_objects(path, "utf-8", f"; {_FORM}")]
    if not items:
        raise UserError(f"{path} has no line: {_FORM}")
    return items


def gap_items(path: str | os.PathLike[str]) -> list[Item]:
    """Read the passages of a file of GAP's form, with a blank for the pronoun: the answer is the name that it stands for.

    Raises:
      UserError: see `bertfam.analysis.coreference.read_passages`.
    """
    return [
        Item(
            text[: pronoun.start],
            text[pronoun.end :],
            (text[name.start : name.end],),
            (text[other.start : other.end],),
            _stem(path),
            f"{path}: passage {number}",
        )
        for number, (text, pronoun, name, other) in enumerate(read_passages(path), 1)
    ]


def _stem(path: str | os.PathLike[str]) -> str:
    return Path(path).name.partition(".")[0]


def _item(record: dict[str, Any], where: str, kind: str) -> Item:
    text = replace_invalid(string_field(record, "text", where, _FORM))
    if text.count(BLANK) != 1:
        raise UserError(f"{where}: the text has {text.count(BLANK)} blanks; write {BLANK} once, where the answer belongs")
    before, _, behind = text.partition(BLANK)
    if behind.startswith("_"):
        raise UserError(f"{where}: the blank is longer than {BLANK}; write it with {len(BLANK)} underscores")
    answers, distractors = (_fillers(record, name, where) for name in ("answers", "distractors"))
    if not answers:
        raise UserError(f"{where}: the text has no answers; {_FORM}")
    if both := sorted(set(answers) & set(distractors)):
        raise UserError(f"{where}: {both[0]!r} is both an answer and a distractor; remove one of them")
    name = string_field(record, "kind", where, _FORM) if "kind" in record else kind
    return Item(before, behind, answers, distractors, name, where)


def _fillers(record: Mapping[str, Any], name: str, where: str) -> tuple[str, ...]:
    fillers = record.get(name, [])
    if not isinstance(fillers, list) or not all(isinstance(one, str) and one.strip() for one in fillers):
        raise UserError(f'{where}: "{name}" is no list of texts; {_FORM}')
    return tuple(dict.fromkeys(replace_invalid(one).strip() for one in fillers))
