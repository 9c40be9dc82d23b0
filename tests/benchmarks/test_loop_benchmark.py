"""Benchmark of the training loop on few steps: phases of the loop and the bare step are measured apart."""

import json

import pytest

pytest.importorskip("psutil")


def test_loop_and_bare_step_are_measured_in_turns(cache_dir, tmp_path, modules_in_process):
    words = ["--steps=4", "--rounds=2", "--hidden_size=16", f"--cache={cache_dir}", f"--json={tmp_path / 'loop.json'}"]
    printed = modules_in_process("benchmarks.loop", *words)
    rounds = json.loads((tmp_path / "loop.json").read_text())["rounds"]
    assert [turn["steps"] for turn in rounds] == [2, 2]
    assert all(turn["bare"] > 0 and turn["loop"]["training"] > 0 for turn in rounds)
    table = [line for line in printed.splitlines() if line.startswith("| ")][2:]
    bare = float(table[0].split("|")[3])
    assert bare == pytest.approx(1e3 * sum(turn["bare"] for turn in rounds) / 4, abs=0.01)
    seconds = sum(turn["loop"][name] for turn in rounds for name in ("training", "waiting for data", "saving"))
    assert float(table[-2].split("|")[3]) == pytest.approx(1e3 * seconds / 4, abs=0.01)
