"""Benchmarks of language models: a few updates of a tiny model, and both variants of its loss."""

import argparse
import json
import subprocess
import sys

import pytest

from benchmarks import cross_entropy
from benchmarks.language_models import COMPARISONS, run_file
from benchmarks.measurement import ROOT
from bertfam.config import load

pytest.importorskip("psutil")


def test_unknown_run_is_refused(tmp_path):
    words = ["table", f"--output={tmp_path}", "--runs=none"]
    refused = subprocess.run([sys.executable, "-m", "benchmarks.language_models", *words], capture_output=True, cwd=ROOT)
    assert refused.returncode == 2 and b"--runs: none" in refused.stderr


@pytest.mark.parametrize("name", COMPARISONS)
def test_every_run_file_builds_a_run(tmp_path, name):
    (tmp_path / "run.gin").write_text(run_file(COMPARISONS[name], 20, None))
    built = load([str(tmp_path / "run.gin")]).build("Run").sized(8192)
    assert built.total_steps == 20 and (built.objective.model.kind == "decoder") == (name == "GPT-2")
    # The expected order of magnitude: 20 updates of 32,768 tokens by some 50 or 90 M parameters.
    assert 5e13 < built.flops_after(0) < 5e14


def test_training_scores_and_table(cache_dir, tmp_path, modules_in_process):
    (tmp_path / "caches").mkdir()
    (tmp_path / "caches/gpt2").symlink_to(cache_dir)
    tiny = [f"--gin.Gpt2Config.{size}" for size in ("num_layers=1", "hidden_size=48", "feed_forward_size=48")]
    tiny += [f"--gin.Gpt2Config.{part}dropout_rate=0.0" for part in ("", "embedding_", "attention_")]
    tiny += ["--gin.BATCH_SIZE=4", "--gin.Stage.length=32", '--gin.Execution.dtype="float32"']
    words = ["--runs=GPT-2", "--steps=3", "--batches=1"]
    modules_in_process(
        "benchmarks.language_models", "train", f"--caches={tmp_path}/caches", f"--output={tmp_path}", *words, "--", *tiny
    )
    score = json.loads((tmp_path / "GPT-2/score.json").read_text())
    assert 7.2 < score["lm_loss"] < 7.9  # ln 2000 is 7.60
    assert score["step"] == 3 and len(score["texts"]) == 2
    table = modules_in_process("benchmarks.language_models", "table", f"--output={tmp_path}")
    (line,) = [line for line in table.splitlines() if line.startswith("| GPT-2")]
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    assert cells[3] == f"{score['lm_loss']:.3f} ({score['unigram_loss']:.3f})"
    assert cells[5] == f"{score['byte_perplexity']:.3f}" and float(cells[7]) >= 0


def test_loss_with_chunked_logits_is_measured(capsys, monkeypatch):
    """tests/objectives/test_language_models.py compares it with that of all logits at once."""
    monkeypatch.setattr(cross_entropy, "_VOCABULARY", 500)
    monkeypatch.setattr(cross_entropy, "load", lambda files, bindings: load(files, [*bindings, "Gpt2Config.num_layers=1"]))
    cross_entropy.measure(argparse.Namespace(variant="chunked", model="gpt2_tiny", rows=2, length=24, steps=2))
    assert 6 < json.loads(capsys.readouterr().out)["loss"] < 6.5  # ln 500 is 6.21
