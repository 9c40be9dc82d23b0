"""Speedrun: run files of all recipes, and a few updates of a tiny encoder."""

import argparse
import json

import pytest

from benchmarks.speedrun import RECIPES, run_file, table_of
from bertfam.config import load

pytest.importorskip("psutil")

SIZES = {"num_layers": 1, "hidden_size": 64, "length": 32, "batch_size": 8, "every": 2, "tokens": 2048.0, "target": 7.7}


def test_recipes_add_up(tmp_path):
    args, runs = argparse.Namespace(cache=tmp_path, **SIZES), {}
    for name in RECIPES:
        (tmp_path / "run.gin").write_text(run_file(name, args))
        runs[name] = load([str(tmp_path / "run.gin")], module_imports=["benchmarks.target_loss"]).build("Run")
    first, last = runs["bert"], runs["more_masks"]
    assert type(first.objective).__name__ == "MlmNsp" and type(first.optimizer).__name__ == "BertAdam"
    assert (first.objective.model.dropout_rate, first.data.dupe_factor, first.optimizer.schedule.peak) == (0.1, 10, 1e-3)
    assert (first.stages[0].batch_size, first.total_steps) == (8, 8)
    assert runs["no_dropout"].objective.model.dropout_rate == 0 and runs["no_dropout"].optimizer == first.optimizer
    assert type(last.objective).__name__ == "Mlm" and type(last.optimizer).__name__ == "Muon" and last.data.rows.is_packed
    assert (last.stages[0].batch_size, last.total_steps, last.optimizer.schedule.peak) == (2, 8, 8e-3)
    assert (last.objective.model.initializer_range, last.data.corruption.rate) == (0.05, 0.3)


def test_run_ends_at_the_target(cache_dir, tmp_path, modules_in_process):
    sizes = [f"--{name}={value}" for name, value in SIZES.items()]
    modules_in_process("benchmarks.speedrun", "train", f"--cache={cache_dir}", f"--output={tmp_path}", "--recipes=muon", *sizes)
    (line,) = map(json.loads, (tmp_path / "speedrun.jsonl").read_text().splitlines())
    # Little is learnt in two updates: 2,000 pieces are about equally likely, and ln 2000 is 7.60. Each Python has another text.
    assert line["reached"] and 7.4 < line["loss"] <= 7.7 and (line["updates"], line["tokens"]) == (2, 2 * 2 * 32)
    assert "ended after step 2 of 8: the held-out loss is 7." in (tmp_path / "muon.log").read_text()
    table = modules_in_process("benchmarks.speedrun", "table", f"--output={tmp_path}")
    assert "target 7.7" in table and "| muon " in table


def test_table_is_relative_to_the_first_row():
    common = {"target": 6.0, "device": "cpu", "versions": {"jax": "1"}, "commit": "c", "date": "2026-01-01T00:00:00"}
    sizes = {"updates": 1000, "seconds": 50.0, "loss": 5.99, "accuracy": 0.125}
    first = {"recipe": "bert", "change": "", "reached": True, "tokens": 4e6, "cpu_seconds": 90.0}
    best = {"recipe": "muon", "change": "", "reached": True, "tokens": 5e5, "cpu_seconds": 20.0}
    missed = {"recipe": "adamw", "change": "", "reached": False, "tokens": 4e6, "cpu_seconds": 91.0}
    lines = table_of([common | sizes | one for one in (best, missed, first)]).splitlines()[-3:]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert [row[0] for row in cells] == ["bert", "adamw", "muon"]
    assert [row[-2:] for row in cells] == [["1.0", "1.0"], ["-", "-"], ["8.0", "4.5"]]
    assert cells[1][6] == "5.990 (not reached)"
