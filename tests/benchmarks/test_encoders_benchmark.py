"""Comparison of encoders on a few updates of two tiny ones."""

import json
import os
import subprocess
import sys

import pytest
import xla

from benchmarks.encoders import ENCODERS, run_file
from benchmarks.measurement import ROOT
from bertfam.config import load

pytest.importorskip("psutil")


def run(*words):
    command = [sys.executable, "-m", "benchmarks.encoders", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=os.environ | xla.device_environment())
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ENCODERS)
def test_every_run_file_builds_a_run(tmp_path, name):
    (tmp_path / "run.gin").write_text(run_file(ENCODERS[name], 20, None))
    built = load([str(tmp_path / "run.gin")]).build("Run")
    model = built.objective.model
    assert (model.num_layers, model.hidden_size, built.total_steps) == (2 if name == "DistilBERT" else 4, 256, 20)


def test_training_scores_and_table(cache_dir, tmp_path):
    tiny = [f"--gin.ElectraConfig.{size}" for size in ("num_layers=1", "hidden_size=64", "feed_forward_size=64")]
    tiny += ["--gin.BATCH_SIZE=4", '--gin.Execution.dtype="float32"']
    words = [f"--cache={cache_dir}", "--steps=3", "--batches=1", "--encoders=ELECTRA"]
    run("train", f"--output={tmp_path}", *words, "--", *tiny)
    score = json.loads((tmp_path / "ELECTRA/score.json").read_text())
    # Nothing is learnt in three updates: 2,000 pieces are equally likely, with either noise.
    assert all(7.4 < score[name] < 7.8 for name in ("mlm_loss", "yardstick_mlm_loss"))  # ln 2000 is 7.60
    assert score["mlm_loss"] != score["yardstick_mlm_loss"] and score["yardstick_network"] == "generator"
    (line,) = [line for line in run("table", f"--output={tmp_path}").splitlines() if line.startswith("| ELECTRA")]
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    assert cells[1].startswith(f"rtd {score['rtd_accuracy']:.3f} ({score['rtd_majority_accuracy']:.3f})")
    assert cells[3] == f"{score['yardstick_mlm_loss']:.3f} (generator)" and float(cells[7]) >= 0
