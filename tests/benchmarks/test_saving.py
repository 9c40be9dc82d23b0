"""The benchmark of saves on a small state through its command line."""

import json

import pytest

pytest.importorskip("psutil")

SIZES = ("num_layers=1", "hidden_size=16", "num_heads=2", "feed_forward_size=32", "vocab_size=50")


def test_stall_and_writing_of_each_round(tmp_path, modules_in_process):
    words = ["--gin_file=runs/bert_base.gin", *(f"--gin=BertConfig.{size}" for size in SIZES)]
    file = tmp_path / "saving.json"
    printed = modules_in_process("benchmarks.saving", *words, "--rounds=2", f"--output={tmp_path / 'disk'}", f"--json={file}")
    report = json.loads(file.read_text())
    assert len(report["rounds"]) == 2 and all(turn["stall"] > 0 < turn["writing"] for turn in report["rounds"])
    assert report["bytes"] > 4 * 3 * 50 * 16 and not any((tmp_path / "disk").iterdir())
    assert [line.split("|")[1].strip() for line in printed.splitlines() if line.startswith("| ")][2:] == [
        "stall",
        "stall, CPU",
        "longer update",
        "writing",
    ]
