"""Multiple choice: files with the layouts of SWAG and RACE, rows, training, predictions and export."""

import csv
import json

import numpy as np
import pytest

import bertfam
from bertfam import cli
from bertfam.data.corpora.labelled.labelled_files import LabelledFiles
from bertfam.data.rows.labelled.choices import ChoiceTexts
from bertfam.data.rows.labelled.labelled_texts import LabelledTexts
from bertfam.data.token_cache.documents import Documents
from bertfam.data.vocabularies.layouts import LAYOUTS
from bertfam.data.vocabularies.pieces import Pieces
from bertfam.errors import UserError
from bertfam.finetuning.predictor import open_predictor
from bertfam.finetuning.survey import survey

ENDINGS = tuple(f"ending{number}" for number in range(4))
RECORDS = [
    ("the function returns", "it", ["a list", "an error", "the class of the given object", "none"], 2),
    ("a module", "the string", ["is imported", "ends", "begins", "is a value"], 0),
    ("the argument is given by default here", "the value", ["is set", "raises", "is the same", "returns it"], 3),
]


def swag(path):
    """Write records as SWAG's files have them."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["", "video-id", "fold-ind", "startphrase", "sent1", "sent2", "gold-source", *ENDINGS, "label"])
        for number, (first, second, endings, label) in enumerate(RECORDS):
            writer.writerow([number, "v", number, f"{first} {second}", first, second, "gold", *endings, label])
    return path


def race(path, records=RECORDS):
    """Write records as RACE's files have them."""
    lines = [
        {"example_id": "high1.txt", "article": first, "answer": "ABCD"[label], "question": second, "options": options}
        for first, second, options, label in records
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


COLUMNS = {"text": "sent1", "text_pair": "sent2", "choices": ENDINGS}
FIELDS = {"text": "article", "text_pair": "question", "choices": ("options",), "label": "answer"}


def test_both_layouts_give_the_text_and_its_choices(tmp_path):
    files = {swag(tmp_path / "a.csv"): (COLUMNS, "0123"), race(tmp_path / "b.jsonl"): (FIELDS, "ABCD")}
    for path, (columns, names) in files.items():
        contents = survey(LabelledFiles((str(path),), validation_fraction=0.0, **columns))
        assert (contents.head, contents.head_values, contents.choices) == ("MultipleChoice", {"classes": tuple(names)}, 4)
        assert list(contents.corpus.read(path)) == [
            [first, *(f"{second} {choice}" for choice in choices), str(label)] for first, second, choices, label in RECORDS
        ]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"options": ["a"]}, ("b.jsonl:2: 1 choice", "b.jsonl:1 has 4")),
        ({"options": "abcd"}, ("b.jsonl:2", "'options' is no list", "--choices=a,b")),
        ({"options": ["a", "", "c", "d"]}, None),
        ({"answer": "E"}, ("'E'", "none of 4 choices")),
        ({"article": ""}, ("b.jsonl:2", "'article' is empty")),
    ],
)
def test_mistakes_in_choices(tmp_path, change, named):
    path = race(tmp_path / "b.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1] |= change
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    if named is None:  # what stands before a choice is its text
        assert survey(LabelledFiles((str(path),), validation_fraction=0.0, **FIELDS)).choices == 4
        return
    with pytest.raises(UserError) as error:
        survey(LabelledFiles((str(path),), validation_fraction=0.0, **FIELDS))
    assert all(part in str(error.value) for part in named), error.value


@pytest.mark.parametrize("layout", ["bert", "roberta", "xlnet"])
def test_each_part_of_a_row_is_the_row_of_a_pair(layout):
    kind, generator = LAYOUTS[layout], np.random.default_rng(0)
    pieces = [*kind.first, *map(str, range(50)), *kind.last]
    tokens = Pieces(pieces, kind, np.ones(len(pieces), bool), sentinels=0).token_ids
    lengths = generator.integers(0, 14, (5, 4))
    starts = np.concatenate([[0], np.cumsum(lengths.reshape(-1))])
    text, labels = generator.choice(tokens.pieces, starts[-1]), np.array([0, 2, 1, np.nan, 2], np.float32)
    documents = Documents("toy", text, starts, 4 * np.arange(6), labels=labels, label_count=1)
    order, keys = np.array([3, 0, 4]), np.zeros(3, np.uint64)
    rows = ChoiceTexts(choices=3).examples(documents, 3 * 16, 0, tokens).rows(order, keys)
    for choice in range(3):
        pairs = [
            np.concatenate([text[starts[4 * one + k] : starts[4 * one + k + 1]] for k in (0, 1 + choice)]) for one in range(5)
        ]
        ends = np.cumsum(lengths[:, [0, 1 + choice]].reshape(-1))
        single = Documents(
            "pairs", np.concatenate(pairs), np.concatenate([[0], ends]), 2 * np.arange(6), labels=labels, label_count=1
        )
        expected = LabelledTexts().examples(single, 16, 0, tokens).rows(order, keys)
        for name in ("encoder_input_tokens", "encoder_segment_ids", "encoder_token_type_ids"):
            np.testing.assert_array_equal(rows[name][:, 16 * choice : 16 * (choice + 1)], expected[name])
        np.testing.assert_array_equal(rows["sequence_start_positions"][:, choice], expected["sequence_start_positions"][:, 0])
        for name in ("labels", "label_weights"):
            np.testing.assert_array_equal(rows[name], expected[name])
    cut = (lengths[:, :1] + lengths[:, 1:] > 12 - 3).any(axis=1).sum()
    assert 0 < cut < 5
    assert ChoiceTexts(choices=3).examples(documents, 3 * 12, 0, tokens).warnings[0].startswith(f"{cut} of the 5 texts of ")
    with pytest.raises(UserError, match="48 does not divide into 5 choices"):
        ChoiceTexts(choices=5).check_length(48)


def test_a_model_of_choices_predicts_their_names_and_is_exported(random_model, caches_in_process, tmp_path, capsys):
    path, held_out = race(tmp_path / "train.jsonl", RECORDS * 6), race(tmp_path / "dev.jsonl", RECORDS[::-1])
    words = ["finetune", f"--init_from={random_model}", f"--train={path}", f"--validation={held_out}", "--text=article"]
    words += ["--text_pair=question", "--choices=options", "--label=answer", "--epochs=0.5", "--batch_size=8", "--length=16"]
    assert cli.main([*words, f"--model_dir={tmp_path / 'model'}"]) == 0
    out = capsys.readouterr().out
    assert "classes      4: A (6), B (0), C (6), D (6)" in out and "8 rows x 64 tokens" in out
    assert "float32 rows of 16 tokens on cpu" in out  # each choice attends within its part
    words = ["predict", f"--model_dir={tmp_path / 'model'}", f"--input={path}", "--label=answer", "--probabilities"]
    assert cli.main([*words, f"--output={tmp_path / 'out.jsonl'}"]) == 0
    predicted = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert len(predicted) == 18 and "accuracy" in capsys.readouterr().out
    texts = [(first, *(f"{second} {choice}" for choice in choices)) for first, second, choices, _ in RECORDS]
    model, outputs = bertfam.load(tmp_path / "model"), open_predictor(tmp_path / "model").outputs(texts)
    assert model.predict(texts) == [record["prediction"] for record in predicted[:3]]
    assert [record["prediction"] for record in predicted[:3]] == ["ABCD"[best] for best in outputs.argmax(axis=1)]
    with pytest.raises(UserError, match="a text and its 4 choices"):
        model.predict(["one text"])
    assert cli.main(["export", f"--model_dir={tmp_path / 'model'}", f"--output={tmp_path / 'out'}"]) == 0
    assert "BertForMultipleChoice" in capsys.readouterr().out
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "out"))
    theirs = transformers.AutoModelForMultipleChoice.from_pretrained(str(tmp_path / "out")).eval()
    pairs = [[text] * len(choices) for text, *choices in texts], [choices for _, *choices in texts]
    encoded = tokenizer(*(sum(one, []) for one in pairs), truncation=True, max_length=16, padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = theirs(**{name: value.reshape(3, 4, -1) for name, value in encoded.items()}).logits.numpy()
    np.testing.assert_allclose(outputs, logits, atol=1e-3)
