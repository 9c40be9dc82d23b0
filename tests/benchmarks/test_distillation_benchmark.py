"""Ablation of distillation on two updates of tiny networks; finished runs are not repeated."""

import subprocess
import sys

import pytest

from benchmarks.measurement import ROOT
from benchmarks.training_runs import metrics

pytest.importorskip("psutil")


def test_teacher_and_students(cache_dir, tmp_path, modules_in_process, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "compilations"))  # the program would set it for good
    sizes = {"teacher_steps": 2, "student_steps": 2, "teacher_layers": 1, "student_layers": 1, "hidden_size": 64}
    sizes |= {"batch_size": 4, "length": 32, "eval_batches": 1, "evaluations": 1}
    words = [f"--{name}={value}" for name, value in sizes.items()]
    words += [f"--cache={cache_dir}", f"--output={tmp_path}", "--dtype=float32"]
    for is_repeated, runs in ((False, "mlm,triple"), (True, "mlm")):
        printed = modules_in_process("benchmarks.distillation", *words, f"--runs={runs}")
        assert is_repeated == all("finished already" in (tmp_path / f"{name}.log").read_text() for name in ("teacher", "mlm"))
        if not is_repeated:
            first = printed
    assert (tmp_path / "table.md").read_text() in printed
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in first.splitlines() if line.startswith("| ")]
    head, table = lines[0], {line[0]: dict(zip(lines[0], line, strict=True)) for line in lines[2:]}
    assert list(table) == ["teacher, 1 layer", "masked language model alone", "triple loss, warm start"]
    assert head[2] == "held-out MLM loss"
    plain, triple = (metrics(tmp_path / name, "eval")[-1] for name in ("mlm", "triple"))
    row = table["triple loss, warm start"]
    assert float(row["held-out MLM loss"]) == pytest.approx(triple["mlm_loss"], abs=1e-4)
    assert float(row["difference from MLM alone"]) == pytest.approx(triple["mlm_loss"] - plain["mlm_loss"], abs=1e-4)
    assert row["L_ce"] and row["agreement with teacher"] and not table["masked language model alone"]["L_ce"]
    assert "starts from layer 0 of" in (tmp_path / "triple.log").read_text()


def test_unknown_run_is_refused(tmp_path):
    words = [f"--cache={tmp_path}", f"--output={tmp_path}", "--runs=all"]
    refused = subprocess.run([sys.executable, "-m", "benchmarks.distillation", *words], capture_output=True, cwd=ROOT)
    assert refused.returncode == 2 and b"--runs: all is not one of mlm, triple" in refused.stderr
