"""A run keeps the rows and the keys that it began with: `TextData.rows_version` and `Run.seed_bits` in its config.gin."""

import re

import pytest
from command_line import in_process, listing
from model_folders import copy_run

from bertfam.training.model_dir import read_run

STATED = "TextData.rows_version = 4\n"


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
    assert read_run(trained.model_dir).data.rows_version == 4
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
    for folder, own, version in ((earlier, 1, 4), (trained.model_dir, 4, 1), (trained.model_dir, 4, 3)):
        done = in_process(*trained.pretrain(folder, f"--gin.TextData.rows_version={version}"))
        assert done.returncode == 2 and done.stderr.count("\n") == 1
        assert f"Run.data.rows_version was {own} when this run started and is {version} now" in done.stderr


def test_an_unknown_version_is_refused(trained, tmp_path):
    done = in_process(*trained.pretrain(tmp_path / "model", "--gin.TextData.rows_version=5"))
    assert done.returncode == 2 and "TextData.rows_version is 5: it must be from 1 to 4" in done.stderr
    assert not (tmp_path / "model").exists()


def test_a_run_of_version_two_resumes_without_a_line(trained, tmp_path):
    copy_run(trained.model_dir, tmp_path / "model")
    config = tmp_path / "model/config.gin"
    config.write_text(config.read_text().replace(STATED, "TextData.rows_version = 2\n"))
    (tmp_path / "model/files.json").unlink()
    done = in_process(*trained.pretrain(tmp_path / "model"))
    assert done.returncode == 0 and "rows_version" not in done.stderr, done.stderr
    assert read_run(tmp_path / "model").data.rows_version == 2


def test_a_run_begun_earlier_keeps_the_keys_of_its_long_seed(trained, tmp_path):
    copy_run(trained.model_dir, tmp_path / "model")
    config, text = tmp_path / "model/config.gin", (trained.model_dir / "config.gin").read_text()
    assert text.count("Run.seed_bits = 64\n") == 1
    config.write_text(re.sub(r"(?m)^SEED = .*$", "SEED = 4294967303", text.replace("Run.seed_bits = 64\n", "")))
    (tmp_path / "model/files.json").unlink()
    run = read_run(tmp_path / "model")
    assert run.seed_bits == 32 and run.key_seed == 7
    for words in (
        trained.pretrain(tmp_path / "model", "--gin.SEED=4294967303"),
        ["pretrain", f"--model_dir={tmp_path / 'model'}"],
    ):
        done = in_process(*words)
        assert done.returncode == 0, done.stderr
    done = in_process(*trained.pretrain(tmp_path / "model", "--gin.SEED=4294967303", "--gin.Run.seed_bits=64"))
    assert done.returncode == 2 and "Run.seed_bits was 32 when this run started and is 64 now" in done.stderr
