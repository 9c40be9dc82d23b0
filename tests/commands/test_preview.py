"""`bertfam preview`: the very rows that training sees, as text and as JSON."""

import json

import numpy as np
import pytest
from command_line import listing

from bertfam import cli
from bertfam.data import vocabularies
from bertfam.data.cache import TokenCache
from bertfam.data.preview import text
from bertfam.training.model_dir import read_run


def preview(capsys, *flags):
    assert cli.main(["preview", *flags]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(("step", "stage", "within"), [(0, 0, 0), (11, 0, 11), (12, 1, 0), (15, 1, 3)])
def test_rows_are_those_that_the_run_trained_on(trained, capsys, step, stage, within):
    found = json.loads(preview(capsys, f"--model_dir={trained.model_dir}", f"--step={step}", "--examples=3", "--json"))
    run, cache = read_run(trained.model_dir), TokenCache(trained.model_dir / "cache")
    vocabulary = vocabularies.load(trained.folder / "vocab")
    source = run.data.training(cache, vocabulary.token_ids, run.stages[stage].length, 8, 3, stage)
    rows = source.rows(within, 0, 3)
    assert len(found) == 3
    for index, record in enumerate(found):
        assert record["features"] == {name: value[index].tolist() for name, value in rows.items()}


def test_records_put_back_give_the_clean_row(trained, capsys):
    found = json.loads(preview(capsys, f"--model_dir={trained.model_dir}", "--examples=200", "--json"))
    assert len(found) == 200  # of several batches of 8
    kinds = []
    for record in found:
        assert set(record) == {"pieces", "predictions", "next_sentence", "features"}
        assert record["pieces"][0] == "[CLS]" and record["pieces"][-1] == "[SEP]" and record["pieces"].count("[SEP]") == 2
        assert len(record["predictions"]) == sum(record["features"]["masked_loss_weights"]) >= 1
        for found_ in record["predictions"]:
            seen = record["pieces"][found_["position"]]
            assert seen == found_["input"] and found_["original"] not in ("[CLS]", "[SEP]", "[MASK]", "[PAD]")
            assert (found_["kind"] == "kept") == (seen == found_["original"])
            assert (found_["kind"] == "masked") == (seen == "[MASK]")
            kinds.append(found_["kind"])
        assert record["next_sentence"] == ["next", "random"][record["features"]["next_sentence_labels"][0]]
    shares = {kind: kinds.count(kind) / len(kinds) for kind in ("masked", "random", "kept")}
    assert shares == pytest.approx({"masked": 0.8, "random": 0.1, "kept": 0.1}, abs=0.06)


def test_text_for_people(trained, capsys):
    flags = [f"--model_dir={trained.model_dir}", "--examples=40"]
    records = json.loads(preview(capsys, *flags, "--json"))
    lines = preview(capsys, *flags).splitlines()
    assert len(lines) == 2 * 40 + 2
    for number, record in enumerate(records):
        count, tokens = len(record["predictions"]), len(record["pieces"])
        assert lines[2 * number] == f"row {number}: B is {record['next_sentence']}, {count} predicted of {tokens}"
        assert lines[2 * number + 1] == f"  {text(record)}"
    assert lines[-2] == "{word>[MASK]} masked, {word>other} replaced, {word} kept but predicted"
    shown = dict(zip(*[iter(lines[-1].split())] * 2, strict=True))
    places = sum(len(record["features"]["encoder_input_tokens"]) for record in records)
    tokens = sum(len(record["pieces"]) for record in records)
    predicted = sum(len(record["predictions"]) for record in records)
    assert shown["real_tokens"] == f"{tokens / places:.1%}" and shown["predicted"] == f"{predicted / tokens:.1%}"
    assert shown["next_sentence_random"] == f"{np.mean([record['next_sentence'] == 'random' for record in records]):.1%}"


def test_marks_of_the_three_kinds():
    record = {
        "pieces": ["[CLS]", "[MASK]", "b", "x", "[SEP]"],
        "predictions": [
            {"position": 1, "original": "a", "input": "[MASK]", "kind": "masked"},
            {"position": 2, "original": "b", "input": "b", "kind": "kept"},
            {"position": 3, "original": "c", "input": "x", "kind": "random"},
        ],
    }
    assert text(record) == "[CLS] {a>[MASK]} {b} {c>x} [SEP]"


def test_text_files_alone_leave_nothing_behind(trained, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    words = [f"--input={trained.folder / 'text/held-out.txt'}", f"--vocab={trained.folder / 'vocab'}", "--length=20"]
    lines = preview(capfd, *words, "--examples=2").splitlines()
    assert [line.partition(":")[0] for line in lines if line.startswith("row")] == ["row 0", "row 1"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--examples=0"], "--examples=0 is less than 1"),
        (["--length=0"], "--length=0 is less than 1"),
        (["--length=4"], "length 4 is too short for a sentence pair; use at least 5"),
        (["--step=-1"], "--step=-1 is negative"),
        (["--step=24"], "--step=24 is beyond the run's 24 steps"),
        (["--model_dir=."], ". is no model folder (no config.gin); `bertfam pretrain` or `bertfam import` makes one"),
        (
            ["--vocab={folder}/other-vocab"],
            '{model_dir}/cache was built from something else (vocabulary was "',
        ),
    ],
)
def test_mistakes(trained, tmp_path, monkeypatch, capsys, flags, message):
    monkeypatch.chdir(tmp_path)
    names = {"folder": trained.folder, "model_dir": trained.model_dir}
    before = listing(trained.folder)
    assert cli.main(["preview", f"--model_dir={trained.model_dir}", *(flag.format(**names) for flag in flags)]) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.startswith(f"bertfam: error: {message.format(**names)}")
    assert output.err.count("\n") == 1 and (message.endswith('"') or output.err.endswith(f"{message.format(**names)}\n"))
    assert listing(trained.folder) == before and list(tmp_path.iterdir()) == []
