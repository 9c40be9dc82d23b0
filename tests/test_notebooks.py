"""Every notebook runs from its first cell to its last."""

import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path, random_model, monkeypatch, capsys):
    monkeypatch.setenv("BERTFAM_MODEL", str(random_model))
    names: dict = {}
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"{path.name}:{cell['id']}", "exec"), names)
    # Five candidates, a line for each layer, a line for each head.
    assert len(capsys.readouterr().out.splitlines()) == 5 + 2 + 2 * 2
