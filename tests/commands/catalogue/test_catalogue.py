"""Every mistake of the catalogue gets its line and nothing else: no traceback, status 2, nothing on stdout, nothing written."""

import contextlib
import os
import shlex
import sys

import pytest
from catalogue import Places
from command_line import bertfam, listing
from entries import GROUPS
from once import once

from bertfam import cli

ENTRIES = {f"{group}: {name}": entry for group, entries in GROUPS.items() for name, entry in entries.items()}
# What `check` must find too, before anything is compiled: all that pretrain, or the cache that it builds, refuses of these.
CHECKED = [name for name in ENTRIES if name.startswith(("configuration: ", "optimizers: ", "mesh: ", "data: "))] + [
    name
    for name, entry in ENTRIES.items()
    if name.startswith(("checkpoints: ", "disk: ")) and entry.words.startswith("pretrain ") and "--init" not in entry.words
]
# One or two a group, as a user's shell runs them.
IN_A_SHELL = [
    "configuration: an include that includes its includer",
    "mesh: a mesh of more devices",
    "data: a JSON line that is cut off",
    "checkpoints: going on with another vocabulary",
    "disk: a model folder of something else",
    "flags: a misspelt command",
]
# What a command may tell of its progress before it meets the mistake.
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


@contextlib.contextmanager
def nothing_written(places):
    before = [listing(folder) for folder in (places.here, places.trained, places.hf)]
    yield
    assert [listing(folder) for folder in (places.here, places.trained, places.hf)] == before


def told(status, out, err):
    """The line of a mistake, from what a command gave."""
    assert (status, out) == (2, "")
    (line,) = [line for line in err.splitlines() if not line.startswith(PROGRESS)]
    assert line.startswith("bertfam: error: ")
    return line.removeprefix("bertfam: error: ")


def refused(words, places, capfd):
    with nothing_written(places):
        try:
            status = cli.main(words)
        except SystemExit as stopped:  # a child process has said why
            status = stopped.code
        output = capfd.readouterr()
    return told(status, output.out, output.err)


@pytest.mark.parametrize("name", ENTRIES)
def test_a_mistake(places, capfd, name):
    entry = ENTRIES[name]
    places.make(entry.files)
    assert refused(places.words(entry.words), places, capfd) == places.fill(entry.message)


@pytest.mark.parametrize("name", CHECKED)
def test_check_says_the_same(places, capfd, name):
    entry = ENTRIES[name]
    places.make(entry.files)
    command, *flags = places.words(entry.words)
    # The cache command has no run, and check writes nothing.
    run = [] if command == "pretrain" else [f"--gin_file={places.trained}/run.gin"]
    words = ["check", *run, *(flag for flag in flags if not flag.startswith("--output="))]
    assert refused(words, places, capfd) == places.fill(entry.message)


@pytest.mark.parametrize("name", IN_A_SHELL)
def test_a_mistake_in_a_shell(places, name):
    entry = ENTRIES[name]
    places.make(entry.files)
    with nothing_written(places):
        done = bertfam(*shlex.split(places.fill(entry.words)))
    assert told(done.returncode, done.stdout, done.stderr) == places.fill(entry.message)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(places, capfd):
    folder = places.here / "locked"
    folder.mkdir(mode=0o500)
    words = places.words("vocab --input={trained}/text/train.txt --output=locked/vocab")
    assert refused(words, places, capfd) == (
        "locked/vocab cannot be written: no permission to write into {here}/locked; name another".replace(
            "{here}", str(places.here)
        )
    )


def test_there_are_enough():
    assert len(ENTRIES) >= 150 and {entry.words.partition(" ")[0] for entry in ENTRIES.values()} >= cli.COMMANDS.keys() - {
        "check"
    }
