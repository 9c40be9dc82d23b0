"""`bertfam checkpoints`, what stays of a run's checkpoints, and folders that are moved."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from command_line import in_process, listing
from initial_state import initial_state
from model_folders import copy_run, cut

from bertfam import api, cli
from bertfam.training.checkpoints import has_training_state, newest, selection


@pytest.fixture
def model_dir(trained, tmp_path):
    """A copy of the run that may be spoilt."""
    return cut(trained.model_dir, tmp_path / "model", 24)


def run(capsys, *words):
    """Exit status and what was printed."""
    status = cli.main(["checkpoints", *map(str, words)])
    return status, capsys.readouterr().out


def test_the_table(trained, capsys):
    before = listing(trained.model_dir)
    status, out = run(capsys, f"--model_dir={trained.model_dir}")
    titles, *lines = out.splitlines()
    assert status == 0 and titles.split() == ["step", "written", "size", "parts", "held", "out", "state"]
    assert [line.split()[0] for line in lines] == ["5", "10", "15", "20", "24"]
    assert all(line.endswith("  complete") for line in lines)
    assert "encoder, mlm_head, nsp_head, pooler, training state" in lines[0]
    metrics = [json.loads(line) for line in (trained.model_dir / "metrics.jsonl").read_text().splitlines()]
    scores = [line for line in metrics if line["split"] == "eval"][-1]
    assert f"mlm_loss {scores['mlm_loss']:.4g}" in lines[-1] and "loss" not in lines[0]  # it was measured at 12 and 24
    assert listing(trained.model_dir) == before


def test_json_and_damaged_checkpoints(model_dir, capsys):
    directory = model_dir / "checkpoints"
    (directory / "5" / "rest" / "_METADATA").unlink()
    (directory / "10").rename(directory / "10.damaged")
    (directory / "15").rename(directory / "15.orbax-checkpoint-tmp")
    flipped = max((directory / "20" / "params").glob("**/d/*"), key=lambda path: path.stat().st_size)
    content = bytearray(flipped.read_bytes())
    content[9] ^= 4
    flipped.write_bytes(content)
    status, out = run(capsys, f"--model_dir={model_dir}", "--json")
    rows = {row["step"]: row for row in json.loads(out)}
    assert status == 1
    assert {step: row["state"] for step, row in rows.items()} == {
        5: "damaged", 10: "set aside", 15: "incomplete", 20: "complete", 24: "complete",
    }  # fmt: skip
    assert rows[5]["fault"] == "rest/_METADATA is missing"
    assert rows[24]["size"] == sum(path.stat().st_size for path in (directory / "24").rglob("*") if path.is_file())
    assert rows[24]["parts"] == ["encoder", "mlm_head", "nsp_head", "pooler", "training state"]
    assert rows[24]["metrics"]["train"]["learning_rate"] == 0 and set(rows[24]["metrics"]) == {"train", "eval"}
    status, out = run(capsys, f"--model_dir={model_dir}", "--verify")
    lines = out.splitlines()
    assert status == 1 and lines[4].endswith(
        f"damaged: {flipped.relative_to(directory / '20')} has other bytes than were written"
    )
    shutil.rmtree(directory / "5")
    assert run(capsys, f"--model_dir={model_dir}", "--verify")[0] == 1
    shutil.rmtree(directory / "20")
    assert run(capsys, f"--model_dir={model_dir}", "--verify")[0] == 0


def test_mistakes(trained, tmp_path, capsys):
    assert cli.main(["checkpoints", f"--model_dir={tmp_path / 'none'}"]) == 2
    assert capsys.readouterr().err.startswith(f"bertfam: error: {tmp_path}/none has no checkpoints; there is no folder")
    assert cli.main(["checkpoints", f"--model_dir={trained.model_dir}", "--step=5"]) == 2
    assert capsys.readouterr().err.startswith("bertfam: error: --step says which checkpoint --copy_weights copies")
    assert cli.main(["checkpoints", f"--model_dir={trained.model_dir}", f"--copy_weights={tmp_path / 'x'}", "--step=6"]) == 2
    assert capsys.readouterr().err == (
        f"bertfam: error: {trained.model_dir}/checkpoints has no step 6; it has 5, 10, 15, 20, 24\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_weights_alone(trained, tmp_path, capsys):
    """Without the optimizer's two copies of them."""
    target = tmp_path / "weights"
    status, out = run(capsys, f"--model_dir={trained.model_dir}", f"--copy_weights={target}", "--step=15")
    assert (status, out) == (
        0, f"copied the weights of step 15 of {trained.model_dir} to {target}, a model at its step 0\n",
    )  # fmt: skip
    assert newest(target) == 0 and not has_training_state(target, 0)
    old, new = (selection.folder(folder) for folder in (trained.model_dir, target))
    sizes = [sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) for folder in (old / "15", new / "0")]
    assert sizes[1] < sizes[0] * 0.5
    assert cli.main(["fill", f"--model_dir={target}", "A [MASK]."]) == 0
    table = [api.load(folder, step=step).params["encoder"] for folder, step in ((trained.model_dir, 15), (target, None))]
    assert all(np.array_equal(*pair) for pair in zip(*(map(np.asarray, _leaves(tree)) for tree in table), strict=True))


def test_only_what_a_run_writes_is_copied(trained, tmp_path, capsys):
    """A stranger's folder may hold links to private files, and pipes, which would be waited for."""
    model_dir = copy_run(trained.model_dir, tmp_path / "model")
    (tmp_path / "private.txt").write_text("a private key")
    (model_dir / "vocab/added.txt").symlink_to(tmp_path / "private.txt")
    os.mkfifo(model_dir / "vocab/pipe")
    copies = [tmp_path / "clean", tmp_path / "copy"]
    for source, copy in zip((trained.model_dir, model_dir), copies, strict=True):
        assert run(capsys, f"--model_dir={source}", f"--copy_weights={copy}")[0] == 0
    files = [{path.relative_to(copy): path.read_bytes() for path in copy.rglob("*") if path.is_file()} for copy in copies]
    for found in files:
        del found[Path("checkpoints/0/digests.json")]  # has the time
    assert files[0] == files[1]
    (model_dir / "checkpoints/24/params/added.txt").symlink_to(tmp_path / "private.txt")
    assert cli.main(["checkpoints", f"--model_dir={model_dir}", f"--copy_weights={tmp_path / 'older'}"]) == 0
    assert "24 is not used (params/added.txt is a link out of its folder); step 20 is" in capsys.readouterr().err
    (model_dir / "files.json").unlink()
    (model_dir / "config.gin").unlink()
    (model_dir / "config.gin").symlink_to(tmp_path / "private.txt")
    assert cli.main(["checkpoints", f"--model_dir={model_dir}", f"--copy_weights={tmp_path / 'other'}"]) == 2
    assert "config.gin is a link out of its folder" in capsys.readouterr().err and not (tmp_path / "other").exists()


def test_weights_are_copied_with_their_own_configuration_and_vocabulary_alone(trained, tmp_path, capsys):
    def refused(change):
        model_dir = copy_run(trained.model_dir, tmp_path / change.__name__)
        (model_dir / "files.json").unlink()
        change(model_dir)
        assert cli.main(["checkpoints", f"--model_dir={model_dir}", f"--copy_weights={tmp_path / 'copy'}"]) == 2
        assert not (tmp_path / "copy").exists()
        return capsys.readouterr().err

    def other_size(model_dir):
        config = model_dir / "config.gin"
        config.write_text(config.read_text().replace("feed_forward_size = 32", "feed_forward_size = 64"))

    def other_vocabulary(model_dir):
        shutil.rmtree(model_dir / "vocab")
        shutil.copytree(trained.folder / "other-vocab", model_dir / "vocab")

    error = refused(other_size)
    assert "config.gin is not that of" in error and "(2, 32)" in error and "(2, 64)" in error
    assert "other_vocabulary/vocab is not the vocabulary that the model was trained with" in refused(other_vocabulary)


def _leaves(tree):
    import jax

    return jax.tree.leaves(tree)


@pytest.mark.parametrize("words", ["checkpoints --copy_weights=", "export --output="])
def test_weights_onto_a_full_disk(trained, small_disk, capsys, words):
    disk = small_disk(1)
    filling = disk / "filling"
    filling.write_bytes(bytes(shutil.disk_usage(disk).free - 50_000))
    command, flag = words.split()
    assert cli.main([command, f"--model_dir={trained.model_dir}", f"{flag}{disk}/copy"]) == 2
    assert capsys.readouterr().err == (
        f"bertfam: error: {disk}/copy cannot be written (No space left on device); free some space, or name another\n"
    )
    assert list(disk.iterdir()) == [filling]


def test_a_metric_that_nothing_measures(trained, tmp_path, capsys):
    assert cli.main(trained.pretrain(tmp_path / "model", '--gin.Run.keep_best="mlm_los"')) == 2
    error = capsys.readouterr().err
    assert (
        error == "bertfam: error: Run.keep_best is 'mlm_los', which is not a metric of the evaluation; did you mean mlm_loss?\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_moved_folder_resumes_and_keeps_the_chosen_checkpoints(trained, tmp_path, monkeypatch):
    """Its cache moves with it, though it was named by a flag.

    The newest checkpoint is kept, those of every 10 steps, and the best; metrics from before the run was cut off count.
    """
    here = cut(trained.model_dir, tmp_path / "here", 15)
    lines = (here / "metrics.jsonl").read_text().splitlines()
    best = {"step": 5, "split": "eval", "loss": 0.1, "mlm_accuracy": 0.0}
    (here / "metrics.jsonl").write_text("\n".join([json.dumps(best), *lines]) + "\n")
    flags = ["--gin.Run.keep_checkpoints=1", "--gin.Run.keep_every=10", '--gin.Run.keep_best="loss"']
    initial_state(*trained.pretrain(here, f"--cache_dir={here / 'cache'}", *flags))
    (tmp_path / "far").mkdir()
    there = here.rename(tmp_path / "far" / "there")
    monkeypatch.chdir(tmp_path / "far")
    done = in_process("pretrain", "--model_dir=there")
    assert done.returncode == 0, done.stderr
    assert "resumed from step 15" in done.stdout.splitlines()
    assert selection.complete(there / "checkpoints") == [5, 10, 20, 24]
    left = [path for path in there.rglob("*") if path.is_file() and str(tmp_path / "here").encode() in path.read_bytes()]
    # Orbax's file, which nothing reads, and the record of the command that started the run.
    assert {path.name for path in left} <= {"commit_success.txt", "starts.jsonl"}
