"""REALM by the command line: a dual encoder, its index, a run that is cut within a refresh, a new index of its retriever."""

import json

import numpy as np
import pytest
from model_folders import arrays, assert_equal_arrays, cut

from bertfam import cli
from bertfam.retrieval.index import Index

NAMES = ("Ada Lovelace", "Alan Turing", "Grace Hopper", "Kurt Godel", "Emmy Noether")
PLACES = ("London", "Paris", "Berlin", "New York")
RUN = """
MODEL = @BertConfig()
include "objectives/realm.gin"
include "runs/defaults.gin"
TRAIN_STEPS = 5
EVAL_EVERY = 5
CHECKPOINT_EVERY = 1
Run.keep_checkpoints = None
BATCH_SIZE = 8
Stage.length = 24
LinearDecay.peak = 1e-2
LinearDecay.warmup_steps = 1
Realm.passage_length = 24
Realm.candidates = 3
Realm.projection = 8
Realm.refresh = 3
Realm.pooling = "mean"
Execution.layers = "unroll"
"""


@pytest.fixture(scope="module")
def folder(random_model, tmp_path_factory):
    """Return a folder with a text, a dual encoder of it and an index."""
    folder = tmp_path_factory.mktemp("realm")
    sentences = [
        f"In {1900 + 7 * number} the list of {name} was in {PLACES[number % 4]}." for number, name in enumerate(NAMES * 4)
    ]
    (folder / "text.txt").write_text("".join(f"{one} It has a name.\n\n" for one in sentences))
    (folder / "passages.tsv").write_text("".join(f"{one}\n" for one in sentences))
    (folder / "ict.gin").write_text("""
MODEL = @BertConfig()
include "objectives/ict.gin"
include "runs/defaults.gin"
TRAIN_STEPS = 1
EVAL_EVERY = 0
BATCH_SIZE = 4
QUERY_LENGTH = 16
Stage.length = 48
DualEncoder.projection = 8
DualEncoder.pooling = "mean"
Run.sample_every = 0
Execution.layers = "unroll"
""")
    (folder / "run.gin").write_text(RUN)
    words = [
        "pretrain",
        f"--gin_file={folder / 'ict.gin'}",
        f"--init_from={random_model}",
        "--input_format=paragraphs",
        f"--input={folder / 'text.txt'}",
    ]
    assert cli.main([*words, f"--model_dir={folder / 'ict'}", "--gin.TextFiles.validation_fraction=0.2"]) == 0
    assert cli.main(index_words(folder, "ict", "index")) == 0
    return folder


def index_words(folder, model, output):
    words = ["index", f"--model_dir={folder / model}", f"--input={folder / 'passages.tsv'}", "--no_header", "--text=1"]
    return [*words, f"--output={folder / output}"]


def test_a_run_that_is_cut_in_the_middle_of_a_refresh(folder, random_model, capsys):
    words = [
        "pretrain",
        "--input_format=paragraphs",
        f"--input={folder / 'text.txt'}",
        "--marks=salient",
        "--gin.TextFiles.validation_fraction=0.2",
    ]
    words += [f'--gin.INDEX="{folder / "index"}"', f"--gin_file={folder / 'run.gin'}"]
    words += [f"--init_from={random_model}"]
    model = folder / "model"
    assert cli.main([*words, f"--model_dir={model}"]) == 0
    out = capsys.readouterr().out
    assert f"starts from {random_model}: encoder, mlm_head; " in out
    assert f"; retriever, retriever_projection from {folder / 'ict'}" in out
    assert "passages" in out
    measured = [json.loads(line) for line in (model / "metrics.jsonl").read_text().splitlines()]
    evaluation = [line for line in measured if line["split"] == "eval"][-1]
    assert {"mlm_loss", "mlm_accuracy", "retrieval_utility", "null_probability"} <= evaluation.keys()
    assert 0 < evaluation["null_probability"] < 1

    saved = {step: arrays(model, step) for step in (1, 4, 5)}
    (first,) = (name for name in saved[1] if "retriever'" in name and name.startswith("['params']") and "word" in name)
    started = arrays(folder / "ict", 1)[first.replace("retriever", "encoder")]
    np.testing.assert_allclose(saved[1][first][:2000], started[:2000], atol=0.011)  # one update of rate 1e-2 at most
    # Updates 0 to 2 use the index, and updates 3 to 5 one by the same parameters, those before update 0.
    vectors = {step: found["['rest']['carry']['refresh']['vectors']"][:20] for step, found in saved.items()}
    np.testing.assert_array_equal(vectors[1], Index.open(folder / "index").vectors())
    np.testing.assert_allclose(vectors[4], vectors[1], atol=1e-5)

    copy = cut(model, folder / "copy", 4)
    moved = (folder / "ict").rename(folder / "moved")  # a run that has begun does not read the model of the index
    assert cli.main(["pretrain", f"--model_dir={copy}"]) == 0
    moved.rename(folder / "ict")
    assert_equal_arrays(arrays(copy, 5), saved[5])

    # The index of the retriever after four updates is that which the updates from the sixth on use.
    assert cli.main([*index_words(folder, "model", "rebuilt"), "--step=3", "--length=26"]) == 0
    rebuilt = Index.open(folder / "rebuilt").vectors()
    following = saved[5]["['rest']['carry']['refresh']['next_vectors']"]
    np.testing.assert_allclose(following[:14], rebuilt[:14], atol=1e-5)
    assert np.abs(rebuilt - vectors[1]).max() > 1e-2


def test_mistakes(folder, random_model, tmp_path, capsys):
    words = [
        "pretrain",
        "--input_format=paragraphs",
        f"--input={folder / 'text.txt'}",
        f"--gin_file={folder / 'run.gin'}",
        f"--init_from={random_model}",
    ]
    words += [f"--model_dir={tmp_path / 'model'}", "--marks=salient"]
    assert cli.main(words) == 2
    assert "no index of passages is named: --gin.INDEX=" in capsys.readouterr().err
    named = f'--gin.INDEX="{folder / "index"}"'
    assert cli.main([*words, named, "--gin.Realm.projection=9"]) == 2
    assert "has vectors of 8 numbers, and those of Realm have 9" in capsys.readouterr().err
    assert cli.main([*words, named, "--gin.Realm.passage_length=60"]) == 2
    assert "make rows of 85 tokens, and BertConfig.max_length is 64" in capsys.readouterr().err
    assert not (tmp_path / "model").exists()
