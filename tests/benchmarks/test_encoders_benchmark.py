"""Comparison of encoders on a few updates of two tiny ones."""

import json
import subprocess
import sys

import pytest

from benchmarks.encoders import ENCODERS, run_file
from benchmarks.measurement import ROOT
from bertfam.config import load

pytest.importorskip("psutil")


def test_unknown_encoder_is_refused(tmp_path):
    words = ["table", f"--output={tmp_path}", "--encoders=BERT,none"]
    refused = subprocess.run([sys.executable, "-m", "benchmarks.encoders", *words], capture_output=True, cwd=ROOT)
    assert refused.returncode == 2 and b"--encoders: none is not one of" in refused.stderr


@pytest.mark.parametrize("name", ENCODERS)
def test_every_run_file_builds_a_run(tmp_path, name):
    (tmp_path / "run.gin").write_text(run_file(ENCODERS[name], 20, None))
    built = load([str(tmp_path / "run.gin")]).build("Run")
    model = built.objective.model
    assert (model.num_layers, model.hidden_size, built.total_steps) == (2 if name == "DistilBERT" else 4, 256, 20)


def test_training_scores_and_table(cache_dir, tmp_path, modules_in_process):
    tiny = [f"--gin.ElectraConfig.{size}" for size in ("num_layers=1", "hidden_size=64", "feed_forward_size=64")]
    tiny += [f"--gin.ElectraConfig.{part}dropout_rate=0.0" for part in ("", "attention_")]
    tiny += ["--gin.BATCH_SIZE=4", '--gin.Execution.dtype="float32"']
    words = [f"--cache={cache_dir}", "--steps=3", "--batches=1", "--encoders=ELECTRA"]
    modules_in_process("benchmarks.encoders", "train", f"--output={tmp_path}", *words, "--", *tiny)
    score = json.loads((tmp_path / "ELECTRA/score.json").read_text())
    # Nothing is learnt in three updates: 2,000 pieces are equally likely, with either noise.
    assert all(7.4 < score[name] < 7.8 for name in ("mlm_loss", "yardstick_mlm_loss"))  # ln 2000 is 7.60
    assert score["mlm_loss"] != score["yardstick_mlm_loss"] and score["yardstick_network"] == "generator"
    table = modules_in_process("benchmarks.encoders", "table", f"--output={tmp_path}")
    (line,) = [line for line in table.splitlines() if line.startswith("| ELECTRA")]
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    assert cells[1].startswith(f"rtd {score['rtd_accuracy']:.3f} ({score['rtd_majority_accuracy']:.3f})")
    assert cells[3] == f"{score['yardstick_mlm_loss']:.3f} (generator)" and float(cells[7]) >= 0
