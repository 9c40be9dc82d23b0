"""`bertfam pretrain` with other optimizers, and on text without targets."""

import json

import jax
import numpy as np
import pytest
from command_line import in_process, listing
from initial_state import skip_initialisation

from bertfam import cli
from bertfam.training.checkpoints import newest
from bertfam.training.model_dir import open_model


@pytest.fixture(autouse=True)
def _no_initialisation(monkeypatch):
    skip_initialisation(monkeypatch)


@pytest.fixture(scope="module")
def words(trained):
    """Of a run on the shared cache: four steps that are saved every second."""

    def make(model_dir, *more):
        settings = (
            "TRAIN_STEPS=4",
            "CHECKPOINT_EVERY=2",
            "EVAL_EVERY=0",
            "Run.stages=(@short/Stage(),)",
            "short/Stage.steps=4",
            "Execution.layers='unroll'",
        )
        flags = [f"--gin.{setting}" for setting in settings]
        return trained.pretrain(model_dir, f"--cache_dir={trained.model_dir / 'cache'}", *flags, *more)

    return make


def lines(model_dir):
    return [json.loads(line) for line in (model_dir / "metrics.jsonl").read_text().splitlines()]


def test_another_optimizer_an_average_and_inspections(words, trained, tmp_path, capsys):
    chosen = flags = [
        "--gin.Run.optimizer=@Muon()",
        "--gin.Run.average_decay=0.9",
        "--gin.Run.inspect_every=2",
        "--gin.Muon.layer_decay=0.8",
    ]
    done = in_process(*words(tmp_path / "model", *flags))
    assert done.returncode == 0, done.stderr
    assert "optimizer    Muon(schedule=LinearDecay(peak=0.01, warmup_steps=5), layer_decay=0.8)" in done.stdout.splitlines()
    assert "layer rates  heads x 1, layer 2 x 0.8, layer 1 x 0.64, embeddings x 0.512" in done.stdout.splitlines()
    inspected = [line for line in lines(tmp_path / "model") if line["split"] == "inspect"]
    assert [line["step"] for line in inspected] == [2, 4]
    assert {"gradient_norm/encoder/layers/01", "update_norm/encoder/embeddings", "activation_rms/encoder/02"} <= set(inspected[0])
    # A copy of the weights has both.
    copy = tmp_path / "copy"
    assert cli.main(["checkpoints", f"--model_dir={tmp_path / 'model'}", f"--copy_weights={copy}"]) == 0
    last, average = (
        [jax.tree.leaves(open_model(folder, average=average).params) for folder in (tmp_path / "model", copy)]
        for average in (False, True)
    )
    for own, copied in (last, average):
        assert all(np.array_equal(*pair) for pair in zip(own, copied, strict=True))
    different = [not np.array_equal(*pair) for pair in zip(last[0], average[0], strict=True)]
    assert sum(different) > 20  # the average is another model than the last
    flags = [f"--model_dir={copy}", "--average"]
    assert cli.main(["export", *flags, f"--output={tmp_path / 'exported'}"]) == 0
    # A byte of the average that was flipped is noticed where the average is read.
    path = max((copy / "checkpoints" / "0" / "average").glob("**/d/*"), key=lambda path: path.stat().st_size)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    capsys.readouterr()
    assert cli.main(["fill", f"--model_dir={copy}", "A [MASK]."]) == 0
    assert cli.main(["evaluate", *flags, f"--cache_dir={trained.model_dir / 'cache'}"]) == 2
    assert "has other bytes than were written" in capsys.readouterr().err
    refused = in_process("export", f"--model_dir={trained.model_dir}", f"--output={tmp_path / 'export'}", "--average")
    message = f"bertfam: error: step 24 of {trained.model_dir} has no moving average, which Run.average_decay keeps"
    assert (refused.returncode, refused.stderr.strip()) == (2, message)
    # Another optimizer cannot resume.
    before = listing(tmp_path / "model")
    refused = in_process(*words(tmp_path / "model", *chosen[1:3], "--gin.Run.optimizer=@Lion()"))
    message = "bertfam: error: Run.optimizer was Muon when this run started and is Lion now; change it back, or use another"
    assert refused.returncode == 2 and refused.stderr.startswith(message)
    assert listing(tmp_path / "model") == before


def test_text_without_targets_is_reported(trained, caches_in_process, tmp_path, capsys):
    """Every word is unknown, and rows of unknown tokens have nothing to mask."""
    (tmp_path / "text.txt").write_text("\n\n".join(["\u2603 \u2603"] * 9))
    settings = ["Run.objective=@Mlm()", "Mlm.model=@BertConfig()", "TextData.rows=@Chunks()", "BATCH_SIZE=1", "EVAL_EVERY=0"]
    settings += ["BertConfig.num_layers=1", "Execution.layers='unroll'"]
    flags = [f"--gin.{setting}" for setting in [*settings, "Run.stages=(@short/Stage(),)", "short/Stage.steps=3"]]
    words = [f"--input={tmp_path / 'text.txt'}", f"--vocab={trained.folder / 'vocab'}", f"--model_dir={tmp_path / 'model'}"]
    assert cli.main(["pretrain", f"--gin_file={trained.folder / 'run.gin'}", *words, *flags]) == 0
    warning = "bertfam: warning: 3 of the steps had no targets and changed nothing: their rows have no token to mask"
    assert warning in capsys.readouterr().err.splitlines()
    (line,) = [line for line in lines(tmp_path / "model") if line["split"] == "train"]
    assert line["nothing_to_predict"] == 3 and "loss" not in line
    params = open_model(tmp_path / "model").params
    assert newest(tmp_path / "model") == 3 and all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params))
