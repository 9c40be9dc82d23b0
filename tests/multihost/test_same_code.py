"""Processes with different code refuse each other."""

import sys
import types

import pytest
from test_distributed import together  # noqa: F401

from bertfam.multihost import same_code


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """A module and a package that a user has imported."""
    files = {"mine.py": "A = 1", "tasks/__init__.py": "", "tasks/books.py": "B = 2"}
    (tmp_path / "tasks").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    for name, path in (("mine", "mine.py"), ("tasks", "tasks/__init__.py")):
        module = types.ModuleType(name)
        module.__file__ = str(tmp_path / path)
        monkeypatch.setitem(sys.modules, name, module)
    return tmp_path


def test_modules_of_the_user(together, modules):  # noqa: F811
    def same(processes):
        same_code.check_modules(processes, ["mine", "tasks", "sys"])
        return "went on"

    assert together(3, same) == ["went on"] * 3
    (modules / "tasks" / "more.py").touch()
    assert sorted(same_code._files("tasks", modules / "tasks", "*.py")) == [
        "tasks/__init__.py",
        "tasks/books.py",
        "tasks/more.py",
    ]


def test_a_process_with_another_file_is_named(together):  # noqa: F811
    def check(processes):
        with processes.on_all("the code"):
            same_code._check_same(processes, {"step.py": "0", "run.py": "1" if processes.index == 2 else "0"})

    told, *others = together(3, check)
    assert str(told) == "process 2 has different code from process 0: run.py differs; install the same everywhere"
    assert [error.code for error in others] == [2, 2]


@pytest.mark.parametrize(
    ("theirs", "told"),
    [
        ({"flax": "0.1"}, "flax 0.1, 0.2 on process 0"),
        ({"a.py": "1", "b.py": "1"}, "a.py, b.py differ"),
        ({name: "1" for name in "abcde"}, "a, b, c and 2 more differ"),
    ],
)
def test_what_differs_is_told_in_a_line(theirs, told):
    assert same_code._describe(sorted(theirs), theirs, {"flax": "0.2"}) == told


def test_the_own_code_is_all_of_it(together, monkeypatch):  # noqa: F811
    """Every module and gin file, and the libraries; a process with another one is found."""
    seen = []
    digests = same_code._digests
    monkeypatch.setattr(same_code, "_digests", lambda files: seen.append(sorted(files)) or digests(files))
    assert together(2, lambda processes: same_code.check_code(processes)) == [None, None]
    assert seen[0] == seen[1] and len(seen[0]) > 300
    assert {"bertfam/training/step.py", "gin_configs/runs/quickstart.gin"} <= set(seen[0])
