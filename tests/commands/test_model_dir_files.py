"""Files of MODEL_DIR that are missing or were edited by hand: refused in one line, with nothing written."""

import json
import os
import re

import pytest
from command_line import in_process, listing
from model_folders import copy_run

from bertfam.config import load
from bertfam.errors import UserError
from bertfam.interop.folders import check_is_model, check_is_run
from bertfam.training.logs import metrics_file
from bertfam.training.logs.metrics import MetricsWriter
from bertfam.training.model_dir import check_folder, prepare_folder, read_run

RECORD = "files.json"


@pytest.fixture
def model_dir(trained, tmp_path):
    """Copy of the finished run."""
    return copy_run(trained.model_dir, tmp_path / "model")


def refused(model_dir, *words):
    before = listing(model_dir)
    done = in_process(*words, f"--model_dir={model_dir}")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert listing(model_dir) == before
    return done.stderr


def edit(model_dir, *pairs):
    path = model_dir / "config.gin"
    text = path.read_text()
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    return path


@pytest.mark.parametrize("command", [["pretrain"], ["check"], ["evaluate"], ["checkpoints", "--copy_weights={copy}"]])
def test_edited_value_is_refused_with_the_flag_that_sets_it(model_dir, tmp_path, command):
    path = edit(model_dir, ("LinearDecay.peak = 0.01", "LinearDecay.peak = 0.5"))
    line = path.read_text().split("\n").index("LinearDecay.peak = 0.5") + 1
    error = refused(model_dir, *(word.format(copy=tmp_path / "copy") for word in command))
    assert f"{path}:{line}: LinearDecay.peak was 0.01" in error and "--gin.LinearDecay.peak=0.5" in error


def test_line_ends_and_a_folder_around_are_named(model_dir, tmp_path):
    path = model_dir / "fingerprint.json"
    for check in (check_is_model, check_is_run, check_folder):
        with pytest.raises(UserError, match=f"name the model folder in it: {re.escape(str(model_dir))}"):
            check(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert f"{path} is not as this run has written it; only its line ends differ" in refused(model_dir, "pretrain")


@pytest.mark.parametrize("name", ["metrics.jsonl", "metrics.damaged.jsonl"])
def test_metrics_are_not_written_through_a_link(tmp_path, name):
    model_dir, private = tmp_path / "model", tmp_path / "private.txt"
    model_dir.mkdir()
    (model_dir / "metrics.jsonl").write_text("damaged\n")
    (model_dir / name).unlink(missing_ok=True)
    (model_dir / name).symlink_to(private)
    with pytest.raises(UserError, match=f"{name} is a link"):
        MetricsWriter(model_dir, 0)
    assert not private.exists()


def test_all_edited_values_are_named(model_dir):
    edit(model_dir, ("LinearDecay.peak = 0.01", "LinearDecay.peak = 0.5"), ("TRAIN_STEPS = 12", "TRAIN_STEPS = 13"))
    assert {"--gin.LinearDecay.peak=0.5", "--gin.TRAIN_STEPS=13"} <= set(refused(model_dir, "check").split())
    text = (model_dir / "config.gin").read_text()
    for number in range(4):
        text += f"\nNEW_{number} = {number}\n"
    (model_dir / "config.gin").write_text(text)
    assert "--gin_file" in refused(model_dir, "check")


def test_removed_value_is_named(model_dir):
    edit(model_dir, ("LinearDecay.warmup_steps = 5\n", ""))
    assert "LinearDecay.warmup_steps, which was 5" in refused(model_dir, "check")


def test_gin_file_does_not_hide_an_edit(trained, model_dir):
    edit(model_dir, ("LinearDecay.peak = 0.01", "LinearDecay.peak = 0.5"))
    assert "--gin.LinearDecay.peak=0.5" in refused(model_dir, *trained.pretrain(model_dir)[:-1])


def test_bytes_that_are_no_text_are_refused(model_dir):
    path = model_dir / "config.gin"
    path.write_bytes(path.read_bytes().replace(b"LinearDecay.peak", b"LinearDecay.pea\xff"))
    assert re.search(rf"{path}:\d+ is not UTF-8", refused(model_dir, "check"))


@pytest.mark.parametrize("command", ["pretrain", "check", "evaluate", "fill x"])
@pytest.mark.parametrize("recorded", [True, False])
def test_missing_fingerprint_is_refused(model_dir, command, recorded):
    (model_dir / "fingerprint.json").unlink()
    if not recorded:
        (model_dir / RECORD).unlink()
    assert f"{model_dir / 'fingerprint.json'}, " in refused(model_dir, *command.split())


def test_changed_fingerprint_is_refused(model_dir):
    path = model_dir / "fingerprint.json"
    path.write_text(path.read_text().replace('"train.txt"', '"other.txt"'))
    assert f"{path} is not as" in refused(model_dir, "evaluate")


def test_edit_without_effect_is_allowed(model_dir):
    edit(model_dir, ("LinearDecay.peak = 0.01", "# A comment.\nLinearDecay.peak = 1e-2"))
    assert in_process("check", f"--model_dir={model_dir}").returncode == 0


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"format": 2}', '{"format": 1, "config": "", "vocabulary": "", "files": 3}']
)
def test_damaged_record_is_refused(model_dir, content):
    (model_dir / RECORD).write_text(content)
    assert f"{model_dir / RECORD}, " in refused(model_dir, "check")


def test_folder_without_a_record_is_used_and_gets_one(model_dir):
    recorded = json.loads((model_dir / RECORD).read_text())
    (model_dir / RECORD).unlink()
    path = edit(model_dir, ("TRAIN_STEPS = 12", "TRAIN_STEPS = 12  # as before"))
    assert in_process("check", f"--model_dir={model_dir}").returncode == 0
    prepare_folder(model_dir, load([str(path)]), {}, json.loads((model_dir / "fingerprint.json").read_text()), None)
    assert json.loads((model_dir / RECORD).read_text()).keys() == recorded.keys()
    edit(model_dir, ("TRAIN_STEPS = 12", "TRAIN_STEPS = 13"))
    assert "--gin.TRAIN_STEPS=13" in refused(model_dir, "check")


def test_copy_of_the_weights_has_a_record(model_dir, tmp_path):
    assert in_process("checkpoints", f"--model_dir={model_dir}", f"--copy_weights={tmp_path / 'copy'}").returncode == 0
    edit(tmp_path / "copy", ("TRAIN_STEPS = 12", "TRAIN_STEPS = 13"))
    assert "--gin.TRAIN_STEPS=13" in refused(tmp_path / "copy", "fill", "a [MASK]")


@pytest.mark.parametrize("name", ["checkpoints", "checkpoints/5", "config.gin"])
def test_part_of_a_model_folder_is_answered_with_the_folder(tmp_path, name):
    (tmp_path / "model/checkpoints/5").mkdir(parents=True)
    (tmp_path / "model/config.gin").touch()
    with pytest.raises(UserError, match=f"it is in the model folder {tmp_path / 'model'}: name that"):
        read_run(tmp_path / "model" / name)


def test_pipe_in_place_of_the_metrics_is_refused(tmp_path):
    os.mkfifo(tmp_path / "metrics.jsonl")
    with pytest.raises(UserError, match="metrics.jsonl is not a regular file; move it away"):
        list(metrics_file.read(tmp_path / "metrics.jsonl"))


def test_folder_in_place_of_a_file_of_the_run_is_refused_before_any_is_written(model_dir):
    (model_dir / "plan.json").unlink()
    (model_dir / "plan.json").mkdir()
    before = listing(model_dir)
    config, fingerprint = load([str(model_dir / "config.gin")]), json.loads((model_dir / "fingerprint.json").read_text())
    with pytest.raises(UserError, match="plan.json is a folder, in place of a file that a run writes: move it away"):
        prepare_folder(model_dir, config, {}, fingerprint, None)
    assert listing(model_dir) == before


def test_folder_in_place_of_the_damaged_metrics_is_refused(tmp_path):
    (tmp_path / "metrics.damaged.jsonl").mkdir()
    (tmp_path / "metrics.jsonl").write_text("damaged\n")
    with pytest.raises(UserError, match="metrics.damaged.jsonl is not a regular file; move it away"):
        MetricsWriter(tmp_path, 0)
