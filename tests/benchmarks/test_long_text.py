"""Comparison of contexts on a few updates of a tiny model."""

import json

import numpy as np
import pytest

from benchmarks.long_text import PHASES, Cut, contexts, run_file
from bertfam.config import load

pytest.importorskip("psutil")


def test_cut_rows_are_those_parts_of_each_example():
    """Compare segments and positions with those that a loop writes token by token."""

    class Whole:
        def rows(self, step, start, stop):
            lengths = [[5, 3, 2], [9, 1]]
            segments = np.array(
                [np.repeat([1, 2, 3, 0], [*own, *[0] * (3 - len(own)), 12 - sum(own)]) for own in lengths], np.int32
            )
            positions = np.array(
                [np.concatenate([np.arange(n) for n in own] + [np.zeros(12 - sum(own), int)]) for own in lengths]
            )
            return {"encoder_segment_ids": segments, "encoder_positions": positions.astype(np.int32), "kept": segments}

    whole, cut = Whole().rows(0, 0, 2), Cut(Whole(), 4).rows(0, 0, 2)
    assert np.array_equal(cut["kept"], whole["kept"])
    for row in range(2):
        for one in range(12):
            segment, place = whole["encoder_segment_ids"][row, one], whole["encoder_positions"][row, one]
            assert cut["encoder_positions"][row, one] == (place % 4 if segment else 0)
            for other in range(12):
                together = segment == whole["encoder_segment_ids"][row, other]
                if segment:
                    together &= place // 4 == whole["encoder_positions"][row, other] // 4
                assert (cut["encoder_segment_ids"][row, one] == cut["encoder_segment_ids"][row, other]) == together


def test_phases_have_the_same_tokens(tmp_path):
    tokens = {}
    for name, phase in PHASES.items():
        (tmp_path / "run.gin").write_text(run_file(phase, 100))
        run = load([str(tmp_path / "run.gin")]).build("Run")
        (stage,) = run.stages
        tokens[name] = run.total_steps * stage.batch_size * stage.length
    assert tokens["long"] == tokens["short-continued"] == tokens["short"] / 2


def test_training_scores_and_table(cache_dir, tmp_path, modules_in_process):
    tiny = [
        f"--gin.ModernBertConfig.{size}" for size in ("num_layers=1", "hidden_size=32", "num_heads=2", "feed_forward_size=32")
    ]
    tiny += ["--gin.BATCH_SIZE=1", "--gin.Stage.length=64", '--gin.Execution.dtype="float32"', "--gin.Run.eval_every=0"]
    tiny += ["--gin.WarmupStableDecay.peak=0.1"]  # so that the context matters after two updates
    runs = ["short", "short-continued"]
    sizes = ["--length=256", "--tokens=512", f"--runs={','.join(runs)}"]
    modules_in_process(
        "benchmarks.long_text", "train", f"--cache={cache_dir}", f"--output={tmp_path}", "--steps=2", *sizes, "--", *tiny
    )
    for name in runs:
        score = json.loads((tmp_path / name / "score.json").read_text())
        assert all(0 < score[str(context)]["loss"] < 40 for context in contexts(256))
        assert score["128"]["mlm"] == score["256"]["mlm"] and score["128"]["loss"] != score["256"]["loss"]
    table = modules_in_process("benchmarks.long_text", "table", f"--output={tmp_path}", "--length=256")
    assert [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")][2:] == runs
