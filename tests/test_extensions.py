"""Six extensions of one module outside the package (extensions/toy.py), used as CONTRIBUTING.md says."""

import contextlib
import json
import pickle
import shlex
import shutil
import sys
from io import StringIO
from pathlib import Path

import jax
import numpy as np
import pytest
import shared_programs
from same_weights import assert_same_weights

from bertfam import api, cli
from bertfam.config import load
from bertfam.errors import UserError
from bertfam.models import families

EXTENSIONS = Path(__file__).parent / "extensions"
MODULE = "--module_import=toy"
NOUNS, VERBS = ("cat", "dog", "bird", "horse", "river", "stone"), ("sees", "hears", "follows", "meets", "likes")


def write_text(path, documents):
    """Write documents of six sentences, a sentence a line."""
    sentences = [f"the {a} {verb} the {b}" for a in NOUNS for verb in VERBS for b in NOUNS]
    numbers = np.random.default_rng(documents).integers(0, len(sentences), (documents, 6))
    path.write_text("\n\n".join("\n".join(sentences[number] for number in row) for row in numbers))


def run(*words):
    """Run a command in this process; fail unless it succeeds."""
    assert cli.main([str(word) for word in words]) == 0


def lines(model_dir, split):
    entries = [json.loads(line) for line in (model_dir / "metrics.jsonl").read_text().splitlines()]
    return [line for line in entries if line["split"] == split]


@pytest.fixture(scope="module", autouse=True)
def toy():
    """Yield the module, imported as by a user's program; other test files do not see its family."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXTENSIONS)
        patch.setattr(families, "_registered", [])
        shared_programs.share(patch)
        import toy

        yield toy


@pytest.fixture(scope="module")
def folder(tmp_path_factory, caches_in_process):
    """Return a folder with text, vocab/ and model/, which `bertfam pretrain` trained with all six extensions."""
    folder = tmp_path_factory.mktemp("extensions")
    for name, documents in (("train", 30), ("held-out", 6)):
        write_text(folder / f"{name}.txt", documents)
    run("vocab", f"--input={folder / 'train.txt'}", "--size=90", f"--output={folder / 'vocab'}")
    command = ["pretrain", MODULE, f"--gin_file={EXTENSIONS / 'toy.gin'}", *text(folder), f"--model_dir={folder / 'model'}"]
    with contextlib.redirect_stdout(StringIO()) as out:
        run(*command)
    assert "SignMomentum" in out.getvalue() and "attention    none" in out.getvalue()
    return folder


def text(folder):
    flags = {"input": "train.txt", "validation_input": "held-out.txt", "vocab": "vocab"}
    return [f"--{name}={folder / path}" for name, path in flags.items()]


def test_hook_writes_its_metric(folder):
    model_dir = folder / "model"
    assert [line["step"] for line in lines(model_dir, "train")] == [1, 2, 3, 4]
    measured = lines(model_dir, "parameters")
    assert [line["step"] for line in measured] == [2, 4]
    leaves = jax.tree.leaves(api.load(model_dir).params)
    np.testing.assert_allclose(measured[-1]["norm"], np.sqrt(sum(np.sum(np.square(leaf)) for leaf in leaves)), rtol=1e-5)


def test_evaluate_gives_the_same_scores(folder, capsys):
    model_dir = folder / "model"
    run("evaluate", f"--model_dir={model_dir}", MODULE, "--json")
    scores, (logged,) = json.loads(capsys.readouterr().out), lines(model_dir, "eval")
    assert {"toy_loss", "toy_accuracy"} < logged.keys()
    for name in ("loss", "toy_loss", "toy_accuracy"):
        np.testing.assert_allclose(scores[name], logged[name], rtol=1e-5)


def test_run_resumes(folder, tmp_path):
    model_dir = tmp_path / "model"
    shutil.copytree(folder / "model", model_dir)
    shutil.rmtree(model_dir / "checkpoints/4")
    run("pretrain", f"--model_dir={model_dir}", MODULE)
    assert [line["step"] for line in lines(model_dir, "train")] == [1, 2, 3, 4]
    assert lines(model_dir, "parameters") == lines(folder / "model", "parameters")
    assert_same_weights(api.load(model_dir), api.load(folder / "model"))


def test_export_and_import_keep_the_parameters(folder, tmp_path):
    exported, imported = tmp_path / "theirs", tmp_path / "imported"
    run("export", f"--model_dir={folder / 'model'}", f"--output={exported}", MODULE)
    content = json.loads((exported / "config.json").read_text())
    assert (content["model_type"], content["architectures"]) == ("toy", ["ToyModel"])
    model = api.load(folder / "model")
    assert_same_weights(api.load(exported), model)
    run("import", f"--input={exported}", f"--output={imported}", MODULE)
    assert_same_weights(api.load(imported), model)


def test_family_trains_with_a_built_in_objective(folder, tmp_path, capsys):
    model_dir, exported = tmp_path / "model", tmp_path / "theirs"
    changes = {"TextData.rows": "@FullSentences()", "TextData.corruption": "@BertMasking()", "Run.optimizer": "@AdamW()"}
    changes |= {"Run.objective": "@Mlm()", "Mlm.model": "%MODEL", "Run.hooks": "()", "TRAIN_STEPS": "2"}
    flags = [f"--gin.{name}={value}" for name, value in changes.items()]
    run(
        "pretrain",
        MODULE,
        f"--gin_file={EXTENSIONS / 'toy.gin'}",
        *flags,
        f"--cache_dir={folder / 'model/cache'}",
        f"--model_dir={model_dir}",
    )
    run("export", f"--model_dir={model_dir}", f"--output={exported}", MODULE)
    assert json.loads((exported / "config.json").read_text())["architectures"] == ["ToyForMaskedLM"]
    assert_same_weights(api.load(exported), api.load(model_dir))
    capsys.readouterr()
    run("fill", f"--model_dir={exported}", MODULE, "--json", "the [MASK] sees the dog")
    assert len(json.loads(capsys.readouterr().out)[0]["masks"]) == 1


BERT = {"num_layers": 1, "hidden_size": 16, "num_heads": 2, "feed_forward_size": 32, "max_length": 24}
ALONE = {
    "objective": {"Run.objective": "@ToyObjective()", "ToyObjective.model": "%MODEL"},
    "noise": {"TextData.corruption": "@RepeatedTokens()"},
    "rows": {"TextData.rows": "@FirstTokens()"},
    "optimizer": {"Run.optimizer": "@SignMomentum()"},
    "hook": {"Run.hooks": "(@ParameterNorm(),)"},
}


@pytest.mark.parametrize("name", ALONE)
def test_each_other_extension_fits_into_a_run_of_built_in_parts(folder, name, capsys):
    sizes = {f"BertConfig.{name}": str(value) for name, value in BERT.items()}
    changes = sizes | {"MODEL": "@BertConfig()", "Stage.length": "24", "BATCH_SIZE": "4", "TRAIN_STEPS": "4"} | ALONE[name]
    files = ["--gin_file=objectives/mlm.gin", "--gin_file=runs/defaults.gin"]
    run("check", MODULE, *files, *(f"--gin.{name}={value}" for name, value in changes.items()), *text(folder))
    assert capsys.readouterr().out.endswith("ok\n")


@contextlib.contextmanager
def without_toy():
    """Block in which the module has not been imported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(sys.modules, "toy")
        patch.setattr(families, "_registered", [])
        yield
        assert "toy" not in sys.modules


@pytest.mark.parametrize(
    "words",
    (
        ["evaluate"],
        ["export", "--output=theirs"],
        ["fill", "the [MASK]"],
        ["replay", "--step=1"],
        ["preview"],
        ["check"],
        ["pretrain"],
        ["pretrain", "--gin_file=runs/quickstart.gin", "--init_from={model}", "--model_dir=new"],
    ),
    ids=lambda words: words[0],
)
def test_folder_imports_no_module(folder, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = [word.format(model=folder / "model") for word in words]
    if not any(word.startswith("--model_dir=") for word in words):
        words.append(f"--model_dir={folder / 'model'}")
    else:
        words += text(folder)
    with without_toy():
        assert cli.main(words) == 2
    error = capsys.readouterr().err.strip()
    assert f"{folder / 'model/config.gin'}:1: " in error and "--module_import=toy" in error and "\n" not in error
    assert error.endswith(shlex.join(["bertfam", *words, "--module_import=toy"]))
    assert not list(tmp_path.iterdir())


STRANGE_FILES = ["models/bert_tiny.gin", "objectives/mlm.gin", "runs/defaults.gin"]
STRANGE_TASK = """
TextData.corpus = @en/SeqioTask()
SeqioTask.name = "books"
en/SeqioTask.modules = ("stranger",)
"""
STRANGE_MODULES = '("stranger",)'


@pytest.mark.parametrize("command", ["preview", "check"])
def test_folder_imports_no_module_of_a_seqio_task(command, folder, tmp_path, capsys):
    lines = load(STRANGE_FILES, ["Stage.length = 16"]).complete("Run").text().splitlines()
    text = "\n".join(line for line in lines if not line.startswith(("TextData.corpus", "TextData.vocabulary")))
    (tmp_path / "config.gin").write_text(f"{text}\nTextData.vocabulary = '{folder / 'vocab'}'{STRANGE_TASK}")
    assert cli.main([command, f"--model_dir={tmp_path}"]) == 2
    error = capsys.readouterr().err
    line = len((tmp_path / "config.gin").read_text().splitlines())
    assert f"{tmp_path / 'config.gin'}:{line}: " in error and "--module_import=MODULE" in error


def test_corpus_of_a_folder_imports_no_module_by_itself(tmp_path, monkeypatch):
    (tmp_path / "stranger.py").write_text("open('ran', 'w')")
    (tmp_path / "config.gin").write_text(f"MODULES = ('stranger',){STRANGE_TASK.replace(STRANGE_MODULES, '%MODULES')}")
    monkeypatch.chdir(tmp_path)
    corpus = load(["config.gin"], saved=["config.gin"]).build("TextData").corpus
    for copied in (corpus, corpus.without_held_out()):
        for read in (lambda corpus: list(corpus.texts("train")), type(corpus).fingerprint, pickle.dumps):
            with pytest.raises(UserError, match=r"config\.gin:1: .*reading a folder runs no code"):
                read(copied)
    assert not (tmp_path / "ran").exists() and "stranger" not in sys.modules
    named = load(["config.gin"], ["SeqioTask.modules = ('stranger',)"], saved=[])
    assert type(named.build("TextData").corpus.modules) is tuple


def test_exported_family_that_is_not_registered_is_refused(folder, tmp_path, capsys):
    exported = tmp_path / "theirs"
    run("export", f"--model_dir={folder / 'model'}", f"--output={exported}", MODULE)
    with without_toy():
        assert cli.main(["fill", f"--model_dir={exported}", "the [MASK]"]) == 2
    error = capsys.readouterr().err
    assert "model_type is 'toy'" in error and "--module_import=MODULE" in error
