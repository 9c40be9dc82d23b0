"""A run keeps the rows that it began with: `TextData.rows_version` in its config.gin."""

import pytest
from command_line import in_process, listing
from model_folders import copy_run

from bertfam.training.model_dir import read_run

STATED = "TextData.rows_version = 2\n"


@pytest.fixture(scope="module")
def earlier(trained, tmp_path_factory):
    """Folder of the finished run, as a version before rows had versions would have written it."""
    folder = tmp_path_factory.mktemp("earlier") / "model"
    copy_run(trained.model_dir, folder)
    config = (folder / "config.gin").read_text()
    assert config.count(STATED) == 1
    (folder / "config.gin").write_text(config.replace(STATED, ""))
    (folder / "files.json").unlink()  # which such a version did not write
    return folder


def test_a_new_run_states_the_version_of_its_rows(trained):
    assert read_run(trained.model_dir).data.rows_version == 2
    assert "rows_version" not in trained.stderr


def test_a_run_begun_earlier_resumes_with_its_own_rows_and_says_so(trained, earlier):
    assert read_run(earlier).data.rows_version == 1
    before = listing(earlier)
    for words in (trained.pretrain(earlier), ["pretrain", f"--model_dir={earlier}"]):
        done = in_process(*words)
        assert done.returncode == 0, done.stderr
        (line,) = [line for line in done.stderr.splitlines() if "rows_version" in line]
        assert line.startswith("bertfam: warning: TextData.rows_version is 1: ")
    assert listing(earlier) == before


def test_the_other_version_is_refused(trained, earlier):
    for folder, version in ((earlier, 2), (trained.model_dir, 1)):
        done = in_process(*trained.pretrain(folder, f"--gin.TextData.rows_version={version}"))
        assert done.returncode == 2 and done.stderr.count("\n") == 1
        assert f"Run.data.rows_version was {3 - version} when this run started and is {version} now" in done.stderr


def test_an_unknown_version_is_refused(trained, tmp_path):
    done = in_process(*trained.pretrain(tmp_path / "model", "--gin.TextData.rows_version=3"))
    assert done.returncode == 2 and "TextData.rows_version is 3: it must be from 1 to 2" in done.stderr
    assert not (tmp_path / "model").exists()
