"""Benchmark of long rows: a tiny model on the device that is here, and the table and exponents of given figures."""

import json
import sys

import pytest

from benchmarks import long_rows, training_step


def test_a_model_is_measured():
    tiny = [f"MODEL.{name}={size}" for name, size in (("num_layers", 1), ("hidden_size", 16), ("num_heads", 2))]
    figures = training_step.measure(long_rows.case("Longformer", 64, 128), 1, [*tiny, "MODEL.window=8"])
    assert (figures["rows"], figures["length"]) == (2, 64) and figures["seconds"] > 0
    assert figures["attention"].startswith("xla: the fastest backend that supports bfloat16 rows of 64 tokens")


def test_table_exponents_and_files(monkeypatch, capsys, tmp_path):
    def measure_all(jobs, args):
        for job in jobs:
            name, length = job.words[3], int(job.words[4])
            rows = 32_768 // length
            result = {"model": name, "length": length, "rows": rows, "peak_bytes": 2**30, "attention": "blocks: why"}
            result |= {"seconds": (length / 1024) ** (2 if name == "dense" else 1) * rows}
            if name != "BigBird":
                yield result | {"device": "cpu", "versions": {"jax": "1"}}

    monkeypatch.setattr(long_rows, "measure_all", measure_all)
    monkeypatch.setattr(sys, "argv", ["long_rows", f"--json={tmp_path / 'figures.json'}"])
    assert long_rows.main() == 0
    out = capsys.readouterr().out
    assert "| dense " in out and "BigBird" not in out and "| Longformer | 16,384" in out
    assert "dense: time of a row grows with its length to the power of 2.00" in out
    assert "ModernBERT: time of a row grows with its length to the power of 1.00" in out
    assert len(json.loads((tmp_path / "figures.json").read_text())) == 15
    monkeypatch.setattr(sys, "argv", ["long_rows", "--model=BigBird"])
    assert long_rows.main() == 1


def test_peers_leave_the_card_to_torch(monkeypatch):
    monkeypatch.setattr(long_rows.sides, "has_peer", lambda device: device == "cuda")
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    words = ["--peers", "--model=BigBird", "--length=2048", "--gin=BATCH_SIZE=1"]
    monkeypatch.setattr(sys, "argv", ["long_rows", *words])
    ours, peer = long_rows._jobs(long_rows._parser().parse_args())
    assert "JAX_PLATFORMS" not in ours.environment and peer.environment["JAX_PLATFORMS"] == "cpu"
    assert "--peer_device=cuda" in peer.words and {"BigBird", "2048", "--gin=BATCH_SIZE=1"} < {*ours.words} & {*peer.words}


def test_plot(tmp_path):
    pytest.importorskip("matplotlib")
    results = [{"model": "dense", "length": 2**n, "rows": 1, "seconds": 2.0**n, "peak_bytes": 2**30} for n in (10, 11)]
    long_rows.plot(results, str(tmp_path / "figure.svg"))
    assert "<svg" in (tmp_path / "figure.svg").read_text()
