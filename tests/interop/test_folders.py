"""Kinds of folders of models, and the places in them that belong to a run."""

import os

import pytest

from bertfam.errors import UserError
from bertfam.interop import huggingface
from bertfam.interop.folders import check_is_model, check_is_run, check_output
from bertfam.training.checkpoints import Checkpoints
from bertfam.training.model_dir import check_folder


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
        ("link", "link is a link to nowhere, which does not exist"),
    ],
)
def test_folders_of_another_kind_and_misspelt_ones_are_named(tmp_path, monkeypatch, name, words):
    for file in ("cache/cache.json", "vocab/vocab.txt", "text.txt", "model/config.gin"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    (tmp_path / "link").symlink_to("nowhere")
    monkeypatch.chdir(tmp_path)
    for check in (check_is_model, check_is_run):
        with pytest.raises(UserError, match=f"{name} is n.*{words.replace('?', '.')}"):
            check(name)


def test_home_folder_is_expanded_in_python_and_gin_files_too(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.gin").touch()
    check_is_run("~/model")


def test_folders_and_archives_around_a_model_are_answered_with_the_folder(tmp_path):
    snapshot = tmp_path / "models--a--b" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    for check in (check_is_model, huggingface.read):
        with pytest.raises(UserError, match=f"name the model folder in it: {snapshot}"):
            check(tmp_path / "models--a--b")
    (tmp_path / "a.zip").touch()
    with pytest.raises(UserError, match=r"a\.zip is a file: name a folder, after unpacking it"):
        huggingface.read(tmp_path / "a.zip")


@pytest.mark.parametrize("check", [check_folder, Checkpoints])
def test_folder_of_a_run_whose_path_is_not_utf_8_is_refused(check, tmp_path):
    for folder in (tmp_path / os.fsdecode(b"d\xe9"), tmp_path / os.fsdecode(b"d\xe9") / "run"):
        with pytest.raises(UserError, match=r"d\\xe9.*: checkpoints need a path in UTF-8"):
            check(folder)
    assert not list(tmp_path.iterdir())
