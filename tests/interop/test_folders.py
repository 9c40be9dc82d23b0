"""Kinds of folders of models, and the places in them that belong to a run."""

import pytest

from bertfam.errors import UserError
from bertfam.interop.folders import check_is_model, check_is_run, check_output


@pytest.mark.parametrize(
    "name", ["", ".", "../link", "checkpoints", "checkpoints/7", "vocab", "cache/new/export", "compilations"]
)
def test_output_that_belongs_to_a_run_is_refused(tmp_path, name):
    model_dir = tmp_path / "model"
    model_dir.mkdir()
    (tmp_path / "link").symlink_to(model_dir)
    with pytest.raises(UserError, match="--output=.* belongs to the run: name another folder"):
        check_output("--output", model_dir / name, model_dir)


@pytest.mark.parametrize("name", ["export", "checkpoints-export", "../export", "../model-export/checkpoints", "loop"])
def test_output_beside_the_folders_of_a_run_is_allowed(tmp_path, name):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "loop").symlink_to("loop")
    check_output("--output", tmp_path / "model" / name, tmp_path / "model")


def test_output_in_a_bucket_is_compared_by_address(tmp_path, bucket):
    check_output("--output", tmp_path / "export", f"{bucket}/model")
    check_output("--output", f"{bucket}/model/export", f"{bucket}/model")
    with pytest.raises(UserError, match="belongs to the run"):
        check_output("--output", f"{bucket}/model/checkpoints/export", f"{bucket}/model")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cache", "it is a token cache, for --cache_dir"),
        ("vocab", "it is a vocabulary, for --vocab"),
        ("text.txt", "it is a file"),
        ("modle", "did you mean model?"),
    ],
)
def test_folders_of_another_kind_and_misspelt_ones_are_named(tmp_path, monkeypatch, name, words):
    for file in ("cache/cache.json", "vocab/vocab.txt", "text.txt", "model/config.gin"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    monkeypatch.chdir(tmp_path)
    for check in (check_is_model, check_is_run):
        with pytest.raises(UserError, match=f"{name} is n.*{words.replace('?', '.')}"):
            check(name)


def test_home_folder_is_expanded_in_python_and_gin_files_too(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.gin").touch()
    check_is_run("~/model")
