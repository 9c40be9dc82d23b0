"""Files of questions with the passages that answer them and hard negatives, for dual encoders (Karpukhin et al. 2020, DPR)."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from typing_extensions import override

from bertfam.data.corpora.file_corpus import FileCorpus
from bertfam.data.corpora.formats import ends_in, read_objects, replace_invalid
from bertfam.data.corpora.labelled.question_files import QuestionFiles
from bertfam.errors import UserError
from bertfam.retrieval.hard_negatives import Query, mine

_RIGHT = "0"  # label of a document: the number of the right passage
_FORM = '{"question": TEXT, "positive": TEXT or [TEXT, ...], "hard_negatives": [TEXT, ...]}'


class PassageQuestion(NamedTuple):
    """Question with passages.

    Attributes:
      question: the question.
      positives: passages that answer it, at least one.
      answers: texts that answer it; empty if they are not known.
      negatives: hard negatives, the best first; None if the file has none, so that they are mined.
    """

    question: str
    positives: tuple[str, ...]
    answers: tuple[str, ...] = ()
    negatives: tuple[str, ...] | None = None


@dataclass(frozen=True)
class PassageFiles(FileCorpus):
    """Questions with passages, plain, gzipped or zstd-compressed.

    Files whose names end in .json have SQuAD's format: a question's passage is its context, and questions without an answer are
    left out. Others have a JSON object on each line, with "question", "positive" (a passage or a list of them), and optionally
    "hard_negatives" and "answer" (lists). A question without hard negatives of its own has those that BM25 finds among the
    passages of its file; see `hard_negatives.mine`.

    Each positive passage makes a document: the question, the passage, and as many hard negatives as `hard_negatives`, empty where
    there are fewer. Documents are held out by their question.

    Attributes:
      train, validation, validation_fraction: See `FileCorpus`.
      hard_negatives: Hard negatives of a question, the first ones.
    """

    train: tuple[str, ...]
    validation: tuple[str, ...] = ()
    hard_negatives: int = 1
    validation_fraction: float = 0.1

    def __post_init__(self) -> None:
        self.check_paths()
        if self.hard_negatives < 0:
            raise UserError(f"PassageFiles.hard_negatives is {self.hard_negatives} (--hard_negatives): it must be at least 0")

    @property
    @override
    def labels(self) -> int:
        return 1

    def questions(self, path: str | os.PathLike[str]) -> Iterator[PassageQuestion]:
        """Yield the questions of a file.

        Raises:
          UserError: If a question is not as it must be.
        """
        if ends_in(path, ".json"):
            for one in QuestionFiles((os.fspath(path),)).questions(path):
                if one.answers:
                    answers = tuple(text for text, _ in one.answers)
                    yield PassageQuestion(one.question, (one.context.strip(),), answers)
            return
        for where, record in read_objects(path, "utf-8"):
            yield passage_question(record, where)

    @override
    def read(self, path: str | os.PathLike[str]) -> Iterator[list[str]]:
        questions = list(self.questions(path))
        mined = iter(self._mined(questions))
        for question, positives, _, negatives in questions:
            chosen = list(next(mined) if negatives is None else negatives)[: self.hard_negatives]
            chosen += [""] * (self.hard_negatives - len(chosen))
            for positive in positives:
                yield [question, positive, *chosen, _RIGHT]

    @override
    def fingerprint(self) -> dict[str, Any]:
        return {"kind": "passage_files", "hard_negatives": self.hard_negatives} | self.file_settings()

    @override
    def _belongs(self, lines: list[str], split: str) -> bool:
        return super()._belongs(lines[:1], split)

    def _mined(self, questions: list[PassageQuestion]) -> list[list[str]]:
        """Return hard negatives of the questions that have none of their own."""
        queries = [Query(one.question, one.positives, one.answers) for one in questions if one.negatives is None]
        passages = dict.fromkeys(passage for one in questions for passage in (*one.positives, *(one.negatives or ())))
        return mine(queries, list(passages), self.hard_negatives)


def passage_question(record: Mapping[str, Any], where: str) -> PassageQuestion:
    """Return the question of a JSON object; raise UserError, with its place, if it is not as it must be."""
    question, positive = record.get("question"), record.get("positive")
    positives = positive if isinstance(positive, list) else [positive]
    for name, texts in (("question", [question]), ("positive", positives)):
        if not texts or not _are_texts(texts):
            fault = f"the field {name!r} is missing or has no text"
            raise UserError(f"{where}: {fault}; a line is {_FORM}: fix the field, or remove the line")
    answers, negatives = (_list(record, name, where) for name in ("answer", "hard_negatives"))
    result = PassageQuestion(_text(question), tuple(map(_text, positives)), tuple(answers or ()), negatives)
    if both := next((text for text in result.negatives or () if text in result.positives), None):
        raise UserError(f"{where}: the hard negative {both[:60]!r} is a positive passage of the question too; remove one of them")
    return result


def _list(record: Mapping[str, Any], name: str, where: str) -> tuple[str, ...] | None:
    """Return the texts of a field that an object may lack; raise UserError if it is neither a text nor a list of texts."""
    if (values := record.get(name)) is None:
        return None
    values = [values] if isinstance(values, str) else values
    if not isinstance(values, list) or not _are_texts(values):
        raise UserError(f"{where}: the field {name!r} is no list of texts with at least one letter; fix it, or leave it out")
    return tuple(map(_text, values))


def _are_texts(values: list[Any]) -> bool:
    return all(isinstance(value, str) and value.strip() for value in values)


def _text(value: Any) -> str:
    return replace_invalid(str(value)).strip()
