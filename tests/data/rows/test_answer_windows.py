"""Windows of contexts: every token is in a window, and labels point at the answer, by brute force."""

import json

import numpy as np
import pytest

from bertfam.corruption import keys
from bertfam.data.corpora.labelled.question_files import QuestionFiles
from bertfam.data.rows.labelled.answer_windows import AnswerWindows
from bertfam.data.token_cache.documents import Documents
from bertfam.data.token_cache.tokenize import tokenise_spans
from bertfam.errors import UserError
from bertfam.finetuning.inference import _squad_format
from bertfam.finetuning.predictions import cell_line, json_line

CONTEXT = (
    "The function returns the list. Ünïcode words — “quoted”, naïve — and numbers: 1,234.5! It is the last value of the list."
)
LONG = " ".join(f"the value {number} is returned by the function;" for number in range(40))


def squad(folder, questions, name="train.json"):
    """Write (context, question, answer or None) as a file of SQuAD's format."""
    paragraphs = [
        {
            "context": context,
            "qas": [
                {
                    "id": f"q{number}",
                    "question": asked,
                    "is_impossible": answer is None,
                    "answers": [] if answer is None else [{"text": answer, "answer_start": context.index(answer)}],
                }
            ],
        }
        for number, (context, asked, answer) in enumerate(questions)
    ]
    path = folder / name
    path.write_text(json.dumps({"version": "2.0", "data": [{"title": "t", "paragraphs": paragraphs}]}), encoding="utf-8")
    return path


QUESTIONS = [
    (CONTEXT, "What is returned?", "the list"),
    (CONTEXT, "Which words?", "“quoted”"),
    (CONTEXT, "Which number?", "1,234.5"),
    (CONTEXT, "Who?", None),
    (LONG, "Which value is the last one of all values that are returned?", "value 39"),
    (LONG, "Which value is the first one?", "value 0"),
]


@pytest.fixture
def windows(vocabulary, tmp_path):
    """Return documents, offsets, examples and rows of the questions in rows of 64 tokens."""
    texts = list(QuestionFiles((str(squad(tmp_path, QUESTIONS)),), validation_fraction=0.0).texts("train"))
    block, offsets = tokenise_spans(vocabulary, texts)
    starts = np.concatenate([[0], np.cumsum(block.sentences)])
    bounds = 2 * np.arange(len(texts) + 1)
    documents = Documents("the text", block.tokens, starts, bounds, labels=block.labels, label_count=2)
    examples = AnswerWindows(stride=16, max_question=8).examples(documents, 64, 0, vocabulary.token_ids)
    indices = np.arange(len(examples))
    return documents, offsets, examples, examples.rows(indices, keys.fold(0, indices))


def test_every_token_of_a_context_is_in_a_window(windows):
    documents, _, examples, rows = windows
    places = examples.places(np.arange(len(examples)))
    for number in range(len(QUESTIONS)):
        context = documents.tokens[slice(*documents.sentence_starts[2 * number + 1 : 2 * number + 3])]
        seen = np.zeros(len(context), bool)
        for window in np.flatnonzero(places.document == number):
            first, size, position = places.first[window], places.size[window], places.position[window]
            np.testing.assert_array_equal(
                rows["encoder_input_tokens"][window, position : position + size], context[first : first + size]
            )
            seen[first : first + size] = True
        assert seen.all()
    assert np.bincount(places.document).tolist()[:4] == [1, 1, 1, 1] and np.bincount(places.document)[4] > 10


def test_labels_point_at_the_characters_of_the_answer(windows):
    _, offsets, examples, rows = windows
    places = examples.places(np.arange(len(examples)))
    found = set()
    for window, number in enumerate(places.document):
        context, _, answer = QUESTIONS[number]
        begin, end = rows["labels"][window].astype(int)
        if begin == 0:
            assert end == 0
            continue
        first, last = (place - places.position[window] + places.first[window] for place in (begin, end))
        assert context[offsets[number][first, 0] : offsets[number][last, 1]] == answer
        found.add(int(number))
    assert found == {0, 1, 2, 4, 5}
    assert (rows["label_weights"] == 1).all()


def test_a_row_is_the_question_and_a_window(windows, vocabulary):
    _, _, _, rows = windows
    tokens = vocabulary.token_ids
    for ids, types, segments in zip(
        *(rows[f"encoder_{name}"] for name in ("input_tokens", "token_type_ids", "segment_ids")), strict=True
    ):
        ends = np.flatnonzero(ids == tokens.sep)
        assert ids[0] == tokens.cls and len(ends) == 2 and ends[0] <= 9
        assert types.tolist() == [0] * (ends[0] + 1) + [1] * (ends[1] - ends[0]) + [0] * (63 - ends[1])
        assert segments.sum() == ends[1] + 1


def test_questions_that_are_cut_are_counted(windows):
    _, _, examples, _ = windows
    (line,) = examples.warnings
    assert line.startswith("1 of the 6 questions") and "AnswerWindows.max_question = 8" in line


def test_short_rows_are_refused():
    with pytest.raises(UserError, match="length 100 is too short"):
        AnswerWindows().check_length(100)


@pytest.mark.parametrize("content", ["[]", '{"data": [{"paragraphs": [{"qas": [{}]}]}]}', "{", '{"data": 1}'])
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "t.json").write_text(content)
    with pytest.raises(UserError, match="SQuAD's format"):
        list(QuestionFiles((str(tmp_path / "t.json"),)).questions(tmp_path / "t.json"))


def test_an_answer_at_another_place_is_refused(tmp_path):
    path, (context, _, answer) = squad(tmp_path, QUESTIONS[:1]), QUESTIONS[0]
    text = path.read_text()
    for place in (20, context.index(answer) - len(context)):  # Python would find it at the second
        path.write_text(text.replace('"answer_start": 21', f'"answer_start": {place}'))
        with pytest.raises(UserError, match=f"question 'q0': the answer 'the list' is not at character {place}"):
            list(QuestionFiles((str(path),)).questions(path))


def test_halves_of_surrogate_pairs_are_replaced_in_texts_and_refused_in_ids(tmp_path):
    path = squad(tmp_path, [("a \ud83d b", "What\udc00?", "\ud83d b")])
    (question,) = QuestionFiles((str(path),)).questions(path)
    assert question[:4] == ("q0", "What\ufffd?", "a \ufffd b", [("\ufffd b", 2)])
    path.write_text(path.read_text().replace('"q0"', '"q\\ud83d"'))
    with pytest.raises(UserError, match="the id is no valid text"):
        list(QuestionFiles((str(path),)).questions(path))


def test_unusual_line_ends_in_answers_end_no_record():
    records = "".join(json_line({"id": name, "prediction": "a\u2028b\x85c"}) for name in "xy")
    assert json.loads(_squad_format(records)) == dict.fromkeys("xy", "a\u2028b\x85c")
    assert cell_line(["a\rb", "c\r\nd", "e\nf"], "csv") == "a b,c d,e f\n"
