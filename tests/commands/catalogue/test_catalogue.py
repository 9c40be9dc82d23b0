"""Each mistake of the catalogue gets one line that names it: no traceback, status 2, nothing on stdout, nothing written."""

import contextlib
import functools
import os
import subprocess
import sys

import pytest
from catalogue import Places
from command_line import listing
from entries import GROUPS
from once import once

from bertfam import cli

ENTRIES = {f"{group}: {name}": entry for group, entries in GROUPS.items() for name, entry in entries.items()}
# `check` must find these too, before anything is compiled: pretrain, or the cache that it builds, refuses them.
CHECKED = [name for name in ENTRIES if name.startswith(("configuration: ", "optimizers: ", "mesh: ", "data: "))] + [
    name
    for name, entry in ENTRIES.items()
    if name.startswith(("checkpoints: ", "disk: ")) and entry.words.startswith("pretrain ") and "--init" not in entry.words
]
# A command may report its progress before it meets the mistake.
PROGRESS = ("tokenising ",)


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory):
    """The trained model as a Hugging Face folder."""

    def make(folder):
        assert cli.main(["export", f"--model_dir={trained.model_dir}", f"--output={folder / 'bert'}"]) == 0

    return once(tmp_path_factory, "exported", make) / "bert"


@pytest.fixture
def places(trained, exported, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))  # to which imports add this folder
    return Places(tmp_path, trained.folder, exported)


@functools.cache
def listing_of(*folders):
    """List folders as they are when they are first asked for; no test changes them."""
    return [listing(folder) for folder in folders]


@contextlib.contextmanager
def nothing_written(places):
    here, others = listing(places.here), listing_of(places.trained, places.hf)
    yield
    assert listing(places.here) == here and [listing(folder) for folder in (places.trained, places.hf)] == others


def error_line(status, out, err):
    """Return the line of a mistake, after checking that it is the only output."""
    assert (status, out) == (2, "")
    (line,) = [line for line in err.splitlines() if not line.startswith(PROGRESS)]
    assert line.startswith("bertfam: error: ")
    return line.removeprefix("bertfam: error: ")


def run(words, places, capfd):
    with nothing_written(places):
        try:
            status = cli.main(words)
        except SystemExit as stopped:  # a child process has said why
            status = stopped.code
        output = capfd.readouterr()
    return error_line(status, output.out, output.err)


@pytest.mark.parametrize("name", ENTRIES)
def test_a_mistake(places, capfd, name):
    entry = ENTRIES[name]
    places.make(entry.files)
    assert not places.unnamed(entry, run(places.words(entry.words), places, capfd))


@pytest.mark.parametrize("name", CHECKED)
def test_check_finds_the_same(places, capfd, name):
    entry = ENTRIES[name]
    places.make(entry.files)
    command, *flags = places.words(entry.words)
    # The cache command has no run, and check writes nothing.
    gin_file = [] if command == "pretrain" else [f"--gin_file={places.trained}/run.gin"]
    words = ["check", *gin_file, *(flag for flag in flags if not flag.startswith("--output="))]
    assert not places.unnamed(entry, run(words, places, capfd))


def test_a_mistake_in_a_process_of_its_own(places):
    entry = ENTRIES["flags: a misspelt command"]
    command = [sys.executable, "-m", "bertfam", *places.words(entry.words)]
    with nothing_written(places):
        done = subprocess.run(command, capture_output=True, text=True)
    assert not places.unnamed(entry, error_line(done.returncode, done.stdout, done.stderr))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(places, capfd):
    folder = places.here / "locked"
    folder.mkdir(mode=0o500)
    words = places.words("vocab --input={trained}/text/train.txt --output=locked/vocab")
    line = run(words, places, capfd)
    assert "locked/vocab" in line and f"{places.here}/locked" in line and "permission" in line


def test_there_are_enough():
    assert len(ENTRIES) >= 150
    for command in cli.COMMANDS.keys() - {"check"}:
        assert any(entry.words.startswith(f"{command} ") for entry in ENTRIES.values()), command


def test_each_entry_names_something():
    assert [name for name, entry in ENTRIES.items() if not entry.names or not all(entry.names)] == []
