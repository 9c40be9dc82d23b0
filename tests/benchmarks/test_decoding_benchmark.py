"""The benchmark of decoding: a tiny model on a CPU, and the table of given figures."""

import json
import sys

import pytest

from benchmarks import decoding

SIZES = ("num_layers = 1", "hidden_size = 16", "num_heads = 2", "feed_forward_size = 16")


@pytest.mark.parametrize("side", ["bertfam", "peer"])
def test_a_case_is_measured(side, monkeypatch, capsys):
    if side == "peer":
        pytest.importorskip("torch")
        pytest.importorskip("transformers")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setitem(decoding.MODELS, "gpt2", ("runs/gpt2_small.gin", 200))
    monkeypatch.setattr(decoding, "_ROUNDS", 1)
    words = ["--one", "gpt2", "greedy", "2", side, "--prompt=4", "--new_tokens=3", "--torch_compile=none"]
    monkeypatch.setattr(sys, "argv", ["decoding", *words, *(f"--gin=MODEL.{size}" for size in SIZES)])
    assert decoding.main() == 0
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert record["tokens_per_second"] * record["seconds"] == pytest.approx(2 * 3)
    assert record["side"] == ("bertfam" if side == "bertfam" else "Hugging Face")


def test_jobs_and_table(monkeypatch, capsys, tmp_path):
    def measure_all(jobs, args):
        for job in jobs:
            name, strategy, batch, side = job.words[job.words.index("--one") + 1 :][:4]
            case = {"model": name, "strategy": strategy, "batch": int(batch), "side": side, "device": "a card"}
            rates = {"seconds": 1.0 if side == "bertfam" else 2.5, "tokens_per_second": 1e3, "first_seconds": 9.0}
            yield case | rates | {"peak_bytes": 2**30, "versions": {"jax": "1"}, "date": "2026-11-29T20:00:00"}

    monkeypatch.setattr(decoding.sides, "measure_all", measure_all)
    monkeypatch.setattr(decoding.sides, "has_peer", lambda device: True)
    monkeypatch.setattr(sys, "argv", ["decoding", "--model=gpt2", "--batch=8", f"--json={tmp_path / 'a.jsonl'}"])
    assert decoding.main() == 0
    out = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in out.splitlines() if line.startswith("| gpt2")]
    assert [row[1:4] + row[-1:] for row in rows] == [
        ["greedy", "8", "bertfam", ""],
        ["greedy", "8", "peer", "2.50"],
        ["beam", "8", "bertfam", ""],
        ["beam", "8", "peer", "2.50"],
    ]
    assert len((tmp_path / "a.jsonl").read_text().splitlines()) == 4 and "one a card, jax 1, 2026-11-29" in out
