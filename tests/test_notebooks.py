"""Form of the notebooks; `make notebooks` runs them."""

import ast
import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_cells_are_sound_and_have_no_output(path):
    notebook = json.loads(path.read_text())
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    cells = notebook["cells"]
    assert len({cell["id"] for cell in cells}) == len(cells) and cells[0]["cell_type"] == "markdown"
    for cell in cells:
        if cell["cell_type"] == "code":
            assert not cell["outputs"] and cell["execution_count"] is None
            ast.parse("".join(cell["source"]))


def test_noise_of_every_objective_is_shown_or_named():
    text = (ROOT / "notebooks/noise.ipynb").read_text()
    names = [path.stem.removeprefix("t5_").removeprefix("bart_") for path in (ROOT / "gin_configs/objectives").glob("*.gin")]
    assert len(names) > 30 and not [name for name in names if f'\\"{name}\\"' not in text]


def test_imports_of_notebooks_exist():
    """A name that has moved is found here, before the notebooks are run."""
    for path in NOTEBOOKS:
        code = "\n".join("".join(cell["source"]) for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code")
        imports = [
            node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom) and "bertfam" in str(node.module)
        ]
        for node in imports:
            module = importlib.import_module(str(node.module))
            assert all(hasattr(module, alias.name) or is_module(f"{node.module}.{alias.name}") for alias in node.names), path


def is_module(name):
    return importlib.util.find_spec(name) is not None


def test_every_notebook_is_described():
    page = (ROOT / "docs" / "notebooks.md").read_text()
    assert NOTEBOOKS and all(f"../notebooks/{path.name}" in page for path in NOTEBOOKS)
