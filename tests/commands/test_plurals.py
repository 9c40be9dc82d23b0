"""Counts in messages."""

import json
import re
from pathlib import Path

from command_line import in_process

import bertfam
from bertfam.plurals import plural

HAND_MADE = re.compile(r"'s' \* |\"s\" \* |'' if [^{}]* == 1 else 's'|'s' if [^{}]* != 1")


def test_one_is_not_many():
    counts = [
        plural(0, "row"),
        plural(1, "row"),
        plural(2000, "row"),
        plural(1, "batch", "batches"),
        plural(2, "batch", "batches"),
    ]
    assert counts == ["0 rows", "1 row", "2,000 rows", "1 batch", "2 batches"]


def test_plurals_are_made_in_one_place():
    sources = Path(bertfam.__file__).parent.rglob("*.py")
    found = [
        f"{path.name}: {match[0]}" for path in sources for match in map(HAND_MADE.search, path.read_text().splitlines()) if match
    ]
    assert not found


def test_a_small_text_is_described_in_the_singular(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pages.jsonl").write_text(json.dumps({"text": "The sailor saw the boat near the old harbour. " * 4}) + "\n")
    done = in_process("clean", "--input=pages.jsonl", "--input_format=jsonl", "--output=out.jsonl")
    assert done.returncode == 0 and "of 1 page\n" in done.stdout
    done = in_process("vocab", "--input=pages.jsonl", "--input_format=jsonl", "--size=60", "--output=vocab")
    assert " from 1 document, " in done.stdout
