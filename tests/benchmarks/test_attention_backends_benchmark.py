"""The attention benchmark on a CPU, with tiny rows."""

import json
import sys

import pytest

from benchmarks import attention_backends


def test_backends_are_timed_and_compared_with_the_reference(tmp_path, monkeypatch, capsys):
    sizes = ["--lengths=24,200", "--tokens=200", "--heads=2", "--head_dim=8", "--dtype=float32", "--steps=1"]
    command = ["attention_backends", "--works=packed,window", *sizes, f"--json={tmp_path / 'figures.json'}"]
    monkeypatch.setattr(sys, "argv", command)
    assert attention_backends.main() == 0
    figures = json.loads((tmp_path / "figures.json").read_text())["figures"]
    assert {(one["work"], one["entrant"], one["length"]) for one in figures} == {
        *((work, "xla", length) for work in ("packed", "window") for length in (24, 200)),
        ("window", "blocks", 200),
    }
    assert all(one["error"] < 1e-5 and one["same_bits"] for one in figures)
    assert "blocks" in capsys.readouterr().out


def test_an_unknown_work_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["attention_backends", "--works=windows"])
    with pytest.raises(SystemExit, match="2"):
        attention_backends.main()
    assert "windows" in capsys.readouterr().err
