"""Processes refuse to run together with different code."""

import sys
import types

import pytest
from test_distributed import patience, run_processes  # noqa: F401

from bertfam.multihost import same_code


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """Folder of a module and a package that a user has imported."""
    files = {"mine.py": "A = 1", "tasks/__init__.py": "", "tasks/books.py": "B = 2"}
    (tmp_path / "tasks").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    for name, path in (("mine", "mine.py"), ("tasks", "tasks/__init__.py")):
        module = types.ModuleType(name)
        module.__file__ = str(tmp_path / path)
        monkeypatch.setitem(sys.modules, name, module)
    return tmp_path


def test_equal_modules_of_the_user_are_accepted(run_processes, modules):  # noqa: F811
    def check_modules(processes):
        same_code.check_modules(processes, ["mine", "tasks", "sys"])
        return "went on"

    assert run_processes(3, check_modules) == ["went on"] * 3
    (modules / "tasks" / "more.py").touch()
    assert sorted(same_code._files("tasks", modules / "tasks", "*.py")) == [
        "tasks/__init__.py",
        "tasks/books.py",
        "tasks/more.py",
    ]


def test_process_with_a_different_file_is_reported(run_processes):  # noqa: F811
    def check(processes):
        with processes.on_all("the code"):
            same_code._check_same(processes, {"step.py": "0", "run.py": "1" if processes.index == 2 else "0"})

    reported, *others = run_processes(3, check)
    assert str(reported) == "process 2 has different code from process 0: run.py differs; install the same everywhere"
    assert [error.code for error in others] == [2, 2]


@pytest.mark.parametrize(
    ("theirs", "description"),
    [
        ({"flax": "0.1"}, "flax 0.1, 0.2 on process 0"),
        ({"a.py": "1", "b.py": "1"}, "a.py, b.py differ"),
        ({name: "1" for name in "abcde"}, "a, b, c and 2 more differ"),
    ],
)
def test_differences_are_described_in_one_line(theirs, description):
    assert same_code._describe(sorted(theirs), theirs, {"flax": "0.2"}) == description


def test_check_covers_all_modules_gin_files_and_libraries(run_processes, monkeypatch):  # noqa: F811
    """Record the files of both processes, and accept equal ones."""
    checked_files = []
    digests = same_code._digests
    monkeypatch.setattr(same_code, "_digests", lambda files: checked_files.append(sorted(files)) or digests(files))
    assert run_processes(2, lambda processes: same_code.check_code(processes)) == [None, None]
    assert checked_files[0] == checked_files[1] and len(checked_files[0]) > 300
    assert {"bertfam/training/step.py", "gin_configs/runs/quickstart.gin"} <= set(checked_files[0])
