"""`bertfam cache` as people run it, and the caches that `preview` is given."""

import os
import subprocess
import sys

import pytest

from bertfam import cli
from bertfam.data.token_cache.cache import TokenCache

TEXT = "The cat sat on the mat.\nThe cats saw it.\n\nA dog sat there.\nIt barked.\n\nTwo birds sang.\nThey flew.\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "b.txt").write_text(TEXT.replace("cat", "cow"))
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "bytes.txt").write_bytes(b"one\n\xff\n")
    for name, size in (("vocab", 60), ("other-vocab", 50)):
        assert cli.main(["vocab", "--input=a.txt", f"--size={size}", "--min_frequency=1", f"--output={name}"]) == 0
    return tmp_path


def bertfam(*words):
    return subprocess.run([sys.executable, "-m", "bertfam", *words], capture_output=True, text=True, env=os.environ)


def test_builds_once_and_checks_afterwards(folder):
    words = ["cache", "--input=a.txt", "--vocab=vocab", "--output=new/cache"]
    done = bertfam(*words)
    assert (done.returncode, done.stdout) == (0, "token cache: new/cache\n")
    assert [line.partition(",")[0] for line in done.stderr.splitlines()] == [
        "tokenising train: 3 documents",
        "tokenising validation: 0 documents",
    ]
    assert TokenCache("new/cache").counts("train")["documents"] == 3
    again = bertfam(*words)
    assert (again.returncode, again.stdout, again.stderr) == (0, "token cache: new/cache, built already\n", "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--vocab=vocab"],
            "no text: give --input=GLOB, --task=NAME, or --cache_dir=DIR of a token cache that is built already",
        ),
        (
            ["--input=a.txt"],
            "no vocabulary: train one with `bertfam vocab --output=DIR` and give it with --vocab=DIR",
        ),
        (["--input=a.txt", "--task=x"], "--input and --task both say where the text comes from; give one of them"),
        (["--input=none.txt", "--vocab=vocab"], "no such file: none.txt (in {})"),
        (["--input=empty.txt", "--vocab=vocab"], "empty.txt: no documents, only blank lines or nothing"),
        (
            ["--input=bytes.txt", "--vocab=vocab"],
            "bytes.txt:2: not UTF-8 at byte offset 4; name its encoding with --encoding, or convert it, for example with "
            "iconv -t UTF-8",
        ),
        (
            ["--input=a.txt", "--input_format=sentence"],
            "--input_format=sentence is not one of the choices; did you mean sentences?",
        ),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(folder, words, message, capfd):
    before = sorted(folder.rglob("*"))
    capfd.readouterr()
    status, output = cli.main(["cache", *words, "--output=new/cache"]), capfd.readouterr()
    assert (status, output.out, output.err) == (2, "", f"bertfam: error: {message.format(folder)}\n")
    assert sorted(folder.rglob("*")) == before


def test_names_of_files_that_are_not_utf_8(folder, capsys):
    name = os.fsdecode(b"caf\xe9.txt")
    (folder / "a.txt").rename(folder / name)
    words = ["cache", "--input=caf*", "--vocab=vocab", "--output=cache"]
    assert cli.main(words) == 0 and cli.main(words) == 0
    assert "built already" in capsys.readouterr().out
    assert "caf\\\\xe9.txt" in (folder / "cache" / "cache.json").read_text()


def test_text_of_another_language_than_the_vocabulary_is_reported(folder, capsys):
    (folder / "chinese.txt").write_text("今天天气很好。\n我们去公园。\n\n他在家看书。\n" * 9)
    assert cli.main(["cache", "--input=chinese.txt", "--vocab=vocab", "--output=cache", "--processes=0"]) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert "% of the tokens" in line and "unknown to the vocabulary vocab" in line


def test_an_empty_folder_is_built_in(folder, capsys):
    for name in ("empty", "other"):
        (folder / name).mkdir()
    assert cli.main(["cache", "--input=a.txt", "--vocab=vocab", "--output=empty"]) == 0
    assert capsys.readouterr().out == "token cache: empty\n"
    words = ["preview", "--cache_dir=other", "--length=16", "--examples=1"]
    assert cli.main(words) == 2
    assert capsys.readouterr().err.startswith("bertfam: error: no text: give --input=GLOB, ")
    assert cli.main([*words, "--input=a.txt", "--vocab=vocab"]) == 0
    assert TokenCache("other").counts("train") == TokenCache("empty").counts("train")


def test_a_folder_of_something_else_is_refused(folder, capsys):
    before = sorted(folder.rglob("*"))
    assert cli.main(["cache", "--input=a.txt", "--vocab=vocab", "--output=vocab"]) == 2
    assert capsys.readouterr().err == "bertfam: error: vocab exists already: name another folder\n"
    assert sorted(folder.rglob("*")) == before


def test_a_cache_of_something_else_is_refused(folder, capsys):
    assert cli.main(["cache", "--input=a.txt", "--vocab=vocab", "--output=cache"]) == 0
    capsys.readouterr()
    ending = "; delete it to rebuild it, choose another folder, or name no text to use it as it is\n"
    text = 'cache was built from something else (corpora.text.train[a.txt].name was "a.txt" and is "b.txt" now)'
    pieces = "cache was built from something else (vocabulary was "
    for command in (["cache", "--output=cache"], ["preview", "--cache_dir=cache"]):
        assert cli.main([*command, "--input=b.txt", "--vocab=vocab"]) == 2
        assert capsys.readouterr().err == f"bertfam: error: {text}{ending}"
        assert cli.main([*command, "--input=a.txt", "--vocab=other-vocab"]) == 2
        assert capsys.readouterr().err.startswith(f"bertfam: error: {pieces}")
    (folder / "a.txt").write_text(TEXT + "One more.\n")
    assert cli.main(["preview", "--cache_dir=cache", "--input=a.txt"]) == 2
    assert "(corpora.text.train[a.txt].sha256 was " in capsys.readouterr().err


def test_preview_takes_a_cache_by_itself_and_warns_of_pairs_that_teach_nothing(folder, capsys):
    (folder / "long.txt").write_text("\n\n".join("The cat sat on the mat.\n" * 30 for _ in range(50)))
    assert cli.main(["cache", "--input=long.txt", "--vocab=vocab", "--output=cache"]) == 0
    capsys.readouterr()
    assert cli.main(["preview", "--cache_dir=cache", "--length=40", "--examples=2"]) == 0
    assert capsys.readouterr().err == ""
    (folder / "lines.txt").write_text("\n\n".join(f"The cat sat on the mat {number}." for number in range(100)))
    assert cli.main(["cache", "--input=lines.txt", "--vocab=vocab", "--output=lines"]) == 0
    capsys.readouterr()
    assert cli.main(["preview", "--cache_dir=lines", "--length=16", "--examples=2"]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("bertfam: warning: 100% of the sentence pairs of the train split of lines at length 16 have a random")


def test_one_document_is_refused(folder, capsys):
    (folder / "one.txt").write_text("hello\ntom sawyer\nhow are you\n")
    before = sorted(folder.rglob("*"))
    assert cli.main(["cache", "--input=one.txt", "--vocab=vocab", "--output=made/cache"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "bertfam: error: the corpus has 1 training document and its rows need at least 2; separate documents by blank lines, or "
        "choose another --input_format"
    )
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("flag", ["--vocab=other-vocab", "--input=a.txt", "--processes=0", "--gin_file=runs/quickstart.gin"])
def test_verify_refuses_the_flags_that_it_would_not_use(tmp_path, monkeypatch, capsys, flag):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["cache", "--verify", "--output=cache", flag]) == 2
    assert f"{flag.partition('=')[0]} does not go with --verify" in capsys.readouterr().err
