"""Scores of answers against SQuAD's definition, on cases that are scored by hand."""

import pytest

from bertfam.data.corpora.labelled.question_files import Question
from bertfam.finetuning.answer_scores import exact, f1, normalise, score_answers


def question(*answers, impossible=False):
    return Question("id", "Who?", "context", [(text, 0) for text in answers], impossible)


@pytest.mark.parametrize(
    ("answer", "normalised"),
    [
        ("The Cat, a dog!", "cat dog"),
        ("an  apple\ta day", "apple day"),
        ("theatre", "theatre"),
        ("don't", "dont"),
        ("Zürich", "zürich"),
        ("“quoted”", "“quoted”"),  # only the punctuation of ASCII is removed
        ("the", ""),
    ],
)
def test_normalised_answers(answer, normalised):
    assert normalise(answer) == normalised


@pytest.mark.parametrize(
    ("answer", "true", "em", "expected"),
    [
        ("the cat", "Cat.", 1, 1),
        ("black cat", "the cat", 0, 2 / 3),
        ("cat cat", "cat", 0, 2 / 3),  # a word counts as often as both have it
        ("dog", "cat", 0, 0),
        ("", "cat", 0, 0),
        ("the", "a", 1, 1),  # neither has words
    ],
)
def test_exact_match_and_f1(answer, true, em, expected):
    assert exact(answer, true) == em and f1(answer, true) == pytest.approx(expected)


def test_the_best_of_several_answers_counts():
    scores = score_answers([question("cat", "the black cat"), question("dog")], ["black cat", "a bird"], None, 0.0)
    assert scores == {"exact": 50.0, "f1": 50.0}


def test_questions_without_an_answer():
    questions = [question("cat"), question(impossible=True), question("dog"), question(impossible=True)]
    texts, margins = ["cat", "bird", "dog", "fish"], [-2.0, 3.0, 1.0, -1.0]
    scores = score_answers(questions, texts, margins, 0.0)
    # the first is answered and right, the second is not answered and right, the third is not answered, the fourth is
    assert scores["exact"] == scores["f1"] == 50.0
    assert scores["answerable_f1"] == 50.0 and scores["unanswerable_f1"] == 50.0
    # by brute force over all thresholds: above 1 the third is answered too
    every = [score_answers(questions, texts, margins, threshold)["f1"] for threshold in (-3, *sorted(margins))]
    assert scores["best_f1"] == max(every) == 75.0
    assert score_answers(questions, texts, margins, scores["best_f1_threshold"])["f1"] == 75.0


def test_a_model_that_always_answers_has_no_threshold():
    scores = score_answers([question("cat"), question(impossible=True)], ["cat", "bird"], None, 0.0)
    assert scores["f1"] == 50.0 and scores["unanswerable_f1"] == 0.0 and "best_f1" not in scores
