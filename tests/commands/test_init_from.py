"""`bertfam pretrain --init_from`: a new run takes over another model's weights."""

import socket
import subprocess

import jax
import numpy as np
import pytest
from command_line import bertfam, started

from bertfam import api, cli
from bertfam.data import vocabularies
from bertfam.training.checkpoints import newest

# One update of rate 0 changes nothing.
ONE = (
    *("--gin.Run.stages=(@short/Stage(),)", "--gin.short/Stage.steps=1", "--gin.LinearDecay.warmup_steps=0"),
    *("--gin.LinearDecay.peak=1e-2", "--gin.Run.eval_every=0"),
)


def leaves(tree):
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def test_all_that_both_have(trained, tmp_path):
    words = trained.pretrain(tmp_path / "model", f"--cache_dir={trained.model_dir / 'cache'}", *ONE)
    done = bertfam(*words, f"--init_from={trained.model_dir}")
    assert done.returncode == 0, done.stderr
    told = f"started from {trained.model_dir}: encoder, mlm_head, nsp_head, pooler, which knows 300 of the 300 tokens"
    assert told in done.stdout.splitlines() and newest(tmp_path / "model") == 1
    old, new = (leaves(api.load(folder).params) for folder in (trained.model_dir, tmp_path / "model"))
    assert old.keys() == new.keys()
    for name, value in old.items():
        rows = 300 if "word" in name or name == "['mlm_head']['bias']" else None  # of padding none is taken
        assert np.array_equal(value[:rows], new[name][:rows]), name


def test_the_encoder_of_a_huggingface_folder_over_another_vocabulary(trained, tmp_path):
    assert cli.main(["export", f"--model_dir={trained.model_dir}", f"--output={tmp_path / 'theirs'}"]) == 0
    other, text = tmp_path / "vocab", trained.folder / "text" / "held-out.txt"
    assert cli.main(["vocab", f"--input={text}", "--size=250", f"--output={other}"]) == 0
    words = [word for word in trained.pretrain(tmp_path / "model", *ONE) if not word.startswith("--vocab=")]
    done = bertfam(*words, f"--vocab={other}", f"--init_from={tmp_path / 'theirs'}", "--init_parts=encoder")
    assert done.returncode == 0, done.stderr
    old, new = vocabularies.load(trained.model_dir / "vocab"), vocabularies.load(other)
    rows = {piece: row for row, piece in enumerate(old.pieces(range(300)))}
    pieces = new.pieces(range(250))
    shared = [piece for piece in pieces if piece in rows]
    assert 50 < len(shared) < 250
    assert f"encoder, which knows {len(shared)} of the 250 tokens" in done.stdout
    theirs, ours = (leaves(api.load(folder).params) for folder in (trained.model_dir, tmp_path / "model"))
    assert theirs.keys() == ours.keys()
    for name, value in theirs.items():
        if "['word']" in name:
            taken = {row: rows[piece] for row, piece in enumerate(pieces) if piece in rows}
            assert np.array_equal(ours[name][list(taken)], value[list(taken.values())])
            new_rows = [row for row in range(250) if row not in taken]
            assert 0 < ours[name][new_rows].std() < 0.03 and np.abs(ours[name][new_rows]).max() <= 0.0401
        else:
            constant = len(np.unique(ours[name])) == 1  # new biases and scales
            assert np.array_equal(ours[name], value) == name.startswith("['encoder']") or constant, name


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--init_from={folder}/none"], "{folder}/none is neither a model folder (config.gin) nor a Hugging Face folder "),
        (["--init_parts=encoder"], "--init_parts says what is taken of --init_from; give that too, or leave it out"),
        (
            ["--init_from={model}", "--init_parts=encoder,decoder"],
            "--init_parts=encoder,decoder: {model} has no decoder; it has encoder, mlm_head, nsp_head, pooler",
        ),
        (
            ["--init_from={model}", "--gin.BertConfig.num_layers=3"],
            "Run.objective.model.num_layers was 2 in {model} and is 3 now; change it back, or use another --init_from",
        ),
    ],
)
def test_mistakes(trained, tmp_path, capsys, flags, message):
    values = {"folder": tmp_path, "model": trained.model_dir}
    flags = [flag.format(**values) for flag in flags]
    assert cli.main(trained.pretrain(tmp_path / "model", f"--cache_dir={trained.model_dir / 'cache'}", *flags)) == 2
    assert capsys.readouterr().err.startswith(f"bertfam: error: {message.format(**values)}")
    assert list(tmp_path.iterdir()) == []


def test_all_processes_start_from_the_same_weights(trained, tmp_path):
    """Of flags that no configuration holds, too, a difference is refused."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    words = [*trained.pretrain(tmp_path / "model"), f"--coordinator=localhost:{port}", "--num_processes=2"]
    given = {0: [f"--init_from={trained.model_dir}"], 1: []}
    processes = [
        started([*words, f"--process_index={index}", *flags], {}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for index, flags in given.items()
    ]
    told = [process.communicate(timeout=100)[1] for process in processes]
    assert [process.returncode for process in processes] == [2, 2]
    assert told == [
        f"bertfam: error: process 1 has another configuration than process 0: --init_from=None there, --init_from="
        f"{trained.model_dir} on process 0; give all processes the same flags and folders\n",
        "",
    ]
    assert not list(tmp_path.iterdir())
