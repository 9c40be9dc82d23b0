"""Tables of plans and of advice."""

import json

import pytest

from benchmarks import plans
from bertfam import cli
from bertfam.commands import plan as command
from bertfam.planning import slices

ROW = {
    "chips": 16,
    "mesh": {"replica": 1, "data": 2, "fsdp": 8, "sequence": 1, "tensor": 1},
    "rows": 256,
    "length": 128,
    "rows_per_device": 16.0,
    "memory": {"total": 3 * 2**29},
    "memory_limit": 2**34,
    "fits": True,
    "bound": {"seconds": 0.0123, "binds": "ici"},
}


def test_table_of_plans(tmp_path):
    (tmp_path / "bert_base-v5e-16.json").write_text(json.dumps({"programs": [ROW]}))
    (tmp_path / "bert_base-v5e-256.json").write_text(json.dumps({"refused": "256 rows do not divide"}))
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in plans.table(tmp_path, ["bert_base"]).splitlines()]
    assert len(lines) == 4
    assert lines[2][:7] == ["BERT-base", "v5e-16", "16", "data 2 x fsdp 8", "256 x 128", "16", "1.50 of 16.00"]
    assert lines[2][7:] == ["yes", "12.3 ms", "ici"]
    assert lines[3][7] == "refused: 256 rows do not divide"


def test_table_of_advice(tmp_path):
    """The table leaves out plans that fit, has the lines that make others fit, and says where none was found."""
    changes = {"lines": ["Run.microbatches = 2", "MeshShape.zero1 = True"], "costs": [], "bytes": 2**33}
    answers = {"v5e-16": {}, "v6e-64": {"v6e-64": changes}, "v5p-128": {"v5p-128": None}}
    for slice, advice in answers.items():
        (tmp_path / f"bert_base-{slice}.json").write_text(json.dumps({"programs": [ROW], "advice": advice}))
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in plans.advised(tmp_path, ["bert_base"]).splitlines()]
    assert lines[2:] == [
        ["BERT-base", "v6e-64", "`Run.microbatches = 2`<br>`MeshShape.zero1 = True`", "8.00 of 16.00"],
        ["BERT-base", "v5p-128", "no change that was tried", ""],
    ]


def test_slice_outside_a_study_is_not_planned(tmp_path, monkeypatch):
    planned = []
    monkeypatch.setattr(plans, "plan", lambda output, name, slice: planned.append((name, slice)))
    plans.main([f"--output={tmp_path}", "--only=bert_base", "--only=roberta_8_none", "--slice=v5e-16"])
    assert planned == [("bert_base", "v5e-16")]


@pytest.mark.parametrize("name", plans.STUDIES)
def test_every_study_is_a_run(name, monkeypatch, capsys):
    """Its flags are valid, up to the creation of its devices."""

    class Reached(Exception):
        pass

    def devices(self):
        raise Reached

    monkeypatch.setattr(slices.Slice, "devices", devices)
    monkeypatch.setattr(command, "prepare", lambda slices: None)
    with pytest.raises(Reached):
        cli.main(["plan", *plans.STUDIES[name].flags, *(f"--slice={slice_name}" for slice_name in plans.STUDIES[name].slices)])
