"""`bertfam encode`: tables for people, JSON, prompts, mistakes."""

import bz2
import gzip
import json
import subprocess
import sys

import pytest

from bertfam import cli
from bertfam.data import vocabularies
from bertfam.data.vocabularies.byte_bpe import ByteBpe
from bertfam.data.vocabularies.wordpiece import SPECIAL_PIECES, WordPiece
from bertfam.pages.visible import without_controls


@pytest.fixture
def vocab(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    WordPiece([*SPECIAL_PIECES, "istanbul", "isparta", "the", "[", "]", "mask", "日"]).save(tmp_path / "vocab")
    return "--vocab=vocab"


def test_a_table_with_offsets_into_the_original(vocab, capsys):
    assert cli.main(["encode", vocab, "İstanbul ISPARTA日", "the [MASK]"]) == 0
    assert capsys.readouterr().out == (
        "İstanbul ISPARTA日\n"
        "  istanbul   5    0-8  'İstanbul'\n"
        "  isparta    6   9-16  'ISPARTA'\n"
        "  日        11  16-17  '日'\n"
        "\n"
        "the [MASK]\n"
        "  the    7   0-3  'the'\n"
        "  [      8   4-5  '['\n"
        "  mask  10   5-9  'MASK'\n"
        "  ]      9  9-10  ']'\n"
    )
    assert cli.main(["encode", vocab, "--prompt", "the [MASK]"]) == 0
    assert capsys.readouterr().out.split()[2:] == "[CLS] 2 0-0 the 7 0-3 'the' [MASK] 4 4-10 '[MASK]' [SEP] 3 0-0".split()
    assert cli.main(["encode", vocab, ""]) == 0
    assert capsys.readouterr().out == "\n"


def test_control_characters_are_spelt_out(vocab, capsys):
    """By those of a stranger's text or model a terminal would be steered."""
    bell = "\x1b]0;x\x07"
    assert cli.main(["encode", vocab, f"the \x9b2J{bell}"]) == 0
    first, *rows = capsys.readouterr().out.splitlines()
    assert first == "the <U+009B>2J<U+001B>]0;x<U+0007>" and all(map(str.isprintable, rows))
    assert without_controls(f"a\tb\n\u200d{bell}") == "a\tb\n\u200d<U+001B>]0;x<U+0007>"


def test_lines_of_a_file_or_of_stdin_as_json(vocab, tmp_path, capsys, monkeypatch):
    ByteBpe.train(["the cat sat on the mat"] * 3, size=270).save(tmp_path / "bytes")
    lines = ["the cat", "", " a  日本 [MASK]<mask>"]
    (tmp_path / "a.txt").write_bytes("\ufeffthe cat\r\n\r\n a  日本 [MASK]<mask>".encode())
    assert cli.main(["encode", "--vocab=bytes", "--input=a.txt", "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    vocabulary = vocabularies.load("bytes")
    for line, record in zip(lines, found, strict=True):
        encoding = vocabulary.encode(line)
        expected = {"text": line, "pieces": encoding.pieces, "ids": encoding.ids.tolist(), "offsets": encoding.offsets.tolist()}
        assert record == expected
    (tmp_path / "a.gz").write_bytes(gzip.compress((tmp_path / "a.txt").read_bytes()))
    assert cli.main(["encode", "--vocab=bytes", "--input=a.gz", "--json"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == found
    command = [sys.executable, "-m", "bertfam", "encode", "--vocab=bytes", "--json"]
    done = subprocess.run(command, input="\n".join(lines).encode(), capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert [json.loads(line) for line in done.stdout.splitlines()] == found


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--vocab=none", "a"], "none is not a folder: a vocabulary is a folder with"),
        (["--vocab=vocab", "--input=a.txt", "a"], "TEXT and --input both say what to encode"),
        (
            ["--vocab=vocab", "--input=none.txt"],
            "--input=none.txt: there is no such file; a text itself is given without --input",
        ),
        (["--vocab=vocab", "--input=latin.txt"], "latin.txt:2 is not UTF-8; convert it first"),
        (["--vocab=vocab", "--input=a.bz2"], "a.bz2:1 is not UTF-8; this is compressed by bzip2; unpack it by bunzip2"),
        (["a"], "--vocab"),
    ],
)
def test_mistakes(vocab, tmp_path, capsys, flags, message):
    (tmp_path / "latin.txt").write_bytes(b"\ncaf\xe9\n")
    (tmp_path / "a.bz2").write_bytes(bz2.compress(b"the cat"))
    assert cli.main(["encode", *flags]) == 2
    err = capsys.readouterr().err
    assert err.startswith("bertfam: error: ") and message in err and err.count("\n") == 1
