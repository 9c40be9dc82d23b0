"""Sentences with tagged words of files with columns, of JSON lines and of Parquet."""

import dataclasses
import gzip
import json

import pyarrow
import pytest
from mistakes import check_mistake
from pyarrow import parquet

from bertfam.data.corpora.labelled.tagged_files import TaggedFiles
from bertfam.errors import UserError

SENTENCES = [(["EU", "rejects", "U.K."], ["B-ORG", "O", "B-LOC"]), (["Ähm", "."], ["O", "O"])]
CLASSES = ("B-LOC", "B-ORG", "O")
DOCUMENTS = [[*words, " ".join(str(CLASSES.index(tag)) for tag in tags)] for words, tags in SENTENCES]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(name, content, **settings):
    """Write the content of a file, and return its documents."""
    with open(name, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
    return list(TaggedFiles(name, **{"classes": CLASSES, "validation_fraction": 0.0} | settings).texts("train"))


def columns(line):
    return "\n\n".join("\n".join(line(*pair) for pair in zip(*sentence, strict=True)) for sentence in SENTENCES)


CONLL = "-DOCSTART- -X- O O\n\n" + columns("{} {}".format) + "\n"
CONLLU = "# text = x\n1-2\tx\t_\tO\n" + columns("1\t{}\tlemma\t{}\t_".format) + "\n"
JSONL = "".join(json.dumps({"tokens": words, "tags": tags, "id": 3}) + "\n" for words, tags in SENTENCES)


def test_every_format_gives_the_same_documents(folder):
    for name, content in (("a.conll", CONLL), ("a.txt", CONLL.replace(" ", "\t")), ("a.conllu", CONLLU), ("a.jsonl", JSONL)):
        variants = {
            name: content.encode(),
            f"b.{name}.gz": gzip.compress(content.encode()),
            f"crlf.{name}": content.replace("\n", "\r\n").encode(),
            f"no-end.{name}": content.rstrip("\n").encode(),
        }
        for variant, data in variants.items():
            assert read(variant, data) == DOCUMENTS, variant
    assert read("a.txt", CONLLU, input_format="conllu") == DOCUMENTS
    assert read("a.conll", columns("x y {1} {0}".format), words="4", tags="3") == DOCUMENTS
    renamed = JSONL.replace("tokens", "words").replace("tags", "ner")
    assert read("a.jsonl", renamed, words="words", tags="ner") == DOCUMENTS


def test_tags_of_json_may_be_whole_numbers(folder):
    assert read("a.jsonl", '{"tokens": ["x", "y"], "tags": [1, 0]}', classes=("0", "1")) == [["x", "y", "1 0"]]


def write_table(words, tags):
    parquet.write_table(pyarrow.table({"tokens": words, "tags": tags, "id": [3] * len(words)}), "a.table", row_group_size=1)
    with open("a.table", "rb") as file:
        return file.read()


def test_lists_of_parquet_give_the_same_documents(folder):
    words, tags = map(list, zip(*SENTENCES, strict=True))
    for kind in (pyarrow.string(), pyarrow.large_string(), pyarrow.dictionary(pyarrow.int32(), pyarrow.string())):
        for lists in (pyarrow.list_, pyarrow.large_list):
            assert read("a.parquet", write_table(words, pyarrow.array(tags, lists(kind)))) == DOCUMENTS
    numbers = [[CLASSES.index(tag) for tag in part] for part in tags]
    content = write_table(words, pyarrow.array(numbers, pyarrow.list_(pyarrow.int8())))
    assert read("a.txt", content, input_format="parquet", classes=("0", "1", "2")) == DOCUMENTS
    assert read("a.parquet", content, tagged=False, tags="other") == [[*part, " ".join(["nan"] * len(part))] for part in words]
    pairs = ["EU", "U.K."]
    content = write_table(pyarrow.array([pairs], pyarrow.list_(pyarrow.string(), 2)), [["O", "O"]])
    assert read("a.parquet", content) == [[*pairs, "2 2"]]


@pytest.mark.parametrize("space", ["\u00a0", "\u3000", "\u2028", "\u0085", "\x0b", "\x1c"])
def test_columns_are_separated_by_spaces_and_tabs_alone(folder, space):
    """Other white space is part of a word, as the space of 10 000 is."""
    for separator in (" ", "   ", "\t", " \t"):
        content = f"10{space}000{separator}B-LOC \nx{separator}O\n \t\ny{space}z{separator}O\n"
        assert read("a.conll", content) == [[f"10{space}000", "x", "0 2"], [f"y{space}z", "2"]]


def test_words_without_tags(folder):
    expected = [[*words, " ".join(["nan"] * len(words))] for words, _ in SENTENCES]
    assert read("a.conll", columns("{0}".format), tagged=False) == expected
    assert read("a.jsonl", JSONL.replace("tags", "other"), tagged=False) == expected


def test_fingerprint_depends_on_every_setting_that_changes_the_documents(folder):
    for name in ("a.conll", "b.conll"):
        (folder / name).write_text(CONLL + name)
    corpus = TaggedFiles("a.conll", classes=CLASSES)
    changes = {"train": ("b.conll",), "validation": ("b.conll",), "input_format": "conllu", "words": "3", "tags": "4"}
    changes |= {"tagged": False, "classes": CLASSES[::-1], "encoding": "latin-1", "validation_fraction": 0.5}
    assert changes.keys() == {field.name for field in dataclasses.fields(corpus)}
    corpora = [corpus, *(dataclasses.replace(corpus, **{name: value}) for name, value in changes.items())]
    assert len({json.dumps(one.fingerprint(), sort_keys=True) for one in corpora}) == len(corpora)


MISTAKES = {
    "a line with a column too few": ("conll", "x O\n\ny O\nz\n", {}, ["a:4", "1 column,", "column 2", "--label"]),
    "an unknown tag": ("conll", "x O\n\ny O\nz I-PER\n", {}, ["a:3", "'I-PER'", "B-LOC, B-ORG, O"]),
    "a tag in one of several columns": ("conll", "EU NNP O\n", {}, ["a:1", "3 columns", "--label=N", "2 (NNP), 3 (O)"]),
    "a column that is no number": ("conll", "x O\n", {"tags": "ner"}, ["--label=ner", "counted from 1"]),
    "no field of tags": ("jsonl", '{"tokens": ["x"]}', {}, ["a:1", "'tags'", "--label"]),
    "a text in place of words": ("jsonl", '{"tokens": "x y", "tags": ["O"]}', {}, ["a:1", "'tokens'", "no list"]),
    "no words": ("jsonl", '{"tokens": [], "tags": []}', {}, ["a:1", "'tokens'", "empty"]),
    "an empty word": ("jsonl", '{"tokens": ["x", " "], "tags": ["O", "O"]}', {}, ["a:1", "'tokens'", "empty"]),
    "an empty tag": ("jsonl", '{"tokens": ["x"], "tags": [""]}', {}, ["a:1", "label is empty"]),
    "a tag that is null": ("jsonl", '{"tokens": ["x"], "tags": [null]}', {}, ["a:1", "None"]),
    "a tag too few": ("jsonl", '{"tokens": ["x", "y"], "tags": ["O"]}', {}, ["a:1", "2 words and 1 tag;"]),
    "half of a surrogate pair": ("jsonl", '{"tokens": ["x"], "tags": ["O\\ud83d"]}', {}, ["a:1", "half of a surrogate pair"]),
    "nothing": ("conll", "\n\n", {}, ["a: no documents"]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_reported_with_their_place(folder, mistake):
    check_mistake(read, *MISTAKES[mistake])


@pytest.mark.parametrize(
    ("words", "tags", "expected"),
    [
        ([["x"], ["x", None]], [["O"], ["O", "O"]], ["a: row 2: ", "'tokens' has a word that is no string"]),
        ([["x"], None], [["O"], ["O"]], ["a: row 2: ", "'tokens' is no list"]),
        ([["x"], ["x"]], [["O"], [None]], ["a: row 2: ", "None"]),
        ([["x"], ["x", "y"]], [["O"], ["O"]], ["a: row 2: 2 words and 1 tag;"]),
        (["x", "y"], [["O"], ["O"]], ["a: row 1: ", "'tokens' is no list"]),
        ([["x"]], [[{"a": "O"}]], ["a: column 'tags' has type list<", "struct<a: string>", "--label"]),
    ],
)
def test_mistakes_in_parquet_are_reported_with_their_row(folder, words, tags, expected):
    check_mistake(read, "parquet", write_table(words, tags), {}, expected)


def test_invalid_settings_are_refused():
    for settings, message in (
        ({"input_format": "tsv"}, "input_format is 'tsv'"),
        ({"words": "2", "tags": "2"}, "column '2' is named twice"),
        ({"encoding": "klingon"}, "encoding 'klingon' is unknown"),
        ({"classes": ("O", "B\x1b[31m")}, "TaggedFiles.classes has the name .* with a control character"),
    ):
        with pytest.raises(UserError, match=message):
            TaggedFiles("a.conll", **settings)
