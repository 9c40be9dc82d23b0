"""Files of questions with a text that answers them, in SQuAD's format (Rajpurkar et al. 2016, 2018)."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from typing_extensions import override

from bertfam.data.corpora.file_corpus import FileCorpus
from bertfam.data.corpora.formats import replace_invalid
from bertfam.data.corpora.labelled.labelled_corpus import UNKNOWN
from bertfam.data.corpora.text_lines import read_blocks
from bertfam.errors import UserError

_NO_ANSWER = -1


class Question(NamedTuple):
    """A question about a text.

    Attributes:
      id: Its name in the file.
      question: The question.
      context: The text.
      answers: Each answer and the character of the context at which it begins; empty if there is none, or it is not known.
      is_impossible: True if the context does not answer it.
    """

    id: str
    question: str
    context: str
    answers: list[tuple[str, int]]
    is_impossible: bool


@dataclass(frozen=True)
class QuestionFiles(FileCorpus):
    """Questions in plain, gzipped or zstd-compressed JSON files of SQuAD's versions 1.1 and 2.0.

    Each question is a document of its own: the question and its context. The first of several answers is the one to learn.

    Attributes:
      train, validation, validation_fraction: See `FileCorpus`.
      answered: False if the answers are not read.
    """

    train: tuple[str, ...]
    validation: tuple[str, ...] = ()
    answered: bool = True
    validation_fraction: float = 0.1

    def __post_init__(self) -> None:
        self.check_paths()

    @property
    @override
    def labels(self) -> int:
        return 2  # the first and the last character of the answer, or token

    @property
    @override
    def labels_spans(self) -> bool:
        return True

    def questions(self, path: str | os.PathLike[str]) -> Iterator[Question]:
        """Yield the questions of a file.

        Raises:
          UserError: If it is not of SQuAD's format, or an answer is not where it says.
        """
        for context, qas in _paragraphs(path):
            for qa in qas:
                yield self._question(qa, context, path)

    @override
    def read(self, path: str | os.PathLike[str]) -> Iterator[list[str]]:
        for _, question, context, answers, is_impossible in self.questions(path):
            if is_impossible:
                span = f"{_NO_ANSWER} {_NO_ANSWER}"
            elif answers:
                text, begin = answers[0]
                span = f"{begin} {begin + len(text)}"
            else:
                span = f"{UNKNOWN} {UNKNOWN}"
            yield [question, context, span]

    @override
    def fingerprint(self) -> dict[str, Any]:
        return {"kind": "question_files", "answered": self.answered} | self.file_settings()

    def _question(self, qa: Any, context: Any, path: str | os.PathLike[str]) -> Question:
        try:
            id, question, answers = qa["id"], qa["question"], qa.get("answers", [])
            given = [(answer["text"], answer["answer_start"]) for answer in answers]
            given = [(replace_invalid(text) if isinstance(text, str) else text, begin) for text, begin in given]
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path}: a question lacks {error}, or is no object: it needs id, question and answers") from error
        where = f"{path}: question {id!r}"
        if not all(isinstance(text, str) for text in (id, question, context)) or not question.strip() or not context.strip():
            raise UserError(f"{where}: id, question and context must be strings with at least one letter")
        if replace_invalid(id) != id:  # predictions are written by it
            raise UserError(f"{where}: the id is no valid text (half of a surrogate pair, or NUL); rename it")
        question, context = replace_invalid(question), replace_invalid(context)
        if not self.answered:
            return Question(id, question.strip(), context, [], False)
        for text, begin in given:
            is_there = type(begin) is int and begin >= 0 and isinstance(text, str) and text
            if not is_there or context[begin : begin + len(text)] != text:
                raise UserError(
                    f"{where}: the answer {text!r} is not at character {begin} of its context; fix answer_start, which counts "
                    "characters (not bytes) from 0"
                )
        is_impossible = bool(qa.get("is_impossible", False))
        if not given and not is_impossible:
            raise UserError(f'{where}: it has no answer; one that its context does not answer has "is_impossible": true')
        return Question(id, question.strip(), context, [] if is_impossible else given, is_impossible)


def contexts(path: str | os.PathLike[str]) -> list[str]:
    """Return the contexts of a file of SQuAD's format, each once, without white space around them.

    Raises:
      UserError: If it is not of SQuAD's format, or a context is no text.
    """
    found = [context for context, _ in _paragraphs(path)]
    if not all(isinstance(context, str) and context.strip() for context in found):
        raise UserError(f"{path}: contexts must be strings with at least one letter")
    return list(dict.fromkeys(replace_invalid(context).strip() for context in found))


def _paragraphs(path: str | os.PathLike[str]) -> list[tuple[Any, list[Any]]]:
    """Return the context and the questions of each paragraph of a file, as they stand there."""
    try:
        articles = json.loads(b"".join(read_blocks(path)).decode("utf-8-sig"))["data"]
        return [(paragraph["context"], list(paragraph["qas"])) for article in articles for paragraph in article["paragraphs"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"{path}: not questions in SQuAD's format ({type(error).__name__}: {error}); it has "
            '{"data": [{"paragraphs": [{"context": ..., "qas": [{"id", "question", "answers"}]}]}]}'
        ) from error
