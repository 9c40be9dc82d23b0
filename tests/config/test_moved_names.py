"""Configurables that a gin file names by the module path of an earlier version."""

import pytest

from bertfam import moved
from bertfam.config import lint, load, registry
from bertfam.data.rows.packing import Packed
from bertfam.errors import UserError


@pytest.fixture(autouse=True)
def reset_warnings(monkeypatch):
    monkeypatch.setattr(lint, "_WARNED", set())


def test_old_path_builds_the_same_object_with_one_warning(tmp_path, capsys):
    old = tmp_path / "old.gin"
    old.write_text(
        "TextData.rows = @bertfam.data.packing.Packed()\n"
        "bertfam.data.packing.Packed.rows = @bertfam.data.text_rows.WholeDocuments()\n"
        "data.packing.Packed.max_examples = 3\n"
    )
    new = ["TextData.rows = @Packed()", "Packed.rows = @WholeDocuments()", "Packed.max_examples = 3"]
    rows = load([str(old)]).build("TextData").rows
    assert isinstance(rows, Packed)
    assert rows == load([], new).build("TextData").rows
    load([str(old)])
    assert capsys.readouterr().err.splitlines() == [
        f"bertfam: warning: {old}:{line}: {name} is now {current}; change the name"
        for line, name, current in [
            (1, "bertfam.data.packing.Packed", "bertfam.data.rows.packing.Packed"),
            (2, "bertfam.data.text_rows.WholeDocuments", "bertfam.data.rows.running_text.WholeDocuments"),
            (3, "data.packing.Packed", "bertfam.data.rows.packing.Packed"),
        ]
    ]


def test_written_configuration_has_the_current_path(capsys):
    written = load([], ["TextData.rows = @bertfam.data.packing.Packed()"]).text()
    assert "bertfam.data.rows.packing.Packed()" in written
    assert "data.packing" not in written.replace("data.rows.packing", "")
    capsys.readouterr()
    load([], written.splitlines())
    assert not capsys.readouterr().err


@pytest.mark.parametrize("old", sorted(moved.MODULES))
def test_configurables_of_every_moved_module_are_renamed(old):
    names = [path.rpartition(".")[2] for path in registry.CONFIGURABLES if path.rpartition(".")[0] == moved.MODULES[old]]
    for name in names:
        assert registry.renamed(f"{old}.{name}") == f"{moved.MODULES[old]}.{name}"


def test_unknown_name_under_an_old_path_is_refused():
    with pytest.raises(UserError, match="unknown configurable bertfam.data.packing.Unpacked"):
        load([], ["TextData.rows = @bertfam.data.packing.Unpacked()"])
