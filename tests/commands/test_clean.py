import gzip
import hashlib
import json
import pydoc_data.topics
import subprocess
import sys

import pytest
import zstandard

from bertfam import cli
from bertfam.data.corpora import document_batches
from bertfam.data.corpora.c4.rules import RULES

GOOD = "The cat of this house sat on the mat. It slept there all day long. Nobody saw it go away again."
# What fires on each page, and its text.
PAGES = {
    "good": GOOD,
    "long_word": f"{GOOD}\nThis one has {'x' * 1200} as a word.".replace("cat", "dog"),
    "citation": GOOD.replace("cat", "cow[1]"),
    "end_mark": f"Home | About | Contact\n{GOOD}".replace("cat", "hen"),
    "short_line": f"Read more now.\n{GOOD}".replace("cat", "owl"),
    "lorem_ipsum": f"{GOOD}\nLorem ipsum dolor sit amet here.".replace("cat", "fox"),
    "javascript": f"{GOOD}\nPlease enable Javascript in your browser.".replace("cat", "pig"),
    "curly_bracket": f"{GOOD}\nThe code says var x = {{ and more.".replace("cat", "ant"),
    "policy": f"{GOOD}\nRead our terms of use before you go on.".replace("cat", "bee"),
    "bad_word": f"{GOOD}\nWell, darn it all, said the neighbour.".replace("cat", "bat"),
    "few_sentences": "There is but one sentence on this page.",
    "repeated": f"{GOOD}\nThis is new here. And so is this one, too. There is even a third one.",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pages.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in PAGES.values()))
    (tmp_path / "words.txt").write_text("Darn\n\nnot there\n")
    return tmp_path


def clean(*flags):
    return cli.main(["clean", *flags])


def adds_up(report):
    for name in ("pages", "lines", "characters"):
        removed = sum(count[name] for count in report["removed"].values())
        assert report["seen"][name] == report["kept"][name] + removed, name


JSONL = ("--input=pages.jsonl", "--input_format=jsonl")


def test_each_rule_fires_once(folder, capsys):
    assert clean(*JSONL, "--bad_words=words.txt", "--output=out.jsonl", "--report=report.json", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report == json.loads((folder / "report.json").read_text())
    adds_up(report)
    assert report["seen"]["pages"] == len(PAGES) and report["seen"]["characters"] == sum(
        len(line) for text in PAGES.values() for line in text.split("\n")
    )
    gone = ("lorem_ipsum", "curly_bracket", "bad_word", "few_sentences")
    assert {rule: count["pages"] for rule, count in report["removed"].items()} == {
        rule: int(rule in gone) for rule in RULES if rule != "language"
    }
    lines = {rule: count["lines"] for rule, count in report["removed"].items()}
    assert lines == {
        **dict.fromkeys(("long_word", "end_mark", "short_line", "javascript", "policy", "few_sentences", "repeated"), 1),
        **dict.fromkeys(("lorem_ipsum", "curly_bracket", "bad_word"), 2),
        "citation": 0,
    }
    assert report["removed"]["citation"]["characters"] == 3
    assert report["removed"]["end_mark"]["example"] == "Home | About | Contact"
    texts = [json.loads(line)["text"] for line in (folder / "out.jsonl").read_text().splitlines()]
    assert texts[0] == GOOD and texts[-1] == PAGES["repeated"].split("\n")[1] and len(texts) == report["kept"]["pages"] == 8
    # What is clean stays as it is.
    assert clean("--input=out.jsonl", *JSONL[1:], "--bad_words=words.txt", "--output=again.jsonl") == 0
    assert (folder / "again.jsonl").read_bytes() == (folder / "out.jsonl").read_bytes()


def test_the_same_bytes_in_another_process_and_format(folder):
    command = [sys.executable, "-m", "bertfam", "clean", *JSONL, "--output=a.jsonl.gz"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.count("\n") > len(RULES)
    for name in ("b.jsonl.gz", "c.jsonl.zst", "d.jsonl"):
        assert clean(*JSONL, f"--output={name}") == 0
    packed = (folder / "a.jsonl.gz").read_bytes()
    assert hashlib.sha256(packed).digest() == hashlib.sha256((folder / "b.jsonl.gz").read_bytes()).digest()
    plain = (folder / "d.jsonl").read_bytes()
    assert gzip.decompress(packed) == plain
    assert zstandard.ZstdDecompressor().decompressobj().decompress((folder / "c.jsonl.zst").read_bytes()) == plain
    # The rest of bertfam reads it.
    assert cli.main(["vocab", "--input=c.jsonl.zst", "--input_format=jsonl", "--size=90", "--output=vocab"]) == 0


def test_the_same_bytes_and_report_for_any_number_of_processes(folder, capsys, monkeypatch):
    monkeypatch.setattr(document_batches, "_CHARACTERS", 400)
    reports = []
    for name, processes in (("one", 0), ("two", 2)):
        flags = ("--bad_words=words.txt", f"--output={name}.jsonl", f"--processes={processes}", "--json")
        assert clean(*JSONL, *flags) == 0
        reports.append(json.loads(capsys.readouterr().out) | {"output": ""})
    assert reports[0] == reports[1] and reports[0]["removed"]["repeated"]["lines"] == 1
    assert (folder / "one.jsonl").read_bytes() == (folder / "two.jsonl").read_bytes()


def test_real_text_loses_little(folder, capsys):
    """Prose of Python's documentation: paragraphs that end as sentences do."""
    with open("topics.jsonl", "w") as file:
        for name in sorted(pydoc_data.topics.topics)[::4]:
            paragraphs = [" ".join(text.split()) for text in pydoc_data.topics.topics[name].split("\n\n")]
            prose = [text for text in paragraphs if text.endswith(".") and len(text.split()) > 9 and "{" not in text]
            if len(prose) > 5:
                file.write(json.dumps({"text": "\n".join(prose)}) + "\n")
    source = ("--input=topics.jsonl", "--input_format=jsonl", "--json")
    assert clean(*source, "--output=all.jsonl", "--no_rules=repeated") == 0
    report = json.loads(capsys.readouterr().out)
    adds_up(report)
    assert report["seen"]["pages"] > 8 and report["seen"]["characters"] > 50_000
    assert report["kept"]["pages"] == report["seen"]["pages"]
    assert report["kept"]["characters"] > 0.99 * report["seen"]["characters"]
    # Some topics share sections: what goes stands in what stays.
    assert clean(*source, "--output=out.jsonl") == 0
    report = json.loads(capsys.readouterr().out)
    adds_up(report)
    assert 0.85 < report["kept"]["characters"] / report["seen"]["characters"] < 0.99
    assert report["removed"]["repeated"]["example"][:90] in (folder / "out.jsonl").read_text().replace('\\"', '"')


def test_json_read_as_text_and_an_empty_output_are_reported(folder, capsys):
    assert clean("--input=pages.jsonl", "--output=out.jsonl") == 0
    error = capsys.readouterr().err
    name = "bertfam: warning: pages.jsonl is read as plain text, input_format 'sentences': give --input_format=jsonl"
    assert error.startswith(name) and error.count("\n") == 2, error
    assert "bertfam: warning: out.jsonl is empty: no page of 1 is left" in error.splitlines()[1]
    assert clean(*JSONL, "--output=second.jsonl") == 0 and capsys.readouterr().err == ""


def test_rules_that_are_chosen(folder, capsys):
    assert clean(*JSONL, "--output=a.jsonl", "--rules=end_mark,short_line", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["settings"]["rules"] == ["end_mark", "short_line"]
    assert report["kept"]["pages"] == len(PAGES)
    assert clean(*JSONL, "--output=b.jsonl", "--no_rules=repeated,few_sentences", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert "repeated" not in report["removed"] and report["removed"]["few_sentences"]["pages"] == 0
    assert report["kept"]["pages"] == len(PAGES) - 2  # no bad words are given


def test_languages(folder, capsys):
    pytest.importorskip("py3langid")
    german = "Die Katze sass auf der Matte. Sie schlief den ganzen Tag dort. Niemand sah sie wieder fortgehen."
    (folder / "two.txt").write_text(f"{GOOD}\n{german}\n")
    assert clean("--input=two.txt", "--input_format=lines", "--output=out.jsonl", "--language=de", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["removed"]["language"]["pages"] == 1 and report["settings"]["min_probability"] == 0.99
    assert json.loads((folder / "out.jsonl").read_text()) == {"text": german}
    assert clean("--input=two.txt", "--output=no.jsonl", "--language=xx") == 2
    assert "--language=xx is not a language of py3langid" in capsys.readouterr().err


def test_language_without_the_library(folder, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "py3langid", None)
    monkeypatch.setitem(sys.modules, "py3langid.langid", None)
    assert clean(*JSONL, "--output=out.jsonl", "--language=en") == 2
    error = capsys.readouterr().err
    assert "pip install 'bertfam[clean]'" in error and error.count("\n") == 1
    assert not (folder / "out.jsonl").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--output=out.txt"], "--output=out.txt must end in .jsonl"),
        (["--output=pages.jsonl"], "--output=pages.jsonl is read too, by --input"),
        (["--output=there.jsonl"], "there.jsonl exists already"),
        (["--output=no/out.jsonl"], "there is no folder no"),
        (["--output=out.jsonl", "--report=no/report.json"], "there is no folder no"),
        (["--output=out.jsonl", "--report=out.jsonl"], "--report=out.jsonl is --output too"),
        (["--output=out.jsonl", "--report=pages.jsonl"], "--report=pages.jsonl is read too, by --input"),
        (["--output=out.jsonl", "--rules=end_marks"], "'end_marks' is not a cleaning rule; did you mean end_mark?"),
        (["--output=out.jsonl", "--rules=policy", "--no_rules=policy"], "give one of them"),
        (["--output=out.jsonl", "--rules=policy", "--bad_words=words.txt"], "--bad_words is for the rule bad_word"),
        (
            ["--output=out.jsonl", "--rules=language,policy"],
            "--rules names language, which does nothing by itself: give --language",
        ),
        (["--output=out.jsonl", "--bad_words=none.txt"], "none.txt cannot be read"),
        (["--output=out.jsonl", "--bad_words=empty.txt"], "has no word in it"),
        (["--output=out.jsonl", "--min_sentences=0"], "--min_sentences=0 must be at least 1"),
        (["--output=out.jsonl", "--processes=-1"], "--processes=-1 is negative"),
        (["--output=out.jsonl", "--processes=1", "--beam"], "--processes does not go with --beam"),
        (["--output=out.jsonl", "--min_probability=2"], "--min_probability=2.0 must be above 0"),
        (["--output=out.jsonl", "--text_field=body"], "no field 'body'"),
        (["--output=out.jsonl", "--input=broken.jsonl"], "broken.jsonl:2: not JSON"),
    ],
)
def test_mistakes(folder, capsys, flags, words):
    (folder / "there.jsonl").write_text("")
    (folder / "empty.txt").write_text("\n")
    (folder / "broken.jsonl").write_text('{"text": "a"}\n{"text"\n')
    before = sorted(folder.iterdir())
    assert clean(*JSONL, *flags) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1
    assert sorted(folder.iterdir()) == before
