"""Labelled texts of tab-separated, comma-separated and JSON-lines files."""

import dataclasses
import datetime
import gzip
import json
import math
import os

import pyarrow
import pytest
import zstandard
from mistakes import check_mistake
from pyarrow import parquet

from bertfam.data.corpora import parquet_tables
from bertfam.data.corpora.labelled import records
from bertfam.data.corpora.labelled.labelled_files import LabelledFiles
from bertfam.data.corpora.labelled.target_files import TargetFiles
from bertfam.errors import UserError

RECORDS = [
    ("It is good.", "good"),
    ('He said "no", twice', "bad"),
    ("Zwölf Boxkämpfer 😃", "good"),
    ('"', "bad"),
]
CLASSES = ("bad", "good")
DOCUMENTS = [[text, str(CLASSES.index(label))] for text, label in RECORDS]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(name, content=None, **settings):
    """Write the content of a file if it is given, and return its documents."""
    if content is not None:
        data = content.encode() if isinstance(content, str) else content
        with open(name, "wb") as file:
            file.write(data)
    settings = {"classes": CLASSES, "validation_fraction": 0.0} | settings
    return list(LabelledFiles(name, **settings).texts("train"))


def quoted(cell):
    return '"' + cell.replace('"', '""') + '"'


TSV = "label\tmore\ttext\n" + "".join(f"{label}\tx\t{text}\n" for text, label in RECORDS)
CSV = "label,more,text\n" + "".join(f"{label},x,{quoted(text)}\n" for text, label in RECORDS)
JSONL = "".join(json.dumps({"label": label, "more": [1], "text": text}, ensure_ascii=False) + "\n" for text, label in RECORDS)


def test_every_format_gives_the_same_documents(folder):
    for name, content in (("a.tsv", TSV), ("a.csv", CSV), ("a.jsonl", JSONL)):
        variants = {
            name: content.encode(),
            f"b.{name}.gz": gzip.compress(content.encode()),
            f"{name.upper()}.ZST": zstandard.ZstdCompressor().compress(content.encode()),
            f"mark.{name}": b"\xef\xbb\xbf" + content.encode(),
            f"crlf.{name}": content.replace("\n", "\r\n").encode(),
            f"no-end.{name}": content.rstrip("\n").encode(),
            f"blank.{name}": content.replace("\n", "\n\n").encode(),
        }
        for variant, data in variants.items():
            assert read(variant, data) == DOCUMENTS, variant
        assert read(f"c.{name}", content.replace("😃", "").encode("latin-1"), encoding="latin-1")[2][0] == "Zwölf Boxkämpfer"
        form = name.removeprefix("a.")
        assert read("a.txt", content, input_format=form) == DOCUMENTS


def test_columns_without_a_header_are_numbered(folder):
    columns = {"text": "3", "label": "1", "header": False}
    for name, content in (("a.tsv", TSV), ("a.csv", CSV)):
        assert read(name, content.partition("\n")[2], **columns) == DOCUMENTS


def test_quotation_marks_are_text_in_tsv_files_and_enclose_cells_in_csv_files(folder):
    assert read("a.tsv", 'text\tlabel\n"one\tgood\na ""b""\tbad\n') == [['"one', "1"], ['a ""b""', "0"]]
    content = 'text,label\n"one, ""two""\nand three",good\n"  x ","bad"\n \nfour \' five,good\n'
    assert read("a.csv", content) == [['one, "two"\nand three', "1"], ["x", "0"], ["four ' five", "1"]]
    places = [where for where, *_ in LabelledFiles("a.csv").records("a.csv")]
    assert places == ["a.csv:2", "a.csv:4", "a.csv:6"]


def test_cells_of_csv_files_may_be_long(folder):
    text = "word " * 100_000
    assert read("a.csv", f'text,label\n"{text}",good\n') == [[text.strip(), "1"]]


def test_pairs_have_two_texts(folder):
    settings = {"text": "question", "text_pair": "answer", "label": "correct", "classes": ("false", "true")}
    expected = [["Why?", "So.", "1"], ["Who?", "I, you", "0"]]
    assert read("a.tsv", "answer\tquestion\tcorrect\nSo.\tWhy?\ttrue\nI, you\tWho?\tfalse\n", **settings) == expected
    assert read("a.csv", 'question,correct,answer\nWhy?,true,So.\nWho?,false,"I, you"\n', **settings) == expected
    lines = [{"question": q, "answer": a, "correct": c} for q, a, c in (("Why?", "So.", True), ("Who?", "I, you", False))]
    assert read("a.jsonl", "".join(json.dumps(line) + "\n" for line in lines), **settings) == expected


def test_labels_of_json_may_be_booleans_and_whole_numbers(folder):
    content = "".join(json.dumps({"text": "x", "label": label}) + "\n" for label in (3, "3", -1, True, " true ", False))
    assert read("a.jsonl", content, classes=("-1", "3", "true", "false")) == [["x", number] for number in "110223"]


def test_numbers_to_predict(folder):
    settings = {"kind": "number", "classes": ()}
    expected = [["x", "0.5"], ["x", "3.0"], ["x", "-1e-05"]]
    assert read("a.tsv", "text\tlabel\nx\t0.5\nx\t 3\nx\t-1e-5\n", **settings) == expected
    assert (
        read("a.jsonl", "".join(json.dumps({"text": "x", "label": n}) + "\n" for n in (0.5, 3, "-1e-5")), **settings) == expected
    )
    assert LabelledFiles("a.tsv", **settings).labels == 1


def test_texts_of_any_number_of_classes(folder):
    settings = {"kind": "classes", "classes": ("a", "b", "c d")}
    expected = [["w", "1 0 0"], ["x", "1 0 1"], ["y", "0 0 0"], ["z", "0 1 0"]]
    assert read("a.tsv", "text\tlabel\nw\ta\nx\tc d, a\ny\t\nz\tb,b,\n", **settings) == expected
    labels = ("a", ["c d", "a"], [], ["b"])
    lines = [{"text": text, "label": label} for text, label in zip("wxyz", labels, strict=True)]
    assert read("a.jsonl", "".join(json.dumps(line) + "\n" for line in lines), **settings) == expected
    assert LabelledFiles("a.tsv", **settings).labels == 3
    assert read("a.jsonl", '{"text": "x", "label": [1, true]}\n', kind="classes", classes=("1", "2", "true")) == [["x", "1 0 1"]]


def test_texts_without_labels_may_be_empty(folder):
    settings = {"label": None, "kind": "classes", "text_pair": "more"}
    expected = [["x", "y", "nan nan"], ["", "z", "nan nan"], ["", "", "nan nan"]]
    assert read("a.tsv", "text\tmore\nx\ty\n\tz\n\n\t\n", **settings) == expected
    settings["kind"] = "class"
    assert read("a.csv", 'text,more\n"",z\n,\n', **settings) == [["", "z", "nan"], ["", "", "nan"]]


def test_texts_are_held_out_by_their_hash_or_are_those_of_other_files(folder):
    (folder / "a.tsv").write_text("text\tlabel\n" + "".join(f"text {number}\tgood\n" for number in range(400)))
    corpus = LabelledFiles("a.tsv", classes=("good",), validation_fraction=0.25)
    train, held_out = (list(corpus.texts(split)) for split in ("train", "validation"))
    assert len(train) + len(held_out) == 400 and 70 < len(held_out) < 130
    (folder / "b.csv").write_text(CSV)
    both = LabelledFiles("a.tsv", "b.csv", classes=CLASSES)
    assert list(both.texts("validation")) == DOCUMENTS and len(list(both.texts("train"))) == 400


def test_fingerprint_depends_on_every_setting_that_changes_the_documents(folder):
    for name, content in (("a.tsv", TSV), ("b.tsv", TSV + "good\tx\ty\n")):
        (folder / name).write_text(content)
    corpus = LabelledFiles("a.tsv", classes=CLASSES)
    changes = {
        "train": ("b.tsv",),
        "validation": ("b.tsv",),
        "input_format": "csv",
        "text": "more",
        "text_pair": "more",
        "label": None,
        "kind": "number",
        "classes": CLASSES[::-1],
        "header": False,
        "encoding": "latin-1",
        "ragged": True,
        "validation_fraction": 0.5,
        "skip_empty": True,
        "choices": ("more", "text"),
    }
    assert changes.keys() == {field.name for field in dataclasses.fields(corpus)}
    corpora = [corpus, *(dataclasses.replace(corpus, **{name: value}) for name, value in changes.items())]
    fingerprints = [json.dumps(corpus.fingerprint(), sort_keys=True) for corpus in corpora]
    assert len(set(fingerprints)) == len(fingerprints)
    assert json.dumps(LabelledFiles(["a.tsv"], classes=CLASSES).fingerprint(), sort_keys=True) == fingerprints[0]


NUMBER, CLASSES_OF = {"kind": "number"}, {"kind": "classes"}
MISTAKES = {
    "a row with a cell too many": ("tsv", "text\tlabel\nx\tgood\n\nx\ty\tgood\n", {}, ["a:4", "3 columns", "2", "tab"]),
    "a row with a cell too few": ("csv", "text,label\nx\n", {}, ["a:2", "1 column", "2", "quotation marks"]),
    "a row unlike the first": ("csv", "x,good\ny\n", {"header": False, "text": "1", "label": "2"}, ["a:2", "first line has 2"]),
    "a row after a long one": ("csv", 'text,label\n"x\n\ny",good\nx,y,good\n', {}, ["a:5", "3 columns"]),
    "no column of the text": ("tsv", "sentence\tlabel\nx\tgood\n", {}, ["a:2", "'text'", "sentence, label", "--text"]),
    "no column of a second text": ("csv", "text,label\nx,good\n", {"text_pair": "b"}, ["a:2", "'b'", "--text_pair"]),
    "no column of the label": ("jsonl", '\n{"text": "x"}\n', {}, ["a:2", "'label'", "--label"]),
    "a name for a numbered column": ("tsv", "x\tgood\n", {"header": False}, ["a:1", "'text'", "1, 2", "--no_header"]),
    "an empty text": ("tsv", "text\tlabel\nx\tgood\n \tgood\n", {}, ["a:3", "'text'", "empty"]),
    "a row of nothing": ("csv", "text,label\nx,good\n,\n", {}, ["a:3", "'text'", "empty"]),
    "an empty second text": ("jsonl", '{"text": "x", "b": " ", "label": "good"}', {"text_pair": "b"}, ["a:1", "'b'", "empty"]),
    "a text that is a number": ("jsonl", '{"text": 3, "label": "good"}', {}, ["a:1", "'text'", "no string"]),
    "a text that is null": ("jsonl", '{"text": null, "label": "good"}', {}, ["a:1", "'text'", "no string"]),
    "an empty label": ("csv", "text,label\nx,\n", {}, ["a:2", "label is empty"]),
    "a label that is null": ("jsonl", '{"text": "x", "label": null}', {}, ["a:1", "None"]),
    "a label that is null among several": ("jsonl", '{"text": "x", "label": null}', CLASSES_OF, ["a:1", "None", "no string"]),
    "a label with a fraction": ("jsonl", '{"text": "x", "label": 0.5}', {}, ["a:1", "0.5", "--regression"]),
    "a list of labels": ("jsonl", '{"text": "x", "label": ["good"]}', {}, ["a:1", "['good']", "--multi_label"]),
    "an unknown label": ("tsv", "text\tlabel\nx\tfair\n", {}, ["a:2", "'fair'", "bad, good"]),
    "an unknown label among several": ("tsv", "text\tlabel\nx\tgood,fair\n", CLASSES_OF, ["a:2", "'fair'", "bad, good"]),
    "a list within a list": ("jsonl", '{"text": "x", "label": [["good"]]}', CLASSES_OF, ["a:1", "['good']"]),
    "a number that is none": ("tsv", "text\tlabel\nx\t1,5\n", NUMBER, ["a:2", "'1,5'", "no number"]),
    "a number that is infinite": ("tsv", "text\tlabel\nx\tinf\n", NUMBER, ["a:2", "'inf'", "no number"]),
    "a number that is nan": ("jsonl", '{"text": "x", "label": NaN}', NUMBER, ["a:1", "nan", "no number"]),
    "a number that is a boolean": ("jsonl", '{"text": "x", "label": true}', NUMBER, ["a:1", "True", "no number"]),
    "a number that is a list": ("jsonl", '{"text": "x", "label": [1]}', NUMBER, ["a:1", "[1]", "no number"]),
    "a number beyond floats": ("jsonl", '{"text": "x", "label": 1' + "0" * 400 + "}", NUMBER, ["a:1", "no number"]),
    "two columns of one name": ("csv", "text,label, text\nx,good,y\n", {}, ["a:1", "'text'", "--no_header"]),
    "an open quotation mark": ("csv", 'text,label\nx,good\n"y,good\nz,bad\n', {}, ["a:3", "quotation marks"]),
    "text after a quotation mark": ("csv", 'text,label\n"x" y,good\n', {}, ["a:2", "quotation marks"]),
    "a line that is no JSON": ("jsonl", "text\n", {}, ["a:1", "not JSON"]),
    "an unknown extension": ("text", "x", {}, ["a: ", ".tsv, .csv, .jsonl or .parquet", "--format"]),
    "JSON lines of another extension": ("json", '{"text": "x"}', {}, ["a: ", "--format=jsonl"]),
    "commas in tsv": ("tsv", "text,label\nx,good\n", {}, ["a:2", "'text,label'", "--format=csv"]),
    "tabs in csv": ("csv", "text\tlabel\nx\tgood\n", {}, ["a:2", "--format=tsv"]),
    "semicolons in csv": ("csv", "text;label\nx;good\n", {}, ["a:2", "'text;label'", "semicolons"]),
    "a numbered column beside a header": ("tsv", "x\tgood\ny\tbad\n", {"text": "1"}, ["a:2", "'1'", "--no_header"]),
    "a class with a point": ("jsonl", '{"text": "x", "label": 1.0}', {}, ["a:1", "1.0", "whole numbers"]),
    "a label that is nan": ("jsonl", '{"text": "x", "label": NaN}', {}, ["a:1", "nan", "drop"]),
    "half of a surrogate pair": ("jsonl", '{"text": "x", "label": "good\\ud83d"}', {}, ["a:1", "half of a surrogate pair"]),
    "a label with a CR": ("jsonl", '{"text": "x", "label": "a\\rb"}', {}, ["a:1", "a line end"]),
    "a header alone": ("tsv", "text\tlabel\n", {}, ["a: no documents"]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_reported_with_their_place(folder, mistake):
    check_mistake(read, *MISTAKES[mistake])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"train": ()}, "no training text"),
        ({"input_format": "xlsx"}, "input_format is 'xlsx': it must be one of None, 'tsv', 'csv', 'jsonl'"),
        ({"kind": "tags"}, "kind is 'tags'"),
        ({"text": "label"}, "column 'label' is named twice"),
        ({"text_pair": "text"}, "column 'text' is named twice"),
        ({"classes": ("a", "b", "a")}, "'a' twice"),
        ({"classes": ("a", "b\ud83d")}, "LabelledFiles.classes has the name 'b.*' with half of a surrogate pair"),
        ({"encoding": "klingon"}, "encoding 'klingon' is unknown"),
        ({"validation_fraction": 1.0}, "validation_fraction is 1.0"),
    ],
)
def test_invalid_settings_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        LabelledFiles(**{"train": ("a.tsv",)} | settings)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.TSV", "tsv"),
        ("b.tsv/a.csv.gz", "csv"),
        ("a.jsonl.zst", "jsonl"),
        ("a.Parquet", "parquet"),
        ("a.json", None),
        ("tsv", None),
        ("a.gz", None),
    ],
)
def test_extension_denotes_the_format(name, kind):
    assert records.record_format(name) == kind


def both(rows, **options):
    """Write rows to a.jsonl and to a.parquet."""
    with open("a.jsonl", "w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    parquet.write_table(pyarrow.Table.from_pylist(rows), "a.parquet", **options)


@pytest.mark.parametrize(
    ("labels", "settings"),
    [
        (("good", "bad", " good ", "bad"), {}),
        ((3, 0, -1, 3), {"classes": ("-1", "0", "3")}),
        ((True, False, True, False), {"classes": ("false", "true")}),
        ((0.1, 5.0, -1e-5, 3.25), {"kind": "number", "classes": ()}),
        ((["good"], [], ["good", "bad"], ["bad"]), {"kind": "classes"}),
        (("good", "", "bad,good", "good"), {"kind": "classes"}),
        (("bad",) * 4, {"text": "{text} ({more})", "text_pair": "more"}),
        (("bad",) * 4, {"text_pair": "options.a", "choices": ("text", "more")}),
        ((0, 1, 1, 0), {"text": "more", "choices": ("list",), "classes": ("0", "1")}),
    ],
)
def test_parquet_has_the_documents_of_json_lines(folder, labels, settings):
    rows = [
        {"text": f" {text}", "label": label, "more": "x", "list": ["y", text], "options.a": "z"}
        for (text, _), label in zip(RECORDS, labels, strict=True)
    ]
    both(rows, row_group_size=3)
    assert read("a.parquet", **settings) == read("a.jsonl", **settings)
    os.rename("a.parquet", "a.table")
    assert read("a.table", input_format="parquet", **settings) == read("a.jsonl", **settings)
    places = [where for where, *_ in LabelledFiles("a.table", input_format="parquet", **settings).records("a.table")]
    assert places == [f"a.table: row {number}" for number in range(1, 5)]


def test_parquet_of_other_types_of_strings_and_numbers(folder):
    text = pyarrow.array(["x", "y", "x"])
    for kind in (pyarrow.large_string(), pyarrow.string_view(), pyarrow.dictionary(pyarrow.int8(), pyarrow.string())):
        for number in (pyarrow.int8(), pyarrow.uint64(), pyarrow.bool_()):
            label = pyarrow.array([1, 0, 1]).cast(number)
            parquet.write_table(pyarrow.table({"text": text.cast(kind), "label": label}), "a.parquet")
            expected = [["x", "1"], ["y", "0"], ["x", "1"]]
            assert read("a.parquet", classes=("0", "1") if number != pyarrow.bool_() else ("false", "true")) == expected
    for kind in (pyarrow.float32(), pyarrow.float16()):
        parquet.write_table(pyarrow.table({"text": text, "label": pyarrow.array([0.5, 1.0, -2.0]).cast(kind)}), "a.parquet")
        assert read("a.parquet", kind="number") == [["x", "0.5"], ["y", "1.0"], ["x", "-2.0"]]


def test_targets_in_parquet(folder):
    both([{"article": "a b", "summary": " c"}, {"article": "d", "summary": "e"}])
    corpora = [TargetFiles(name, text="tl;dr {article}", target="summary") for name in ("a.parquet", "a.jsonl")]
    assert list(corpora[0].read("a.parquet")) == list(corpora[1].read("a.jsonl")) == [["tl;dr a b", "c"], ["tl;dr d", "e"]]
    both([{"text": "x", "target": None}])
    with pytest.raises(UserError, match=r"^a.parquet: row 1: the field 'target' is null"):
        list(TargetFiles("a.parquet").read("a.parquet"))


STRUCT, BYTES, DEEP = [{"a": "x"}], [b"x"], [[["x"]]]
MISTAKES_OF_TABLES = {
    "no column": ({"body": ["x"], "label": ["bad"]}, {}, [": no column 'text' but body, label; ", "--text"]),
    "a joined column that is not there": ({"body": ["x"]}, {"text": "{title}: {body}"}, [": no column 'title' but body; "]),
    "a struct": ({"text": STRUCT, "label": ["bad"]}, {}, [": column 'text' has type struct<a: string>; ", "--text"]),
    "bytes": ({"text": BYTES, "label": ["bad"]}, {}, [": column 'text' has type binary; "]),
    "a date": ({"text": ["x"], "label": [datetime.date(2026, 1, 1)]}, {}, [": column 'label' has type date32", "--label"]),
    "lists of lists": ({"text": ["x"], "label": DEEP}, CLASSES_OF, [": column 'label' has type list<"]),
    "a number for a text": ({"text": [3], "label": ["bad"]}, {}, [": row 1: the field 'text' is no string"]),
    "a list for a text": ({"text": [["x"]], "label": ["bad"]}, {}, [": row 1: the field 'text' is no string"]),
    "a null text": ({"text": ["x", None], "label": ["bad"] * 2}, {}, [": row 2: the field 'text' is null"]),
    "null texts alone": ({"text": [None], "label": ["bad"]}, {}, [": row 1: the field 'text' is null"]),
    "an empty text": ({"text": ["x", " "], "label": ["bad"] * 2}, {}, [": row 2: the column 'text' is empty"]),
    "a null label": ({"text": ["x"] * 2, "label": ["bad", None]}, {}, [": row 2: the label None", "fix the record"]),
    "a class with a point": ({"text": ["x"], "label": [1.0]}, {}, [": row 1: ", "1.0", "whole numbers"]),
    "a class that is nan": ({"text": ["x"], "label": [math.nan]}, {}, [": row 1: ", "nan", "drop"]),
    "a list of labels": ({"text": ["x"], "label": [["bad"]]}, {}, [": row 1: ", "['bad']", "--multi_label"]),
    "an unknown label": ({"text": ["x"], "label": ["fair"]}, {}, [": row 1: ", "'fair'", "bad, good"]),
    "an encoding": ({"text": ["x"], "label": ["bad"]}, {"encoding": "latin-1"}, [": the strings of Parquet are UTF-8"]),
    "no rows": ({"text": pyarrow.array([], "string"), "label": pyarrow.array([], "string")}, {}, [": no documents"]),
}


@pytest.mark.parametrize("mistake", MISTAKES_OF_TABLES)
def test_mistakes_in_parquet_are_reported_with_their_row(folder, mistake):
    columns, settings, (begin, *others) = MISTAKES_OF_TABLES[mistake]
    parquet.write_table(pyarrow.table(columns), "a.parquet")
    check_mistake(read, "parquet", None, settings, [f"a{begin}", *others])


def test_a_damaged_parquet_file_is_reported(folder):
    both([{"text": "x", "label": "bad"}])
    content = (folder / "a.parquet").read_bytes()
    for damaged in (content[:-20], b"text\tlabel\n", b"PAR1"):
        check_mistake(read, "parquet", damaged, {}, ["a: not a Parquet file, or damaged after row 0"])
    check_mistake(read, "parquet.gz", gzip.compress(content), {}, ["a: a Parquet file is not compressed as a whole", "gunzip"])
    check_mistake(read, "tsv", content, {}, ["a:", "this is a Parquet file; ", "labelled texts by --format=parquet"])
    parquet.write_table(pyarrow.table([["a"], ["b"]], names=["text", "text"]), "a.parquet")
    check_mistake(read, "parquet", None, {}, ["a: 2 columns are named 'text'"])


def test_lists_that_unpack_to_gigabytes_are_refused(folder, monkeypatch):
    word = pyarrow.array(["a" * (1 << 20)])
    entries = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 4096, "int32"), word)
    lists = pyarrow.ListArray.from_arrays(pyarrow.array([0, 4096], "int32"), entries)
    parquet.write_table(pyarrow.table({"text": ["x"], "label": lists}), "a.parquet")
    assert os.path.getsize("a.parquet") < 1 << 18  # of a list of 4 GiB
    check_mistake(read, "parquet", None, CLASSES_OF, ["a: row 1: a list with more than 33,554,432 characters"])
    both([{"text": "x", "label": ["bad"] * 60}, {"text": "y", "label": ["good"] * 41}])
    monkeypatch.setattr(parquet_tables, "_LISTED", 100)
    check_mistake(read, "parquet", None, CLASSES_OF, ["a: the lists of column 'label' have 101 values", "of 2 rows"])
