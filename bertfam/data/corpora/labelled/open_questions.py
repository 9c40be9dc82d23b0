"""Files of questions to be answered from a collection of passages, or from none."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from typing_extensions import override

from bertfam.data import vocabularies
from bertfam.data.corpora.file_corpus import FileCorpus
from bertfam.data.corpora.formats import ends_in, read_objects, replace_invalid
from bertfam.data.corpora.labelled.labelled_corpus import UNKNOWN
from bertfam.data.corpora.labelled.passage_files import passage_question
from bertfam.data.corpora.labelled.question_files import QuestionFiles
from bertfam.data.vocabularies import Vocabulary
from bertfam.errors import UserError

SEPARATOR = " // "  # between a passage and the question, as in transformers' RagConfig.doc_sep


class OpenQuestion(NamedTuple):
    """Question to be answered from a collection of passages.

    Attributes:
      question: the question.
      answers: texts that answer it; a passage with one of them is right. Empty if they are not known.
      passages: the passages that it was written for; empty if they are not known.
    """

    question: str
    answers: tuple[str, ...]
    passages: tuple[str, ...] = ()


def read_questions(path: str | os.PathLike[str], *, answered: bool = True) -> Iterator[OpenQuestion]:
    """Yield the questions of a file that have an answer.

    Args:
      path: a .json file of SQuAD's format (1.1 or 2.0), or another with a JSON object on each line, {"question": TEXT, "answer":
        [TEXT, ...]} (Chen et al. 2017, DrQA) or a line of `PassageFiles`, plain, gzipped or zstd-compressed.
      answered: False to yield all questions, without their answers.

    Raises:
      UserError: if a line is not as it must be.
    """
    if ends_in(path, ".json"):
        for one in QuestionFiles((os.fspath(path),), answered=answered).questions(path):
            if one.answers or not answered:
                yield OpenQuestion(one.question, tuple(text for text, _ in one.answers), (one.context,))
        return
    for where, record in read_objects(path, "utf-8"):
        if "positive" in record:
            line = passage_question(record, where)
            yield OpenQuestion(line.question, line.answers, line.positives)
            continue
        question, answers = record.get("question"), record.get("answer")
        answers = [answers] if isinstance(answers, str) else answers
        has_answers = isinstance(answers, list) and answers and all(map(_is_text, answers))
        if not _is_text(question) or (answered and not has_answers):
            raise UserError(f'{where}: the line is no {{"question": TEXT, "answer": [TEXT, ...]}}; fix it, or name another file')
        found = tuple(map(replace_invalid, answers)) if answered and isinstance(answers, list) else ()
        yield OpenQuestion(replace_invalid(str(question)).strip(), found)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


@dataclass(frozen=True)
class AnswerFiles(FileCorpus):
    """Questions with answers that a retrieval-augmented generator learns, plain or compressed; see `read_questions`.

    Each question is a document: the separator and the question, and the first of its answers. Its labels are the tokens of the
    question in the vocabulary of the question encoder, without control tokens.

    Attributes:
      train, validation, validation_fraction: See `FileCorpus`.
      question_vocabulary: Folder of that vocabulary.
      question_tokens: Number of labels, of which longer questions have the first; "nan" fills up those of shorter ones.
      prompt: Text that the question encoder reads before a question.
    """

    train: tuple[str, ...]
    validation: tuple[str, ...] = ()
    question_vocabulary: str = ""
    question_tokens: int = 64
    prompt: str = ""
    validation_fraction: float = 0.1

    def __post_init__(self) -> None:
        self.check_paths()
        if self.question_tokens < 1:
            raise UserError(f"AnswerFiles.question_tokens is {self.question_tokens}: it must be at least 1")

    @property
    @override
    def labels(self) -> int:
        return self.question_tokens

    def questions(self, path: str | os.PathLike[str]) -> Iterator[OpenQuestion]:
        """Yield the questions of a file; raise UserError if one has no answer, or the file cannot be read."""
        for one in read_questions(path):
            if not one.answers:
                raise UserError(f'{path}: the question {one.question[:60]!r} has no "answer"; add it, or remove the line')
            yield one

    def lines(self, question: str, answer: str) -> list[str]:
        """Return the document of a question with an answer."""
        ids = _vocabulary(self.question_vocabulary).encode(self.prompt + question).ids[: self.question_tokens]
        labels = [*map(str, np.asarray(ids).tolist()), *[UNKNOWN] * (self.question_tokens - len(ids))]
        return [SEPARATOR + question, answer, " ".join(labels)]

    @override
    def read(self, path: str | os.PathLike[str]) -> Iterator[list[str]]:
        for one in self.questions(path):
            yield self.lines(one.question, one.answers[0].strip())

    @override
    def fingerprint(self) -> dict[str, Any]:
        own = {"question_vocabulary": _vocabulary(self.question_vocabulary).fingerprint, "prompt": self.prompt}
        return {"kind": "answer_files", "question_tokens": self.question_tokens} | own | self.file_settings()

    @override
    def _belongs(self, lines: list[str], split: str) -> bool:
        return super()._belongs(lines[:1], split)


@lru_cache(maxsize=1)
def _vocabulary(folder: str) -> Vocabulary:
    """Load the vocabulary of the question encoder, once in each process that reads files."""
    return vocabularies.load(folder)
