"""Hard negatives: passages that share words with a question and do not answer it (Karpukhin et al. 2020, section 3.2)."""

import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

from bertfam.retrieval.bm25 import bm25

_RANKED = 100  # passages of each question that are looked through, as in the published data
_WORD = re.compile(r"\w+")


class Query(NamedTuple):
    """Question for which hard negatives are mined.

    Attributes:
      question: the question.
      positives: passages that answer it.
      answers: texts that a negative must not have, as words; there may be none.
    """

    question: str
    positives: Collection[str]
    answers: Sequence[str] = ()


def mine(queries: Sequence[Query], passages: Sequence[str], count: int) -> list[list[str]]:
    """Find the passages that BM25 ranks first of those that neither are a question's own nor have its answer.

    Args:
      queries: the questions.
      passages: texts of all passages, each once.
      count: number of passages for each question; those among the first hundred may be fewer.

    Returns:
      The passages of each question, the best first.

    Raises:
      UserError: bm25s or PyStemmer is not installed.
    """
    if not queries or not count:
        return [[] for _ in queries]
    ranking = bm25(passages, [query.question for query in queries], _RANKED)
    words = {number: words_of(passages[number]) for number in set(ranking.flatten().tolist())}
    found = []
    for query, row in zip(queries, ranking.tolist(), strict=True):
        positives, answers = set(query.positives), [words_of(answer) for answer in query.answers]
        others = (
            passages[number]
            for number in row
            if passages[number] not in positives and not any(answer in words[number] for answer in answers)
        )
        found.append([passage for passage, _ in zip(others, range(count), strict=False)])
    return found


def words_of(text: str) -> str:
    """Return the words of a text between spaces, so that words can be found in others: " the iliad "."""
    return f" {' '.join(_WORD.findall(text.lower()))} "
