"""Jobs of the benchmarks in processes of their own: logs, devices and failures."""

import os

import pytest

pytest.importorskip("psutil")
from benchmarks.training_runs import run_all  # noqa: E402

SHOWS = """\
import os, sys
import benchmarks.training_runs
print(sys.argv[1:], os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION"))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return the working directory, where the module `shows` is."""
    (tmp_path / "shows.py").write_text(SHOWS)
    monkeypatch.chdir(tmp_path)
    for name in ("PYTHONPATH", "CUDA_VISIBLE_DEVICES", "XLA_PYTHON_CLIENT_MEM_FRACTION"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.mark.parametrize(("gpus", "shown"), [(0, "None None"), (1, "0 None"), (["3", "3"], "3 0.45")])
def test_commands_of_a_job_run_in_order_and_their_output_is_kept(folder, gpus, shown):
    run_all({"one": [["shows", "first"], ["shows", "second"]], "two": [["shows"]]}, folder, gpus)
    assert (folder / "one.log").read_text() == f"['first'] {shown}\n['second'] {shown}\n"
    assert (folder / "two.log").read_text() == f"[] {shown}\n"
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


def test_failed_command_ends_its_job_and_is_reported_after_the_others(folder):
    with pytest.raises(RuntimeError, match=r"bad: exit 1\n(.*\n)*.*No module named no_such_module"):
        run_all({"bad": [["no_such_module"], ["shows"]], "good": [["shows", "other"]]}, folder, 0)
    assert "None" not in (folder / "bad.log").read_text()
    assert "['other']" in (folder / "good.log").read_text()
