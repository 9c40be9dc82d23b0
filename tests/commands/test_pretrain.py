"""`bertfam pretrain` on real files: what it leaves behind, and that nothing is lost when it is killed."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from command_line import in_process, listing
from initial_state import Stopped, initial_state
from model_folders import arrays, assert_equal_arrays, copy_run, cut, metrics
from same_weights import assert_same_weights

from bertfam import api
from bertfam.config import load
from bertfam.data import vocabularies
from bertfam.sharding.mesh import AXES
from bertfam.training import loop
from bertfam.training.checkpoints import newest


def test_the_folder_holds_all_that_resuming_requires(trained):
    found = sorted(path.name for path in trained.model_dir.iterdir() if not path.name.startswith("events."))
    assert found == [
        "cache",
        "checkpoints",
        "config.gin",
        "files.json",
        "fingerprint.json",
        "metrics.jsonl",
        "plan.json",
        "starts.jsonl",
        "vocab",
    ]
    assert len(list(trained.model_dir.glob("events.out.tfevents.*"))) == 1
    assert sorted(int(path.name) for path in (trained.model_dir / "checkpoints").iterdir()) == [5, 10, 15, 20, 24]
    run = load([str(trained.model_dir / "config.gin")]).build("Run")
    assert (run.total_steps, run.seed, [stage.length for stage in run.stages]) == (24, 3, [16, 24])
    found = {vocabularies.load(path / "vocab").fingerprint for path in (trained.model_dir, trained.model_dir / "cache")}
    assert found == {vocabularies.load(trained.folder / "vocab").fingerprint}
    plan = json.loads((trained.model_dir / "plan.json").read_text())
    assert plan["steps"] == 24 and plan["mesh"] == dict.fromkeys(AXES, 1)
    assert [stage["tokens_per_step"] for stage in plan["stages"]] == [8 * 16, 8 * 24]
    fingerprint = json.loads((trained.model_dir / "fingerprint.json").read_text())
    assert fingerprint["corpora"]["text"]["train"][0]["name"] == "train.txt"
    leaves = arrays(trained.model_dir, 24)
    assert plan["parameters"] == sum(leaf.size for name, leaf in leaves.items() if name.startswith("['params']"))


def test_output(trained):
    out = trained.stdout.splitlines()
    assert out[0].startswith("parameters   ") and out[-1] == f"finished: {trained.model_dir}"
    assert [line.partition(" in ")[0] for line in out if line.startswith("compiled")] == ["compiled stage 1", "compiled stage 2"]
    steps = [line.split()[1] for line in out if line.startswith("step ")]
    assert steps == ["4/24", "5/24", "8/24", "10/24", "12/24", "12", "15/24", "16/24", "20/24", "24/24", "24"]
    errors = trained.stderr.splitlines()
    assert [line.partition(":")[0] for line in errors if "warning" not in line] == ["tokenising train", "tokenising validation"]


def test_metrics(trained):
    lines = metrics(trained.model_dir)
    assert [(line["step"], line["split"]) for line in lines] == [
        *((step, "train") for step in (4, 5, 8, 10, 12)),
        (12, "eval"),
        *((step, "train") for step in (15, 16, 20, 24)),
        (24, "eval"),
    ]
    training = [line for line in lines if line["split"] == "train"]
    for line in training:
        assert set(line) - {"step", "split"} == {
            "loss", "mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy", "gradient_norm", "learning_rate",
            "tokens_seen", "epoch",
        }  # fmt: skip
    assert {line["step"]: line["tokens_seen"] for line in training} == {
        step: 8 * (16 * min(step, 12) + 24 * max(step - 12, 0)) for step in (4, 5, 8, 10, 12, 15, 16, 20, 24)
    }
    # The rate of the update that led to the step: warm-up 5, then down to 0 at step 24.
    rates = {line["step"]: line["learning_rate"] for line in training}
    assert rates == pytest.approx(
        {4: 8e-3, 5: 1e-2} | {step: 1e-2 * (24 - step) / 19 for step in (8, 10, 12, 15, 16, 20, 24)}, rel=1e-5, abs=1e-9
    )
    assert abs(training[0]["mlm_loss"] - np.log(300)) < 0.2  # a new model knows nothing
    assert training[-1]["mlm_loss"] < training[0]["mlm_loss"] - 0.1
    for line in lines:
        if line["split"] == "eval":
            assert line["loss"] == pytest.approx(line["mlm_loss"] + line["nsp_loss"], rel=1e-6)
            assert set(line) == {"step", "split", "loss", "mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy"}


def test_neither_tensorflow_nor_seqio_nor_torch_was_imported(trained):
    assert {"jax", "tensorboardX", "bertfam.training.trainer"} <= trained.modules
    assert not {"tensorflow", "seqio", "torch", "tensorflow_datasets"} & trained.modules


def test_a_resumed_run_equals_an_unbroken_one(trained, tmp_path):
    """Its metrics go beyond the checkpoint, as those of a killed run do (tests/crashes kills runs); its process is another."""
    model_dir = cut(trained.model_dir, tmp_path / "model", 10)
    done = in_process(*trained.pretrain(model_dir))
    assert done.returncode == 0, done.stderr
    assert "resumed from step 10" in done.stdout.splitlines() and newest(model_dir) == 24
    assert_equal_arrays(arrays(model_dir, 24), arrays(trained.model_dir, 24))
    assert metrics(model_dir) == metrics(trained.model_dir)  # without gaps or repeats


def test_a_folder_is_named_by_a_path_with_dots(trained, tmp_path, monkeypatch, capsys):
    """TensorStore refuses such paths."""
    from bertfam import cli

    (tmp_path / "here").mkdir()
    (tmp_path / "link").symlink_to(trained.model_dir)
    monkeypatch.chdir(tmp_path / "here")
    assert cli.main(["fill", "--model_dir=../link", "He [MASK] her."]) == 0
    assert cli.main(["pretrain", "--model_dir=../link"]) == 0
    assert "finished already: ../link is at step 24 of 24" in capsys.readouterr().out


def test_a_finished_run_is_left_unchanged(trained, capsys):
    from bertfam import cli

    before = listing(trained.model_dir)
    assert cli.main(trained.pretrain(trained.model_dir)) == 0
    assert capsys.readouterr().out == f"finished already: {trained.model_dir} is at step 24 of 24\n"
    assert cli.main(["pretrain", f"--model_dir={trained.model_dir}"]) == 0  # the folder alone is enough
    assert capsys.readouterr().out == f"finished already: {trained.model_dir} is at step 24 of 24\n"
    assert listing(trained.model_dir) == before


def test_text_that_is_largely_unknown_to_the_vocabulary_is_reported(trained, monkeypatch, capsys):
    from bertfam import cli
    from bertfam.data.checks import diagnosis

    monkeypatch.setattr(diagnosis, "MUCH_UNKNOWN", -1)
    assert cli.main(["pretrain", f"--model_dir={trained.model_dir}"]) == 0
    assert "are unknown to the vocabulary" in capsys.readouterr().err


def test_a_finished_run_that_was_killed_as_it_deleted_a_checkpoint(trained, tmp_path, capsys):
    from bertfam import cli

    model_dir = cut(trained.model_dir, tmp_path / "model", 24)
    before = listing(model_dir / "checkpoints" / "24")
    (model_dir / "checkpoints" / "5").rename(model_dir / "checkpoints" / "5.deleted")
    assert cli.main(["pretrain", f"--model_dir={model_dir}"]) == 0
    assert capsys.readouterr().out.startswith("finished already: ")
    assert sorted(path.name for path in (model_dir / "checkpoints").iterdir()) == ["10", "15", "20", "24"]
    assert listing(model_dir / "checkpoints" / "24") == before


@pytest.fixture
def copy(trained, tmp_path):
    """Return a copy that a test may change."""
    copy_run(trained.model_dir, tmp_path / "model")
    return tmp_path / "model"


def refusal(trained, capsys, flag):
    """Return the one line with which resuming with one more flag is refused; nothing is written."""
    from bertfam import cli

    before = listing(trained.model_dir)
    assert cli.main(trained.pretrain(trained.model_dir, flag)) == 2
    output = capsys.readouterr()
    assert output.out == "" and len(output.err.splitlines()) == 1
    assert listing(trained.model_dir) == before
    return output.err


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--gin.BertConfig.num_layers=3", "Run.objective.model.num_layers was 2 when this run started and is 3 now"),
        ("--gin.BertConfig.dropout_rate=0.2", "Run.objective.model.dropout_rate was 0.1 when this run started and is 0.2 now"),
        ("--gin.SEED=4", "Run.seed was 3 when this run started and is 4 now"),
        ("--gin.LinearDecay.peak=1e-3", "Run.optimizer.schedule.peak was 0.01 when this run started and is 0.001 now"),
        ("--gin.MlmNsp.nsp=0.5", "Run.objective.nsp was 1.0 when this run started and is 0.5 now"),
        ("--gin.BertMasking.rate=0.2", "Run.data.corruption.rate was 0.15 when this run started and is 0.2 now"),
    ],
)
def test_resuming_with_other_settings_is_refused(trained, capsys, flag, message):
    error = refusal(trained, capsys, flag)
    assert error.startswith(f"bertfam: error: {message}; change it back, or use another --model_dir")
    # The weights of the folder are of a model with the old value.
    assert (f", where --init_from={trained.model_dir} starts" in error) == ("BertConfig" not in flag)


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--gin.BATCH_SIZE=16", "Run.stages[0].batch_size was 8 when this run started and is 16 now"),
        ("--gin.long/Stage.length=20", "Run.stages[1].length was 24 when this run started and is 20 now"),
        ("--gin.Run.stages=(@long/Stage(),)", "Run.stages[0].length was 16 when this run started and is 24 now"),
    ],
)
def test_updates_that_are_done_keep_their_batches(trained, capsys, flag, message):
    error = refusal(trained, capsys, flag)
    assert error.startswith(f"bertfam: error: {message}")
    assert f"--init_from={trained.model_dir} --init_optimizer" in error


def test_another_vocabulary_or_text_is_refused(trained, copy, capsys):
    from bertfam import cli

    before = listing(copy)
    words = ["pretrain", f"--model_dir={copy}"]
    other = trained.folder / "other-vocab"
    assert cli.main([*words, f"--vocab={other}"]) == 2
    ending = f"is not the vocabulary that {copy} started with; leave it out, or use another --model_dir\n"
    assert capsys.readouterr().err == f"bertfam: error: {other} {ending}"

    other_held_out = copy.parent / "other-held-out.txt"
    other_held_out.write_text("He opened the door.\nIt was dark.\n")
    for flag, name in ((f"--validation_input={other_held_out}", "validation"), ("--input_format=lines", "input_format")):
        assert cli.main([*words, flag]) == 2
        error = capsys.readouterr().err
        assert f"(corpora.text.{name}" in error and "; a run keeps its text" in error

    text, cache = trained.folder / "text/held-out.txt", copy.parent / "cache"
    for vocabulary in ("vocab", "other-vocab"):
        shutil.rmtree(cache, ignore_errors=True)
        assert cli.main(["cache", f"--input={text}", f"--vocab={trained.folder / vocabulary}", f"--output={cache}"]) == 0
        capsys.readouterr()
        assert cli.main([*words, f"--cache_dir={cache}"]) == 2
        error = capsys.readouterr().err
        if vocabulary == "vocab":
            assert error.startswith(f"bertfam: error: {cache} is not the text that {copy} started with (corpora.text.train")
            assert error.endswith("; a run keeps its text: leave the flag out, or use another --model_dir\n")
        else:
            assert error == f"bertfam: error: {cache / 'vocab'} {ending}"
    assert listing(copy) == before

    # A cache that is gone is not built anew from other text.
    shutil.rmtree(copy / "cache")
    before = listing(copy)
    other_text = copy.parent / "other.txt"
    other_text.write_text("a cat\nsat\n\na dog\nsat\n")
    assert cli.main([*words, f"--input={other_text}", f"--vocab={trained.folder / 'vocab'}"]) == 2
    assert capsys.readouterr().err.startswith(
        f"bertfam: error: what is given is not the text that {copy} started with (corpora.text.train"
    )
    assert listing(copy) == before


def test_a_lengthened_run_resumes_with_the_schedule_of_its_new_length(trained, copy):
    """Where and how it is computed may change too."""
    done = in_process(*trained.pretrain(copy, "--gin.TRAIN_STEPS=14", "--gin.Run.log_every=1", "--gin.Run.eval_every=0"))
    assert done.returncode == 0, done.stderr
    assert "resumed from step 24" in done.stdout.splitlines()
    lines = metrics(copy)
    assert lines[:-2] == metrics(trained.model_dir)
    assert [(line["step"], line["learning_rate"]) for line in lines[-2:]] == [(25, pytest.approx(1e-2 / 21)), (26, 0.0)]
    # The last update had rate 0, so it changed nothing.
    last, before = arrays(copy, 26), arrays(copy, 24)
    moved = [name for name in last if name.startswith("['params']") and not np.array_equal(last[name], before[name])]
    assert len(moved) > 20 and newest(copy) == 26


def test_a_run_starts_from_an_imported_model(trained, tmp_path):
    from bertfam import cli

    assert cli.main(["export", f"--model_dir={trained.model_dir}", f"--output={tmp_path / 'theirs'}"]) == 0
    assert cli.main(["import", f"--input={tmp_path / 'theirs'}", f"--output={tmp_path / 'model'}"]) == 0
    flags = [f"--cache_dir={trained.model_dir / 'cache'}", "--gin.TRAIN_STEPS=1", "--gin.BATCH_SIZE=8", "--gin.Stage.length=16"]
    out, state = initial_state("pretrain", f"--model_dir={tmp_path / 'model'}", *flags, initialise=False)
    assert f"started from the model in {tmp_path / 'model'}" in out.splitlines() and state.step == 0
    assert newest(tmp_path / "model") == 0
    model = api.load(trained.model_dir)
    assert_same_weights(dataclasses.replace(model, params=state.params), model)


def test_the_folder_works_from_anywhere_and_states_every_default(trained, tmp_path, monkeypatch, capsys):
    from bertfam import cli

    shutil.copytree(trained.model_dir / "cache", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)

    def stop(*_, **__):
        raise Stopped

    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(loop, "train", stop)
        cli.main(trained.pretrain("model", "--cache_dir=cache"))
    # What its training would leave is there already.
    shutil.copytree(trained.model_dir / "checkpoints/24", tmp_path / "model/checkpoints/24")
    shutil.copy(trained.model_dir / "metrics.jsonl", tmp_path / "model")
    warnings = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    warned = [line.replace(f"{trained.model_dir}/cache", "cache") for line in trained.stderr.splitlines()]
    assert warnings and warnings == [line for line in warned if "warning" in line]
    lines = (tmp_path / "model" / "config.gin").read_text().splitlines()
    assert f"TextData.cache_dir = '{tmp_path / 'cache'}'" in lines
    assert {"AdamW.b2 = 0.999", "BertMasking.rate = 0.15", "SentencePairs.short_sequence_rate = 0.1"} <= set(lines)

    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert cli.main(["evaluate", f"--model_dir={tmp_path / 'model'}", "--batches=1"]) == 0
    assert cli.main(["pretrain", f"--model_dir={tmp_path / 'model'}"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("finished already: ")


def test_a_killed_child_process_is_reported(trained, tmp_path, monkeypatch, capsys):
    from bertfam import cli

    monkeypatch.setattr("subprocess.run", lambda *_, **__: type("Done", (), {"returncode": -9}))
    assert cli.main(trained.pretrain(tmp_path / "model")) == 2
    message = "building the token cache was killed by signal 9, perhaps because memory ran out"
    assert capsys.readouterr().err == f"bertfam: error: {message}\n"
    assert not (tmp_path / "model").exists()
