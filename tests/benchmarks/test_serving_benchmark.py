"""The benchmark of serving: a tiny model on a CPU beside transformers, and the table."""

import json
import sys

import pytest

from benchmarks import serving
from bertfam.models.distilbert import DistilBertConfig

SIZES = {"vocab_size": 64, "num_layers": 2, "hidden_size": 16, "num_heads": 2, "feed_forward_size": 16, "max_length": 16}


def test_both_sides_compute_the_same_and_are_timed(monkeypatch, capsys, tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    monkeypatch.setattr(serving, "MODELS", {"distilbert": DistilBertConfig(**SIZES)})
    words = ["--length=8", "--batch=2", "--rounds=1", "--seconds=0", f"--json={tmp_path / 'serving.jsonl'}"]
    monkeypatch.setattr(sys, "argv", ["serving", *words])
    assert serving.main() == 0
    records = [json.loads(line) for line in (tmp_path / "serving.jsonl").read_text().splitlines()]
    assert [one["side"] for one in records] == ["bertfam", "peer"]
    assert all(one["difference"] < 1e-5 and one["calls"] == 3 and one["seconds"] > 0 for one in records)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| distilbert")]
    assert len(lines) == 2 and all("2 x 8" in line for line in lines)
