"""Scores of answers, by SQuAD's published definition (Rajpurkar et al. 2016, section 6.1; 2018)."""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from bertfam.data.corpora.labelled.question_files import Question

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(answer: str) -> str:
    """Return an answer in lower case without punctuation, articles and extra spaces."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def exact(answer: str, true: str) -> float:
    """Return 1 if two answers are equal once they are normalised, else 0."""
    return float(normalise(answer) == normalise(true))


def f1(answer: str, true: str) -> float:
    """Return the F1 of the words of an answer; if one of the two has no words, 1 if both have none."""
    words, true_words = normalise(answer).split(), normalise(true).split()
    if not words or not true_words:
        return float(words == true_words)
    common = sum((Counter(words) & Counter(true_words)).values())
    if not common:
        return 0.0
    precision, recall = common / len(words), common / len(true_words)
    return 2 * precision * recall / (precision + recall)


def score_answers(
    questions: Sequence[Question], texts: Sequence[str], margins: Sequence[float] | None, threshold: float
) -> dict[str, float]:
    """Compute exact match and F1, in percent: the best over the true answers of each question.

    With margins, a question whose margin is above the threshold is predicted to have no answer. Where some questions have none,
    the scores of those with and without an answer, and the best F1 over all thresholds with its threshold, are added.

    Args:
      questions: The questions with their answers.
      texts: The best answer to each.
      margins: The score of no answer above that of the text; None where the model always answers.
      threshold: The margin above which there is no answer.
    """
    given = np.array(
        [[_best(exact, text, question), _best(f1, text, question)] for text, question in zip(texts, questions, strict=True)]
    )
    none = np.array([float(question.is_impossible) for question in questions])
    margin = np.full(len(questions), -np.inf) if margins is None else np.array(margins)
    scores = np.where((margin > threshold)[:, None], none[:, None], given)
    result = {"exact": 100 * scores[:, 0].mean(), "f1": 100 * scores[:, 1].mean()}
    for name, chosen in (("answerable", none == 0), ("unanswerable", none == 1)):
        if none.any() and chosen.any():
            result |= {f"{name}_exact": 100 * scores[chosen, 0].mean(), f"{name}_f1": 100 * scores[chosen, 1].mean()}
    if none.any() and margins is not None:
        # From a threshold below all margins upwards, one question after another is answered.
        order = np.argsort(margin, kind="stable")
        totals = none.sum() + np.concatenate([[0.0], np.cumsum((given[:, 1] - none)[order])])
        best = int(totals.argmax())
        result |= {
            "best_f1": 100 * totals[best] / len(questions),
            "best_f1_threshold": float(margin[order[best - 1]]) if best else -np.inf,
        }
    return {name: float(value) for name, value in result.items()}


def _best(metric: Callable[[str, str], float], text: str, question: Question) -> float:
    trues = [true for true, _ in question.answers if normalise(true)] or [""]
    return max(metric(text, true) for true in trues)
