"""Commands of the tutorials, run in the order of their pages on small files; `pretrain` is checked and not run."""

import gzip
import re
import shlex
from pathlib import Path

import pytest

from bertfam import cli

DOCS = Path(__file__).parents[1] / "docs"
RUN = ("vocab", "cache", "encode", "preview")
# The files that a page names.
FILES = {
    "alphabets": (),
    "mixtures": ("abstracts.txt.gz", "answers.txt.gz"),
    "multilingual": ("de.txt.gz", "es.txt.gz", "zh.txt.gz"),
}


def commands(page: str) -> list[list[str]]:
    """Return the words of each command of bertfam on a page."""
    lines = re.sub(r"\\\n +", "", page).split("\n")
    return [shlex.split(line)[1:] for line in lines if line.startswith("    bertfam ")]


def write_named_files(page: str) -> None:
    """Write each block of a page that names its file in its first line."""
    for name, text in re.findall(r"^```\w*\n# (\w+\.\w+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        Path(name).write_text(text)


@pytest.mark.parametrize("name", FILES)
def test_commands_run(name, corpus, caches_in_process, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = (DOCS / f"{name}.md").read_text()
    write_named_files(page)
    documents = ["\n".join(text) for text in corpus.texts("train")]
    for number, file in enumerate(FILES[name]):
        Path(file).write_bytes(gzip.compress("\n\n".join(documents[number :: len(FILES[name])]).encode()))
    for script in tmp_path.glob("*.py"):
        exec(compile(script.read_text(), script.name, "exec"), {})
    done = []
    for command, *flags in commands(page):
        if command == "pretrain":
            command, flags = "check", [flag for flag in flags if not flag.startswith("--model_dir=")]
        if command in (*RUN, "check"):
            assert cli.main([command, *flags]) == 0, capsys.readouterr().err
            done.append(command)
    assert {"vocab", "check"} <= set(done)
