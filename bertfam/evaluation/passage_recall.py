"""Recall of an index of passages for questions, beside BM25 and passages at random."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np

from bertfam.data.corpora.labelled.open_questions import OpenQuestion
from bertfam.errors import UserError
from bertfam.retrieval.hard_negatives import words_of

T = TypeVar("T")
CUTOFFS = (1, 5, 20)
_SEED = 0  # of the passages at random


def recall(questions: Sequence[OpenQuestion], passages: Sequence[str], found: np.ndarray) -> dict[str, float]:
    """Compute the shares of questions for which a right passage is among the first k.

    "recall@k" counts the passages that a question was written for, and is there if all questions have one. "answer@k" counts
    every passage with an answer, as words without regard to case and punctuation (Karpukhin et al. 2020, table 2), and is there
    if all questions have an answer.

    Args:
      questions: the questions.
      passages: texts of all passages.
      found: int[questions, n], the passages found for each question, the best first.

    Raises:
      UserError: if some questions lack answers, and others passages.
    """
    right: dict[str, np.ndarray] = {}  # bool[questions, n] each
    if all(question.passages for question in questions):
        written_for = [{passage.strip() for passage in question.passages} for question in questions]
        right["recall"] = np.array([[passages[number].strip() in own for number in row] for own, row in _zip(written_for, found)])
    if all(question.answers for question in questions):
        words = {number: words_of(passages[number]) for number in set(found.flatten().tolist())}
        answers = [[words_of(answer) for answer in question.answers] for question in questions]
        right["answer"] = np.array(
            [[any(one in words[number] for one in own) for number in row] for own, row in _zip(answers, found)]
        )
    if not right:
        raise UserError("some questions have no answer, and others no passage: give --questions of one kind at a time")
    return {f"{name}@{k}": float(np.mean(of_row[:, :k].any(axis=1))) for name, of_row in right.items() for k in CUTOFFS}


def at_random(questions: int, passages: int, count: int) -> np.ndarray:
    """Draw passages for each question, without replacement and the same in every call: int64[questions, count]."""
    generator = np.random.default_rng(_SEED)
    count = min(count, passages)
    return np.stack([generator.choice(passages, count, replace=False) for _ in range(questions)])


def _zip(values: Sequence[T], found: np.ndarray) -> Iterator[tuple[T, list[int]]]:
    """Yield the value of each question with the passages found for it."""
    return zip(values, found.tolist(), strict=True)
