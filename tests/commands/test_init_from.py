"""`bertfam pretrain --init_from`: a new run takes over another model's weights."""

import socket
import subprocess

import jax
import numpy as np
import pytest
import xla
from command_line import bertfam, in_process, started
from model_folders import arrays, assert_equal_arrays, metrics

from bertfam import api, cli
from bertfam.data import vocabularies
from bertfam.training.checkpoints import newest
from bertfam.training.trainer import Trainer

# One update of rate 0 changes nothing.
ONE = (
    *("--gin.Run.stages=(@short/Stage(),)", "--gin.short/Stage.steps=1", "--gin.LinearDecay.warmup_steps=0"),
    *("--gin.LinearDecay.peak=1e-2", "--gin.Run.eval_every=0"),
)


@pytest.fixture(scope="module")
def others(trained, tmp_path_factory):
    """Of the trained model: its weights alone, and what is exported."""
    folder = tmp_path_factory.mktemp("others")
    source = f"--model_dir={trained.model_dir}"
    assert cli.main(["checkpoints", source, f"--copy_weights={folder / 'weights'}"]) == 0
    assert cli.main(["export", source, f"--output={folder / 'exported'}"]) == 0
    return folder


def spelt(piece, rows):
    """Rows of the longest pieces from the left, those inside of a word with ## before them."""
    text, inside, found = piece.removeprefix("##"), piece.startswith("##"), []
    while text:
        length = next(length for length in range(len(text), 0, -1) if "##" * inside + text[:length] in rows)
        found.append(rows["##" * inside + text[:length]])
        text, inside = text[length:], True
    return found


def leaves(tree):
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def test_all_that_both_have(trained, tmp_path):
    words = trained.pretrain(tmp_path / "model", f"--cache_dir={trained.model_dir / 'cache'}", *ONE)
    done = in_process(*words, f"--init_from={trained.model_dir}")
    assert done.returncode == 0, done.stderr
    rows = "of 300 tokens 300 keep their rows, 0 begin with the mean of their old pieces' rows, 0 are new"
    told = f"starts from {trained.model_dir}: encoder, mlm_head, nsp_head, pooler; {rows}"
    assert [line for line in done.stdout.splitlines() if line.startswith("start")] == [told] and newest(tmp_path / "model") == 1
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
    done = in_process(*words, f"--vocab={other}", f"--init_from={tmp_path / 'theirs'}", "--init_parts=encoder")
    assert done.returncode == 0, done.stderr
    old, new = vocabularies.load(trained.model_dir / "vocab"), vocabularies.load(other)
    rows = {piece: row for row, piece in enumerate(old.pieces(range(300)))}
    pieces = new.pieces(range(250))
    shared = [piece for piece in pieces if piece in rows]
    assert 50 < len(shared) < 250
    told = f"of 250 tokens {len(shared)} keep their rows, {250 - len(shared)} begin with the mean of their old pieces' rows, "
    assert f"starts from {tmp_path / 'theirs'}: encoder; {told}0 are new" in done.stdout.splitlines()
    theirs, ours = (leaves(api.load(folder).params) for folder in (trained.model_dir, tmp_path / "model"))
    assert theirs.keys() == ours.keys()
    for name, value in theirs.items():
        if "['word']" in name:
            taken = {row: rows[piece] for row, piece in enumerate(pieces) if piece in rows}
            assert np.array_equal(ours[name][list(taken)], value[list(taken.values())])
            for row in set(range(250)) - set(taken):  # of the same alphabet: each is spelt
                ids = spelt(pieces[row], rows)
                assert len(ids) > 1
                assert np.array_equal(ours[name][row], value[ids].mean(0, np.float64).astype(np.float32)), pieces[row]
        else:
            constant = len(np.unique(ours[name])) == 1  # new biases and scales
            assert np.array_equal(ours[name], value) == name.startswith("['encoder']") or constant, name


def test_tokens_begin_as_they_would_on_any_mesh_or_anew(trained, rewritten, tmp_path):
    """Over another vocabulary, with the head; the table and its moments are whole, or split over two devices."""
    found = {}
    flags = [f"--gin_file={trained.folder / 'run.gin'}", f"--cache_dir={rewritten / 'cache'}", f"--init_from={trained.model_dir}"]
    words = ["pretrain", *flags, *ONE]
    variants = {
        "whole": ([], {}),
        "split": (["--init_optimizer", "--gin.MeshShape.data=1", "--gin.MeshShape.tensor=2"], xla.device_environment(2)),
        "anew": (["--init_new_rows=random"], {}),
    }
    for name, (flags, environment) in variants.items():
        command = [*words, *flags, f"--model_dir={tmp_path / name}"]
        done = bertfam(*command, **environment) if environment else in_process(*command)
        assert done.returncode == 0, done.stderr
        found[name] = arrays(tmp_path / name, 1)
        assert ("; with the optimizer's moments" in done.stdout) == (name == "split")
    rows = {piece: row for row, piece in enumerate(vocabularies.load(trained.model_dir / "vocab").pieces(range(300)))}
    pieces = vocabularies.load(rewritten / "vocab").pieces(range(250))
    lacking = [row for row, piece in enumerate(pieces) if piece not in rows]
    assert len(lacking) > 50
    before = arrays(trained.model_dir, 24)
    for name in (name for name in found["whole"] if name.startswith("['params']")):
        table = "['word']" in name or name == "['params']['mlm_head']['bias']"
        whole, split, anew = (tree[name][: 250 if table else None] for tree in found.values())
        assert np.array_equal(whole, split), name
        if table:
            expected = [before[name][spelt(pieces[row], rows)].mean(0, np.float64).astype(np.float32) for row in lacking]
            assert np.array_equal(whole[lacking], expected)
            assert [row for row in range(250) if not np.array_equal(whole[row], anew[row])] == lacking
        else:
            constant = len(np.unique(whole)) == 1
            assert np.array_equal(whole, anew) or constant, name
    # The optimizer has made 24 updates before; the run's own step begins anew.
    counts = {name: [value for path, value in tree.items() if "updates" in path] for name, tree in found.items()}
    assert (counts["split"], counts["whole"]) == ([25], [1]) and found["split"]["['rest']['step']"] == 1


def test_an_optimizer_goes_on_over_another_schedule(trained, tmp_path):
    """Its moments are the old run's but for one update: m = 0.9 m + 0.1 g, and g is what the same update gives a new one."""
    words = f"--cache_dir={trained.model_dir / 'cache'}", *ONE, f"--init_from={trained.model_dir}"
    for name, flags in (("on", ["--init_optimizer"]), ("new", [])):
        done = in_process(*trained.pretrain(tmp_path / name, *words, *flags))
        assert done.returncode == 0, done.stderr
    before, on, new = (
        arrays(folder, step) for folder, step in ((trained.model_dir, 24), (tmp_path / "on", 1), (tmp_path / "new", 1))
    )
    moments = [name for name in on if "['mu']" in name or "['nu']" in name]
    assert len(moments) > 40
    for name in moments:
        decay = 0.9 if "['mu']" in name else 0.999
        rows = 300 if "['word']" in name or name.endswith("['mlm_head']['bias']") else None
        expected = decay * before[name][:rows] + new[name][:rows]
        assert np.allclose(on[name][:rows], expected, rtol=1e-4, atol=1e-9), name


def test_a_run_that_was_killed_before_it_saved_starts_from_the_same(trained, tmp_path, capsys, monkeypatch):
    """The folder alone, from anywhere, trains what the unbroken run does; new flags without --init_from begin with nothing."""

    class Killed(BaseException):
        pass

    def kill(*_):
        raise Killed

    given = *ONE, f"--cache_dir={trained.model_dir / 'cache'}"
    monkeypatch.chdir(trained.folder)
    start = "--init_from=model", "--init_parts=encoder,mlm_head", "--init_optimizer"
    assert cli.main(trained.pretrain(tmp_path / "unbroken", *given, *start)) == 0
    for name in ("killed", "anew"):
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(Trainer, "compile_step", kill)
            cli.main(trained.pretrain(tmp_path / name, *given, *start))
        assert newest(tmp_path / name) is None
    capsys.readouterr()
    assert cli.main(trained.pretrain(tmp_path / "anew", *given)) == 0
    assert "starts from" not in capsys.readouterr().out and not (tmp_path / "anew" / "start.json").exists()
    monkeypatch.chdir(tmp_path)
    assert cli.main(["pretrain", "--model_dir=killed"]) == 0
    assert f"starts from {trained.model_dir}: encoder, mlm_head; " in capsys.readouterr().out
    unbroken, killed, anew = (arrays(tmp_path / name, 1) for name in ("unbroken", "killed", "anew"))
    assert_equal_arrays(unbroken, killed)
    assert any(not np.array_equal(value, anew[name]) for name, value in killed.items() if "['encoder']" in name)
    assert metrics(tmp_path / "killed") == metrics(tmp_path / "unbroken")
    # With its checkpoint the run needs the other folder no more.
    (tmp_path / "killed" / "start.json").write_text('{"init_from": "/no/folder"}')
    assert cli.main(["pretrain", "--model_dir=killed"]) == 0
    assert "finished already" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--init_from={folder}/none"], "{folder}/none is neither a model folder (config.gin) nor a Hugging Face folder "),
        (["--init_new_rows=random"], "--init_new_rows requires --init_from; give that too, or leave it out"),
        (["--init_optimizer"], "--init_optimizer requires --init_from; give that too, or leave it out"),
        (
            ["--init_from={weights}", "--init_optimizer"],
            "{weights} holds a model without an optimizer state; leave --init_optimizer out",
        ),
        (
            ["--init_from={exported}", "--init_optimizer"],
            "{exported} is not the folder of a run (no config.gin) and has no optimizer state; leave --init_optimizer ",
        ),
        (
            ["--init_from={model}", "--init_optimizer", "--gin.Run.optimizer=@Lamb()"],
            "Run.optimizer was AdamW in {model} and is Lamb now; change it back, or use another --init_from (or leave "
            "--init_optimizer out)",
        ),
        (
            ["--init_from={model}", "--init_optimizer", "--gin.AdamW.b2=0.98"],
            "Run.optimizer.b2 was 0.999 in {model} and is 0.98 now; change it back, or use another --init_from (or leave ",
        ),
        (["--init_parts=encoder"], "--init_parts requires --init_from; give that too, or leave it out"),
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
def test_mistakes(trained, others, tmp_path, capsys, flags, message):
    values = {"folder": tmp_path, "model": trained.model_dir} | {name: others / name for name in ("weights", "exported")}
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
        f"bertfam: error: process 1 has a different configuration from process 0: --init_from=None there, --init_from="
        f"{trained.model_dir} on process 0; give all processes the same flags and folders\n",
        "",
    ]
    assert not list(tmp_path.iterdir())
