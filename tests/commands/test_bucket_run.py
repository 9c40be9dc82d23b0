"""The run of `trained` in a bucket, from the vocabulary to the export, killed on the way."""

import json
import signal

import pytest
from command_line import bertfam
from model_folders import metrics

from bertfam import cli
from bertfam.storage import files, paths
from bertfam.training.checkpoints import newest


@pytest.fixture(scope="module")
def made(trained, bucket, tmp_path_factory):
    """Address of vocab/, cache/ and model/; the modules of the processes that have trained and evaluated."""
    home, folder = f"{bucket}/made", tmp_path_factory.mktemp("modules")
    text = trained.folder / "text"
    assert cli.main(["vocab", f"--input={text / 'train.txt'}", "--size=300", f"--output={home}/vocab"]) == 0
    inputs = [f"--input={text / 'train.txt'}", f"--validation_input={text / 'held-out.txt'}"]
    assert cli.main(["cache", *inputs, f"--vocab={home}/vocab", f"--output={home}/cache", "--processes=0"]) == 0
    command = ["pretrain", f"--gin_file={trained.folder / 'run.gin'}", f"--cache_dir={home}/cache", f"--model_dir={home}/model"]
    killed = bertfam(*command, DIE="14:SIGKILL:10", ABSENT="tensorflow")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert newest(f"{home}/model") == 10
    done = bertfam(*command, MODULES=folder / "pretrain")
    assert done.returncode == 0 and "resumed from step 10" in done.stdout, done.stderr
    done = bertfam("evaluate", f"--model_dir={home}/model", "--json", MODULES=folder / "evaluate")
    assert done.returncode == 0, done.stderr
    (folder / "scores.json").write_text(done.stdout)
    return home, folder


def test_a_killed_run_gives_the_losses_of_one_on_a_disk(made, trained):
    home, _ = made
    assert metrics(paths.to_path(home) / "model") == metrics(trained.model_dir)


def test_the_cache_has_the_bytes_of_one_on_a_disk(made, trained):
    home, _ = made
    there, here = paths.local(paths.to_path(home) / "cache"), trained.model_dir / "cache"
    names = sorted(path.relative_to(here) for path in here.rglob("*.bin"))
    assert len(names) == 8 and all((there / name).read_bytes() == (here / name).read_bytes() for name in names)


def test_no_tensorflow_where_it_is_installed(made):
    _, folder = made
    for name in ("pretrain", "evaluate"):
        modules = set(json.loads((folder / name).read_text()))
        assert "gcsfs" in modules and not modules & {"tensorflow", "seqio"}


def test_scores_of_the_command_are_those_of_the_run(made):
    home, folder = made
    scores = json.loads((folder / "scores.json").read_text())
    (last,) = [line for line in metrics(paths.to_path(home) / "model") if line["split"] == "eval" and line["step"] == 24]
    assert scores["mlm_loss"] == pytest.approx(last["mlm_loss"], rel=1e-6)


def test_export_import_and_weights_fill_alike(made, capsys):
    home, _ = made
    assert cli.main(["export", f"--model_dir={home}/model", f"--output={home}/export"]) == 0
    assert cli.main(["import", f"--input={home}/export", f"--output={home}/imported"]) == 0
    assert cli.main(["checkpoints", f"--model_dir={home}/model", "--step=24", f"--copy_weights={home}/weights"]) == 0
    capsys.readouterr()
    told = set()
    for name in ("model", "export", "imported", "weights"):
        assert cli.main(["fill", f"--model_dir={home}/{name}", "The [MASK] statement.", "--json"]) == 0
        told.add(capsys.readouterr().out)
    assert len(told) == 1


def test_the_list_of_checkpoints_finds_a_flipped_byte(made, capsys):
    home, _ = made
    folder = paths.to_path(home) / "model" / "checkpoints" / "15"
    path = next(path for path in folder.rglob("*") if path.is_file() and path.parent.name == "d")
    content = path.read_bytes()
    files.write_bytes(path, content[:-1] + bytes([content[-1] ^ 1]))
    assert cli.main(["checkpoints", f"--model_dir={home}/model", "--verify", "--json"]) == 1
    states = {row["step"]: row["state"] for row in json.loads(capsys.readouterr().out)}
    files.write_bytes(path, content)
    assert states == {5: "complete", 10: "complete", 15: "damaged", 20: "complete", 24: "complete"}


def test_a_folder_in_use_and_one_that_is_missing(made, capsys):
    home, _ = made
    assert cli.main(["export", f"--model_dir={home}/model", f"--output={home}/vocab"]) == 2
    assert cli.main(["fill", f"--model_dir={home}/nothing", "[MASK]"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert errors[0].startswith(f"bertfam: error: {home}/vocab exists already: name another folder")
    assert errors[1].startswith(f"bertfam: error: {home}/nothing is neither a model folder")
