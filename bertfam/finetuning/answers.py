"""Answers of a fine-tuned model to questions: spans of the texts, found in windows of them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bertfam.corruption import keys
from bertfam.data.corpora.labelled.labelled_corpus import UNKNOWN
from bertfam.data.rows.labelled.answer_windows import AnswerExamples, AnswerWindows
from bertfam.data.token_cache.documents import Documents
from bertfam.data.token_cache.tokenize import tokenise_spans
from bertfam.finetuning.predictor import Predictor
from bertfam.objectives.fine_tuning.heads import Head, SpanExtraction

_QUESTIONS = 256  # that are tokenised together
_BEST = 20  # first tokens, and last tokens, of each window that are combined


class Answer(NamedTuple):
    """Best answer to a question.

    Attributes:
      text: The characters begin .. begin + len(text) - 1 of the context.
      begin: Its first character.
      score: Sum of the outputs of its first and its last token.
      no_answer_score: The same of [CLS], which stands for no answer: the lowest of all windows.
    """

    text: str
    begin: int
    score: float
    no_answer_score: float

    @property
    def no_answer_margin(self) -> float:
        """Score of no answer above that of the text."""
        return self.no_answer_score - self.score

    def predicted(self, head: Head, threshold: float = 0.0) -> str:
        """Return the predicted text: "" if the head's training questions may have none, and the margin is above the threshold."""
        has_none = isinstance(head, SpanExtraction) and head.has_no_answer
        return "" if has_none and self.no_answer_margin > threshold else self.text


def find_answers(
    predictor: Predictor, questions: Sequence[tuple[str, str]], *, batch_size: int = 32, longest: int = 30
) -> list[Answer]:
    """Find the best span of each context that answers its question.

    Args:
      predictor: A model that was trained on questions.
      questions: Each question and its context.
      batch_size: Windows at a time.
      longest: Most tokens of an answer.
    """
    answers: list[Answer] = []
    for begin in range(0, len(questions), _QUESTIONS):
        answers += _find(predictor, questions[begin : begin + _QUESTIONS], batch_size, longest)
    return answers


def _find(predictor: Predictor, questions: Sequence[tuple[str, str]], batch_size: int, longest: int) -> list[Answer]:
    layout = predictor.layout
    assert isinstance(layout, AnswerWindows)
    block, offsets = tokenise_spans(
        predictor.vocabulary, [[question, context, f"{UNKNOWN} {UNKNOWN}"] for question, context in questions]
    )
    starts = np.concatenate([[0], np.cumsum(block.sentences)])
    documents = Documents(
        "the input", block.tokens, starts, 2 * np.arange(len(questions) + 1), labels=block.labels, label_count=2
    )
    examples: AnswerExamples = layout.examples(documents, predictor.length, 0, predictor.vocabulary.token_ids)
    windows = np.arange(len(examples))
    places, rows = examples.places(windows), examples.rows(windows, keys.fold(0, windows))
    best = [Answer("", 0, -np.inf, np.inf)] * len(questions)
    for indices, outputs in predictor.batch_outputs(rows, batch_size):
        for window, own in zip(indices.tolist(), outputs, strict=True):
            number, first = int(places.document[window]), int(places.first[window])
            position, size = int(places.position[window]), int(places.size[window])
            no_answer = min(float(own[0].sum()), best[number].no_answer_score)
            found = _best_span(own[position : position + size], longest)
            answer = best[number]
            if found is not None and found[2] > answer.score:
                begin, end = _characters(questions[number][1], offsets[number][first + found[0] : first + found[1] + 1])
                answer = Answer(questions[number][1][begin:end], begin, found[2], no_answer)
            best[number] = answer._replace(no_answer_score=no_answer)
    return best


def _best_span(scores: np.ndarray, longest: int) -> tuple[int, int, float] | None:
    """Return the first and the last token of the best span, and its score, given float32[tokens, 2]; None without tokens."""
    if not len(scores):
        return None
    firsts, lasts = (np.argsort(-scores[:, side], kind="stable")[:_BEST] for side in (0, 1))
    # [firsts, lasts]
    sums = scores[firsts, 0][:, None] + scores[lasts, 1]
    lengths = lasts - firsts[:, None] + 1
    sums = np.where((lengths >= 1) & (lengths <= longest), sums, -np.inf)
    first, last = np.unravel_index(int(sums.argmax()), sums.shape)
    if not np.isfinite(sums[first, last]):
        token = int(scores.sum(axis=1).argmax())  # a span of one token is always possible
        return token, token, float(scores[token].sum())
    return int(firsts[first]), int(lasts[last]), float(sums[first, last])


def _characters(context: str, offsets: np.ndarray) -> tuple[int, int]:
    """Return the first character of a span of tokens with offsets int32[tokens, 2], and the end, without spaces at both ends."""
    begin, end = int(offsets[:, 0].min()), int(offsets[:, 1].max())
    while begin < end and context[begin].isspace():
        begin += 1
    while end > begin and context[end - 1].isspace():
        end -= 1
    return begin, end
