"""Files and folders that a command writes at its end are checked before its work."""

import os

import pytest
from command_line import in_process, listing

# Commands whose other inputs do not exist or cannot be trained on, so that any work would end with another mistake.
FILES = {
    "plan --search": ["plan", "--gin_file=nowhere.gin", "--slice=v5e-4", "--search", "--output={}"],
    "clean": ["clean", "--input=nowhere.txt", "--output={}.jsonl"],
    "clean --report": ["clean", "--input=nowhere.txt", "--output=out.jsonl", "--report={}"],
    "preview --html": ["preview", "--gin_file=nowhere.gin", "--html={}", "--overwrite"],
}
FOLDERS = {
    "vocab": ["vocab", "--input=nowhere.txt", "--output={}"],
    "cache": ["cache", "--input=nowhere.txt", "--vocab=nowhere", "--output={}"],
    "import": ["import", "--input=nowhere", "--output={}"],
    "export": ["export", "--model_dir={model}", "--output={}"],
    "checkpoints": ["checkpoints", "--model_dir={model}", "--step=99", "--copy_weights={}"],
    "merge": ["merge", "--model_dir={model}@99", "--output={}"],
    "pretrain": ["pretrain", "--gin_file=nowhere.gin", "--model_dir={}"],
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return the current folder, with a file, and a folder sealed/ that may not be written."""
    access = os.access
    sealed = str(tmp_path / "sealed")
    monkeypatch.setattr(os, "access", lambda path, mode: os.path.realpath(path) != sealed and access(path, mode))
    (tmp_path / "file").write_text("x")
    (tmp_path / "sealed").mkdir()
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(words, place, folder, model_dir=""):
    """Return the error of a command that is to write to a place and must not begin."""
    before = listing(folder)
    done = in_process(*(word.format(place, model=model_dir) for word in words))
    assert done.returncode == 2 and listing(folder) == before, done.stderr
    (line,) = done.stderr.splitlines()
    return line


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_checked_first(folder, name):
    for place in ("missing/out", "sealed/out", "file/out", "folder"):
        line = refused(FILES[name], place, folder)
        assert f"={place}" in line and "nowhere" not in line, line


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_is_checked_first(folder, trained, name):
    for place in ("sealed/out", "file/out", "file"):
        line = refused(FOLDERS[name], place, folder, trained.model_dir)
        assert place in line and "nowhere" not in line and "99" not in line, line


def test_a_page_does_not_take_the_place_of_a_device(folder):
    os.mkfifo(folder / "pipe")
    assert "--html=pipe" in refused(FILES["preview --html"], "pipe", folder)


@pytest.mark.parametrize(
    "words", [["report", "nowhere", "--output={}", "--overwrite"], FILES["preview --html"]], ids=lambda words: words[0]
)
def test_overwrite_replaces_pages_alone(folder, words):
    (folder / "metrics.jsonl").write_text('{"step": 1}\n')
    assert "=metrics.jsonl is no page of bertfam, and --overwrite replaces only these" in refused(words, "metrics.jsonl", folder)
    (folder / "page.html").write_text("<!DOCTYPE html>\n<html></html>")
    assert "nowhere" in refused(words, "page.html", folder)


READ_TOO = [
    ["clean", "--input={}", "--input_format=jsonl", "--output=out.jsonl", "--report={}"],
    ["clean", "--input=*.jsonl", "--input_format=jsonl", "--output={}"],
    ["preview", "--input={}", "--vocab=v", "--html={}", "--overwrite"],
    ["plan", "--gin_file={}", "--slice=v5e-4", "--search", "--output={}"],
]


@pytest.mark.parametrize("words", READ_TOO, ids=lambda words: words[0])
def test_a_file_that_the_command_reads_is_not_written(folder, words):
    (folder / "text.jsonl").write_text('{"text": "A page."}\n')
    line = refused(words, "text.jsonl", folder)
    assert "=text.jsonl is read too, by --" in line and "remove" not in line
