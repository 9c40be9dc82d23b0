"""Benchmark of data on a small text: its figures, its peers and its mistakes."""

import json
import random
import subprocess
import sys

import numpy as np
import pytest
from tokenizers import Tokenizer

from benchmarks import data_bertfam
from benchmarks.data import main
from benchmarks.measurement import ROOT, Entrant, Measured, table

pytest.importorskip("psutil")


@pytest.fixture(scope="module")
def text(corpus, tmp_path_factory):
    """Return the language reference as a file of the "sentences" format."""
    path = tmp_path_factory.mktemp("text") / "reference.txt"
    path.write_text("\n\n".join("\n".join(document) for document in corpus.documents("train")) + "\n")
    return path


@pytest.fixture(scope="module")
def vocab(vocabulary, tmp_path_factory):
    folder = tmp_path_factory.mktemp("vocab")
    vocabulary.save(folder)
    return folder


def count_tokens(text, vocab):
    tokenizer = Tokenizer.from_file(str(vocab / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    return sum(len(encoding.ids) for encoding in tokenizer.encode_batch(text.read_text().splitlines(), add_special_tokens=False))


def test_program_measures_builds_and_leaves_no_file(text, vocab, tmp_path):
    temporary, figures = tmp_path / "temporary", tmp_path / "figures.json"
    temporary.mkdir()
    arguments = f"--input {text} --vocab {vocab} --processes 1 --only build --repeats 1 --without_peers --folder {temporary}"
    command = [sys.executable, "-m", "benchmarks.data", *arguments.split(), "--json", str(figures)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = json.loads(figures.read_text())
    assert report["machine"]["usable_cores"] >= 1 and report["versions"]["bertfam"] and "--without_peers" in report["command"]
    (result,) = report["benchmarks"]["build"]
    (run,) = result["runs"]
    assert run["tokens"] == count_tokens(text, vocab)
    assert run["tokens_per_second"] == pytest.approx(run["tokens"] / run["seconds"])
    assert result["peak_memory_bytes"] > 2**20
    assert f"| {run['tokens']:,} |" in done.stdout
    assert not list(temporary.iterdir())


def test_failing_job_fails_the_program(text, vocab, tmp_path):
    empty = tmp_path / "empty.txt"
    empty.write_text("\n")
    with pytest.raises(RuntimeError, match="no document"):
        main([*f"--input {empty} --vocab {vocab} --only build --without_peers --folder {tmp_path}".split()])


def test_mistakes_are_one_line(vocab, tmp_path, capsys):
    for mistake, message in ((f"--input {tmp_path}/none", "no such file"), ("--processes 100000", "a core of its own")):
        with pytest.raises(SystemExit) as stopped:
            main([*f"{mistake} --vocab {vocab} --only build --without_peers --folder {tmp_path}".split()])
        assert stopped.value.code == 2 and message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", data_bertfam.ROWS)
def test_rates_are_of_real_rows(cache_dir, cache, kind):
    figures = data_bertfam.rows(str(cache_dir), kind, length=64, batch_size=8, noise=True, seconds=0.05)
    assert figures["rows_per_second"] > 0 and figures["prepare_seconds"] > 0
    assert figures["documents"] == cache.counts("train")["documents"]
    assert 16 < figures["tokens_per_row"] <= 64
    if "pairs" not in kind:  # each token is in one row, with [CLS], [SEP] and separators of documents
        assert figures["rows"] * 64 > cache.counts("train")["tokens"]


def test_seek_returns_a_distant_step(cache_dir):
    figures = data_bertfam.seek(str(cache_dir), "packed documents", length=64, batch_size=8, step=10**6)
    assert 0 < figures["prepare_seconds"] < figures["seconds"]


def test_peers_tokenise_alike(text, vocab, tmp_path):
    pytest.importorskip("datasets")
    from benchmarks import data_huggingface

    peer = data_huggingface.build([str(text)], "sentences", str(vocab), 1, str(tmp_path / "tokenised"))
    bertfam = data_bertfam.build([str(text)], "sentences", str(vocab), 1, str(tmp_path / "cache"))
    assert peer["tokens"] == bertfam["tokens"] and peer["documents"] == bertfam["documents"]


def test_peers_pairs_follow_the_published_rule():
    pytest.importorskip("datasets")
    from benchmarks.data_huggingface import _pairs

    draw = np.random.default_rng(0)
    ids = iter(range(10, 10**6))  # each token identifies its sentence
    documents = [[[next(ids) for _ in range(draw.integers(1, 12))] for _ in range(30)] for _ in range(60)]
    document_of = {token: number for number, document in enumerate(documents) for sentence in document for token in sentence}
    special = type("Special", (), {"cls_token_id": 1, "sep_token_id": 2})
    pairs = list(_pairs(documents, 32, special, random.Random(0)))
    labels = []
    for pair in pairs:
        tokens, middle = pair["input_ids"], pair["input_ids"].index(2)
        a, b = tokens[1:middle], tokens[middle + 1 : -1]
        assert tokens[0] == 1 and tokens[-1] == 2 and a and b and len(tokens) <= 32
        assert pair["token_type_ids"] == [0] * (middle + 1) + [1] * (len(b) + 1)
        assert [token for token, mask in zip(tokens, pair["special_tokens_mask"], strict=True) if not mask] == a + b
        assert all(np.diff(part, prepend=part[0] - 1).tolist() == [1] * len(part) for part in (a, b))
        assert (document_of[a[0]] != document_of[b[0]]) == pair["next_sentence_label"]
        labels.append(pair["next_sentence_label"])
    # A chunk of one sentence is always random, so the share is a half and a little more.
    assert 0.5 - 4 * 0.5 / len(labels) ** 0.5 < np.mean(labels) < 0.65


def test_figures_are_medians_and_tables_are_markdown():
    measured = Measured(Entrant("p", "w", "m:f", {}), runs=[{"seconds": value} for value in (1.0, 9.0, 2.0)])
    assert measured.figure("seconds") == 2.0 and measured.spread("seconds") == 4.0
    lines = table(["program", "work", "x"], [["bertfam", "w", "1,000"]]).splitlines()
    assert lines[1].endswith("----: |") and lines[2] == "| bertfam | w    | 1,000 |"
