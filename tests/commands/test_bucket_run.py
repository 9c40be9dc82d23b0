"""The run of `trained` in a bucket that refuses some requests, from the vocabulary to the export, killed and resumed."""

import json
import signal

import fake_bucket
import pytest
from command_line import bertfam
from model_folders import metrics

from bertfam import cli
from bertfam.storage import files, paths
from bertfam.training.checkpoints import newest


@pytest.fixture(scope="module", autouse=True)
def one_block():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BERTFAM_CACHE_GIB", "1e-6")
        yield


@pytest.fixture(scope="module")
def in_bucket(trained, bucket, tmp_path_factory):
    """Return the address of vocab/, cache/ and model/, and a folder with scores.json and the list modules.json.

    One process resumes the run and evaluates it, while the store refuses some requests; modules.json lists what it has loaded.
    All processes read the token cache by ranges, of which they keep a block.
    """
    home, folder = f"{bucket}/made", tmp_path_factory.mktemp("modules")
    text = trained.folder / "text"
    assert cli.main(["vocab", f"--input={text / 'train.txt'}", "--size=300", f"--output={home}/vocab"]) == 0
    inputs = [f"--input={text / 'train.txt'}", f"--validation_input={text / 'held-out.txt'}"]
    assert cli.main(["cache", *inputs, f"--vocab={home}/vocab", f"--output={home}/cache", "--processes=0"]) == 0
    command = ["pretrain", f"--gin_file={trained.folder / 'run.gin'}", f"--cache_dir={home}/cache", f"--model_dir={home}/model"]
    killed = bertfam(*command, DIE="12:SIGKILL:10", ABSENT="tensorflow")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert newest(f"{home}/model") == 10
    evaluate = ["evaluate", f"--model_dir={home}/model", "--json"]
    with fake_bucket.faults(503, share=0.12):
        done = bertfam(*command, "THEN", *evaluate, MODULES=folder / "modules.json")
    assert done.returncode == 0, done.stderr
    assert "is read by ranges" in killed.stderr and "is read by ranges" in done.stderr
    output, _, scores = done.stdout.partition(f"finished: {home}/model\n")
    assert "resumed from step 10" in output.splitlines()
    (folder / "scores.json").write_text(scores)
    return home, folder


def test_killed_and_resumed_run_has_the_losses_of_one_on_a_disk(in_bucket, trained):
    home, _ = in_bucket
    assert metrics(paths.to_path(home) / "model") == metrics(trained.model_dir)


def test_token_cache_has_the_bytes_of_one_on_a_disk(in_bucket, trained):
    home, _ = in_bucket
    there, here = paths.local(paths.to_path(home) / "cache"), trained.model_dir / "cache"
    names = sorted(path.relative_to(here) for path in here.rglob("*.bin"))
    assert len(names) == 8 and all((there / name).read_bytes() == (here / name).read_bytes() for name in names)


def test_tensorflow_is_not_imported_where_it_is_installed(in_bucket):
    _, folder = in_bucket
    modules = set(json.loads((folder / "modules.json").read_text()))
    assert "gcsfs" in modules and not modules & {"tensorflow", "seqio"}


def test_scores_of_evaluate_equal_those_of_the_run(in_bucket):
    home, folder = in_bucket
    scores = json.loads((folder / "scores.json").read_text())
    (last,) = [line for line in metrics(paths.to_path(home) / "model") if line["split"] == "eval" and line["step"] == 24]
    assert scores["mlm_loss"] == pytest.approx(last["mlm_loss"], rel=1e-6)


def test_run_export_import_and_weights_fill_alike(in_bucket, capsys):
    home, _ = in_bucket
    assert cli.main(["export", f"--model_dir={home}/model", f"--output={home}/export"]) == 0
    assert cli.main(["import", f"--input={home}/export", f"--output={home}/imported"]) == 0
    assert cli.main(["checkpoints", f"--model_dir={home}/model", "--step=24", f"--copy_weights={home}/weights"]) == 0
    capsys.readouterr()
    outputs = set()
    for name in ("model", "export", "imported", "weights"):
        assert cli.main(["fill", f"--model_dir={home}/{name}", "The [MASK] statement.", "--json"]) == 0
        outputs.add(capsys.readouterr().out)
    assert len(outputs) == 1


def test_flipped_byte_of_a_checkpoint_is_found(in_bucket, capsys):
    home, _ = in_bucket
    folder = paths.to_path(home) / "model" / "checkpoints" / "15"
    path = next(path for path in folder.rglob("*") if path.is_file() and path.parent.name == "d")
    content = path.read_bytes()
    files.write_bytes(path, content[:-1] + bytes([content[-1] ^ 1]))
    assert cli.main(["checkpoints", f"--model_dir={home}/model", "--verify", "--json"]) == 1
    states = {row["step"]: row["state"] for row in json.loads(capsys.readouterr().out)}
    files.write_bytes(path, content)
    assert states == {5: "complete", 10: "complete", 15: "damaged", 20: "complete", 24: "complete"}


def test_existing_output_and_missing_folder_are_refused(in_bucket, capsys):
    home, _ = in_bucket
    assert cli.main(["export", f"--model_dir={home}/model", f"--output={home}/vocab"]) == 2
    assert cli.main(["fill", f"--model_dir={home}/nothing", "[MASK]"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert errors[0].startswith(f"bertfam: error: {home}/vocab exists already: name another folder")
    assert errors[1].startswith(f"bertfam: error: {home}/nothing is neither a model folder")
