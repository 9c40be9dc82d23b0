"""`bertfam preview`: the very rows that training sees, as text and as JSON."""

import json
import re

import numpy as np
import pytest
from command_line import bertfam, listing, replaced

from bertfam import cli
from bertfam.data import vocabularies
from bertfam.data.preview.terminal import LEGEND, Paint, row_lines
from bertfam.data.token_cache.cache import TokenCache
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
        keys = {"corpus", "pieces", "original", "padding", "predictions", "examples", "next_sentence", "features"}
        assert set(record) == keys and record["corpus"] == "text"
        assert record["pieces"][0] == "[CLS]" and record["pieces"][-1] == "[SEP]" and record["pieces"].count("[SEP]") == 2
        assert len(record["predictions"]) == sum(record["features"]["masked_loss_weights"]) >= 1
        for found_ in record["predictions"]:
            seen = record["pieces"][found_["position"]]
            assert seen == found_["input"] and found_["original"] not in ("[CLS]", "[SEP]", "[MASK]", "[PAD]")
            assert (found_["kind"] == "kept") == (seen == found_["original"])
            assert (found_["kind"] == "masked") == (seen == "[MASK]")
            kinds.append(found_["kind"])
            record["pieces"][found_["position"]] = found_["original"]
            assert found_["segment"] == 1 and found_["weight"] == 1
        assert record["pieces"] == record["original"]
        assert len(record["pieces"]) + record["padding"] == len(record["features"]["encoder_input_tokens"])
        (example,) = record["examples"]
        assert (example["segment"], example["begin"], example["end"]) == (1, 0, len(record["pieces"]))
        assert example["next_sentence"] == record["next_sentence"]
        assert record["next_sentence"] == ["next", "random"][record["features"]["next_sentence_labels"][0]]
    shares = {kind: kinds.count(kind) / len(kinds) for kind in ("masked", "random", "kept")}
    assert shares == pytest.approx({"masked": 0.8, "random": 0.1, "kept": 0.1}, abs=0.06)


def test_text_output(trained, capsys):
    flags = [f"--model_dir={trained.model_dir}", "--examples=40"]
    records = json.loads(preview(capsys, *flags, "--json"))
    lines = preview(capsys, *flags, "--stat_rows=40").splitlines()
    expected = [line for number, record in enumerate(records) for line in row_lines(record, number, Paint(False))]
    assert lines[: len(expected) + 2] == [*expected, LEGEND, "40 rows of 16 tokens:"]
    count, tokens = len(records[0]["predictions"]), len(records[0]["pieces"])
    assert lines[0] == f"row 0: 1 example, {count} predicted of {tokens} tokens, {16 - tokens} padding"
    shown = dict(zip(*[iter(lines[len(expected) + 2].split())] * 2, strict=True))
    predicted = sum(len(record["predictions"]) for record in records)
    tokens = sum(len(record["pieces"]) for record in records)
    assert shown["real_tokens"] == f"{tokens / (40 * 16):.1%}" and shown["predicted"] == f"{predicted / tokens:.1%}"
    assert shown["next_sentence_random"] == f"{np.mean([record['next_sentence'] == 'random' for record in records]):.1%}"


RECORD = {
    "corpus": "wiki",
    "pieces": ["[CLS]", "[MASK]", "b", "x", "[SEP]", "\u202e", "[SEP]"],
    "padding": 1,
    "predictions": [
        {"position": 1, "original": "a", "input": "[MASK]", "kind": "masked", "weight": 1.0},
        {"position": 2, "original": "b", "input": "b", "kind": "kept", "weight": 1.0},
        {"position": 3, "original": "c", "input": "x", "kind": "random", "weight": 0.5},
    ],
    "examples": [{"segment": 1, "begin": 0, "end": 7, "next_sentence": "next", "text": "abc \u202e"}],
    "features": {"encoder_token_type_ids": [0, 0, 0, 0, 0, 1, 1, 0]},
}


def test_marks_of_the_three_kinds():
    plain = [
        "row 7: 1 example, 3 predicted of 7 tokens, 1 padding, from wiki",
        "  example 1: 7 tokens, B is next",
        "    A [CLS] {a>[MASK]} {b} {c>x}*0.5 [SEP]",
        "    B <U+202E> [SEP]",
    ]
    assert list(row_lines(RECORD, 7, Paint(False))) == plain
    coloured = "\n".join(row_lines(RECORD, 7, Paint(True)))
    assert "\x1b[33m{a>[MASK]}\x1b[0m" in coloured and re.sub(r"\x1b\[\d+m", "", coloured) == "\n".join(plain)


@pytest.mark.parametrize(
    ("flags", "environment", "coloured"),
    [
        ([], {}, True),
        (["--color=never"], {}, False),
        ([], {"NO_COLOR": "1"}, False),
        ([], {"NO_COLOR": ""}, True),
        ([], {"TERM": "dumb"}, False),
        (["--color=always"], {"NO_COLOR": "1"}, True),
    ],
)
def test_colours_on_a_terminal(trained, monkeypatch, capsys, flags, environment, coloured):
    for name, value in ({"NO_COLOR": "", "TERM": "xterm"} | environment).items():
        monkeypatch.setenv(name, value)
    words = [f"--model_dir={trained.model_dir}", "--examples=1", "--stat_rows=1", *flags]
    if not environment or "--color=always" in flags:
        assert ("\x1b[" in preview(capsys, *words)) == ("--color=always" in flags)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert ("\x1b[" in preview(capsys, *words)) == coloured


FILES = ("--input={folder}/text/held-out.txt", "--vocab={folder}/vocab", "--length=20")


@pytest.mark.parametrize("flags", [[*FILES, "--json"], FILES, ["--model_dir={other}", "--vocab={folder}/vocab"]])
def test_a_temporary_cache_leaves_nothing_behind(trained, caches_in_process, tmp_path, monkeypatch, capfd, flags):
    """The token cache is built in a temporary folder that no output names; stdout has the rows alone."""
    temporary, other = tmp_path / "temporary", tmp_path / "other"
    temporary.mkdir()
    other.mkdir()
    (other / "config.gin").write_text((trained.model_dir / "config.gin").read_text())
    monkeypatch.chdir(temporary)
    before = set(listing(tmp_path))
    words = ["preview", "--examples=2", "--stat_rows=9", *(flag.format(folder=trained.folder, other=other) for flag in flags)]
    if "--json" in flags:  # in a process of its own
        done = bertfam(*words, TMPDIR=temporary)
        status, out, err = done.returncode, done.stdout, done.stderr
        assert len(json.loads(out)) == 2
    else:
        monkeypatch.setenv("TMPDIR", str(temporary))
        monkeypatch.setattr("tempfile.tempdir", None)  # which remembers the folder
        capfd.readouterr()
        status = cli.main(words)
        out, err = capfd.readouterr()
        assert re.findall("^row .", out, re.MULTILINE) == ["row 0", "row 1"]
    assert status == 0 and "tokenising train: " in err
    assert str(tmp_path) not in out + err
    assert set(listing(tmp_path)) == before


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--examples=0"], "--examples=0 is less than 1"),
        (["--length=0"], "--length=0 is less than 1"),
        (["--stat_rows=0"], "--stat_rows=0 is less than 1"),
        (["--overwrite"], "--overwrite says what --html may replace: give --html=FILE with it"),
        (["--html=."], "--html=. is a folder; name a file in it"),
        (["--html=none/page.html"], "--html=none/page.html cannot be written: there is no folder none; create it first"),
        (
            ["--html={folder}/run.gin"],
            "--html={folder}/run.gin exists already: name another file, or give --overwrite to replace it",
        ),
        (["--length=4"], "length 4 is too short for a sentence pair; use at least 5"),
        (
            ["--length=1024"],
            "--length=1024: Stage.length 1024 is more than BertConfig.max_length 24; shorten the rows, or enlarge the model's "
            "table of positions",
        ),
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
    assert cli.main(replaced(["preview", f"--model_dir={trained.model_dir}"], [flag.format(**names) for flag in flags])) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.startswith(f"bertfam: error: {message.format(**names)}")
    assert output.err.count("\n") == 1 and (message.endswith('"') or output.err.endswith(f"{message.format(**names)}\n"))
    assert listing(trained.folder) == before and list(tmp_path.iterdir()) == []
