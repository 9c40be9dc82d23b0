"""An empty working directory and a writer of gin files."""

import sys
import textwrap

import pytest


@pytest.fixture
def write(tmp_path, monkeypatch):
    """A function write("name.gin", text) for files in the current folder; a leading newline of the text is dropped."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))  # to which imports add this folder

    def write_file(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip("\n"), encoding="utf-8")
        return name

    return write_file
