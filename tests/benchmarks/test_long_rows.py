"""Table, exponents and figure of long rows, from recorded figures."""

import json
import sys

import pytest

from benchmarks import long_rows

LENGTHS = (1024, 2048, 4096)


def record(model, length, side="bertfam"):
    rows = 32_768 // length
    seconds = (length / 1024) ** (2 if model == "dense" else 1) * rows * (1 if side == "bertfam" else 3)
    figures = {"case": f"long-{model}-{length}", "side": side, "length": length, "rows": rows, "seconds": seconds}
    figures |= {"tokens_per_second": 32_768 / seconds, "peak_bytes": 2**30, "attention": "blocks: why"}
    return figures | {"device": "cpu", "versions": {"jax": "1"}}


@pytest.fixture
def file(tmp_path):
    records = [record(*one) for one in [("longformer", n) for n in LENGTHS] + [("dense", n) for n in LENGTHS]]
    records += [record("dense", 2048, "Hugging Face"), record("dense", 1024) | {"case": "bert-base-128"}]
    path = tmp_path / "step.jsonl"
    path.write_text("\n".join(map(json.dumps, records)))
    return path


def test_table_and_exponents(file, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["long_rows", f"--json={file}"])
    assert long_rows.main() == 0
    out = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in out.splitlines() if line.startswith("| ")][2:]
    names = ["dense"] * 3 + ["longformer"] * 3 + ["dense, Hugging Face"]
    assert [row[0] for row in rows] == names and [row[1] for row in rows[:3]] == ["1,024", "2,048", "4,096"]
    assert rows[5][2:] == ["4000.00", "1", "1.0", "4.00", "blocks"]
    assert rows[6][5] == "0.33"
    assert "dense: time of a row grows with its length to the power of 2.00" in out
    assert "longformer: time of a row grows with its length to the power of 1.00" in out
    assert "Hugging Face: time" not in out


def test_without_figures(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["long_rows", f"--json={tmp_path}/none.jsonl"])
    with pytest.raises(SystemExit) as stopped:
        long_rows.main()
    assert stopped.value.code == 2 and "none.jsonl" in capsys.readouterr().err


def test_plot(file, tmp_path):
    pytest.importorskip("matplotlib")
    long_rows.plot(long_rows.long_records(long_rows.read_records(file)), tmp_path / "figure.svg")
    assert "<svg" in (tmp_path / "figure.svg").read_text()
