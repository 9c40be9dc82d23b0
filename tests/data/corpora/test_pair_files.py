"""Pairs of inputs and targets from JSON lines and TSV files."""

import gzip
import json

import pytest
import zstandard

from bertfam.data.corpora.pair_files import PairFiles
from bertfam.errors import UserError

PAIRS = [["eins", "one"], ["zwei drei", "two three"], ["", "nothing"], ["vier", ""]]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"inputs": i, "targets": t, "more": 1}) for i, t in PAIRS))
    (tmp_path / "a.tsv").write_text("".join(f"{i}\t{t}\n" for i, t in PAIRS))
    (tmp_path / "named.tsv").write_text("id\ten\tde\n" + "".join(f"7\t{t}\t{i}\n" for i, t in PAIRS))
    (tmp_path / "a.tsv.gz").write_bytes(gzip.compress((tmp_path / "a.tsv").read_bytes()))
    (tmp_path / "a.tsv.zst").write_bytes(zstandard.ZstdCompressor().compress((tmp_path / "a.tsv").read_bytes()))
    (tmp_path / "crlf.tsv").write_text("".join(f"{i} \t {t}\r\n" for i, t in PAIRS))
    return tmp_path


def read_pairs(name, **settings):
    return list(PairFiles((name,), validation_fraction=0.0, **settings).texts("train"))


TSV = {"input_format": "tsv", "inputs": 1, "targets": 2}


def test_every_format_gives_the_same_pairs(folder):
    assert read_pairs("a.jsonl") == PAIRS
    for name in ("a.tsv", "a.tsv.gz", "a.tsv.zst", "crlf.tsv"):
        assert read_pairs(name, **TSV) == PAIRS
    assert read_pairs("named.tsv", input_format="tsv", inputs="de", targets="en") == PAIRS
    assert read_pairs("a.jsonl", inputs="targets", targets="inputs") == [pair[::-1] for pair in PAIRS]
    (folder / "nested.jsonl").write_text("\n".join(json.dumps({"translation": {"de": i, "en": t}}) for i, t in PAIRS))
    assert read_pairs("nested.jsonl", inputs="translation.de", targets="translation.en") == PAIRS


def test_prefix_is_put_before_the_inputs(folder):
    pairs = read_pairs("a.jsonl", prefix="translate German to English: ")
    assert pairs[1] == ["translate German to English: zwei drei", "two three"]
    assert pairs[2] == ["translate German to English:", "nothing"]


def test_nul_and_lone_surrogates_are_replaced(folder):
    (folder / "odd.jsonl").write_text(r'{"inputs": "a\u0000b", "targets": "\ud800c\nd"}')
    assert read_pairs("odd.jsonl") == [["a\ufffdb", "\ufffdc\nd"]]


def test_pairs_are_held_out_by_their_text_regardless_of_file_order(folder):
    pairs = [{"inputs": f"number {n}", "targets": str(n * n)} for n in range(400)]
    for name, rows in (("all.jsonl", pairs), ("turned.jsonl", pairs[::-1])):
        (folder / name).write_text("\n".join(map(json.dumps, rows)))
    splits = {name: PairFiles((name,), validation_fraction=0.25) for name in ("all.jsonl", "turned.jsonl")}
    train, held_out = (list(splits["all.jsonl"].texts(split)) for split in ("train", "validation"))
    assert len(train) + len(held_out) == 400 and 70 < len(held_out) < 130
    assert sorted(held_out) == sorted(splits["turned.jsonl"].texts("validation"))
    assert [part.size > 0 for part in splits["all.jsonl"].parts("train")] == [True]
    named = PairFiles(("all.jsonl",), validation=("a.jsonl",))
    assert list(named.texts("validation")) == PAIRS and len(list(named.texts("train"))) == 400


def test_fingerprint_depends_on_every_setting_that_changes_the_pairs(folder):
    settings = [
        PairFiles(("a.jsonl",)),
        PairFiles(("a.jsonl",), prefix="x: "),
        PairFiles(("a.jsonl",), inputs="more"),
        PairFiles(("a.jsonl",), validation_fraction=0.5),
        PairFiles(("a.tsv",), **TSV),
        PairFiles(("a.jsonl",), validation=("a.tsv",)),
    ]
    fingerprints = [json.dumps(corpus.fingerprint(), sort_keys=True) for corpus in settings]
    assert len(set(fingerprints)) == len(fingerprints)
    assert fingerprints[0] == json.dumps(PairFiles("a.jsonl").fingerprint(), sort_keys=True)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("a.jsonl", {"inputs": "text"}, "a.jsonl:1: no field 'text' but inputs, targets, more; "),
        ("a.jsonl", {"inputs": "more"}, "a.jsonl:1: the field 'more' is a number, not a string"),
        ("a.jsonl", {"inputs": 1, "targets": 2}, "must both be names"),
        ("a.tsv", {"input_format": "tsv"}, "a.tsv:1: no column 'inputs' but eins, one"),
        ("a.tsv", {}, "a.tsv:1: not JSON .* PairFiles.input_format = 'tsv'"),
        ("a.tsv", {**TSV, "targets": 3}, "a.tsv:1: 2 tab-separated columns, but column 3"),
        ("a.tsv", {**TSV, "inputs": 0}, "counted from 1"),
        ("a.tsv", {**TSV, "targets": "en"}, "must both be names, or both be column numbers"),
        ("a.tsv", {"input_format": "csv"}, "'csv' is unknown: use jsonl or tsv"),
        ("a.jsonl", {"targets": "inputs"}, "are both 'inputs'"),
        ("none.jsonl", {}, "no such file: none.jsonl"),
        ("a.jsonl", {"encoding": "klingon"}, "encoding 'klingon' is unknown"),
    ],
)
def test_mistakes_are_reported(folder, name, settings, message):
    with pytest.raises(UserError, match=message.replace("(", r"\(")):
        read_pairs(name, **settings)
