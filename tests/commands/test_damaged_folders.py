"""Model folders that miss a part or have a damaged one, and names of the hub: one line names what is missing, and the fix."""

import re
import shutil

import pytest
from command_line import in_process, listing
from model_folders import copy_run

from bertfam.data.vocabularies.byte_bpe import ByteBpe
from bertfam.data.vocabularies.layouts import LAYOUTS

READERS = {
    "pretrain": ["pretrain", "--model_dir={}"],
    "check": ["check", "--model_dir={}"],
    "evaluate": ["evaluate", "--model_dir={}", "--cache_dir={cache}"],
    "fill": ["fill", "--model_dir={}", "a [MASK]"],
    "generate": ["generate", "--model_dir={}", "a"],
    "export": ["export", "--model_dir={}", "--output=e"],
    "replay": ["replay", "--model_dir={}", "--step=6"],
    "copy": ["checkpoints", "--model_dir={}", "--copy_weights=c"],
    "merge": ["merge", "--model_dir={}@20,24", "--output=e"],
    "init_from": ["pretrain", "--model_dir=n", "--init_from={}", "--input={text}"],
    "distill": ["distill", "--model_dir=n", "--teacher={}", "--gin_file=runs/quickstart_student.gin", "--input={text}"],
}
CONFIG_READERS = READERS | {"preview": ["preview", "--model_dir={}"], "explain": ["explain", "AdamW", "--model_dir={}"]}


@pytest.fixture
def damaged(trained, tmp_path, monkeypatch):
    """Copy of the finished run without its token cache, in the current folder."""
    monkeypatch.chdir(tmp_path)
    model_dir = copy_run(trained.model_dir, tmp_path / "model")
    shutil.rmtree(model_dir / "cache")
    return model_dir


def refused(trained, tmp_path, words, name="model"):
    before = listing(tmp_path)
    done = in_process(
        *(word.format(name, text=trained.folder / "text/train.txt", cache=trained.model_dir / "cache") for word in words)
    )
    assert done.returncode == 2 and listing(tmp_path) == before, done.stderr
    (line,) = done.stderr.splitlines()
    return line


@pytest.mark.parametrize("command", READERS)
def test_a_vocabulary_that_is_gone_or_damaged_is_named(trained, damaged, tmp_path, command):
    (damaged / "vocab/tokenizer.json").write_text("{")
    line = refused(trained, tmp_path, READERS[command])
    assert "model/vocab, the vocabulary of the model" in line and "tokenizer.json" in line and "restore it" in line
    shutil.rmtree(damaged / "vocab")
    line = refused(trained, tmp_path, READERS[command])
    assert "model/vocab, the vocabulary of the model" in line and "is missing" in line and "restore it" in line


def test_the_copy_of_the_vocabulary_in_the_token_cache_is_named(trained, damaged, tmp_path):
    shutil.copytree(trained.model_dir / "cache", damaged / "cache")
    (damaged / "vocab/tokenizer.json").write_text("")
    assert "model/cache/vocab" in refused(trained, tmp_path, READERS["fill"])
    shutil.rmtree(damaged / "vocab")
    shutil.copytree(damaged / "cache/vocab", damaged / "vocab")
    assert in_process("check", "--model_dir=model").returncode == 0


@pytest.mark.parametrize("command", CONFIG_READERS)
def test_a_configuration_that_is_gone_is_named_with_the_copy_of_its_text(trained, damaged, tmp_path, command):
    (damaged / "config.gin").unlink()
    line = refused(trained, tmp_path, CONFIG_READERS[command])
    assert "model/config.gin, which this run has written, is missing" in line and "model/files.json" in line


@pytest.mark.parametrize("command", ["pretrain", "check", "fill"])
def test_a_configuration_that_is_empty_is_named(trained, damaged, tmp_path, command):
    (damaged / "files.json").unlink()
    (damaged / "config.gin").write_text("")
    words = [*READERS[command], *["--gin.TRAIN_STEPS=30"] * (command != "fill")]
    assert "model/config.gin is empty or cut off: it has no objective; restore it" in refused(trained, tmp_path, words)


def test_a_configuration_is_a_small_regular_file_of_the_folder(trained, damaged, tmp_path):
    (damaged / "files.json").unlink()
    shutil.move(damaged / "config.gin", tmp_path / "config.gin")
    for target, problem in ((tmp_path / "config.gin", "is a link out of its folder"), ("/dev/zero", "is not a regular file")):
        (damaged / "config.gin").symlink_to(target)
        assert f"model/config.gin {problem}" in refused(trained, tmp_path, READERS["fill"])
        (damaged / "config.gin").unlink()


def test_a_checkpoint_that_was_renamed_is_named(trained, damaged, tmp_path):
    shutil.copytree(trained.model_dir / "cache", damaged / "cache")
    shutil.copytree(damaged / "checkpoints/24", damaged / "checkpoints/99")
    line = refused(trained, tmp_path, READERS["check"])
    assert "model/checkpoints/99 is named after an update" in line and "run of 24 updates" in line and "move it away" in line


def test_a_vocabulary_that_is_a_link_out_of_the_model_folder_is_neither_read_nor_written(trained, damaged, tmp_path):
    shutil.move(damaged / "vocab", tmp_path / "others")
    (damaged / "vocab").symlink_to("../others")
    for command in ("pretrain", "fill"):
        line = refused(trained, tmp_path, READERS[command])
        assert "model/vocab is a link out of its folder: put the folder itself there" in line
    (tmp_path / "new").mkdir()
    (tmp_path / "new/vocab").symlink_to("../others")
    line = refused(trained, tmp_path, ["pretrain", "--model_dir=new", "--input={text}"])
    assert "new/vocab is a link out of its folder" in line


def test_a_cache_that_is_a_link_out_of_the_model_folder_is_not_used_unless_it_is_named(trained, damaged, tmp_path):
    (damaged / "cache").symlink_to(trained.model_dir / "cache")
    for command in ("pretrain", "check", "replay"):
        line = refused(trained, tmp_path, READERS[command])
        assert "model/cache is a link out of its folder: put the folder itself there" in line
    assert in_process(*READERS["evaluate"][:2], "--cache_dir=model/cache", "--limit=1").returncode in (0, 2)


def test_a_file_in_place_of_the_vocabulary_is_not_answered_with_the_model_folder(trained, damaged, tmp_path):
    shutil.rmtree(damaged / "vocab")
    (damaged / "vocab").touch()
    assert "name model" not in refused(trained, tmp_path, READERS["fill"])


@pytest.mark.parametrize("command", ["pretrain", "check", "fill", "export", "init_from"])
def test_a_configuration_of_another_model_is_named_with_the_array_that_differs(trained, damaged, tmp_path, command):
    """A kept record of the files would say so too, but a stranger's folder may have none."""
    shutil.copytree(trained.model_dir / "cache", damaged / "cache")
    (damaged / "files.json").unlink()
    text = (damaged / "config.gin").read_text()
    (damaged / "config.gin").write_text(re.sub(r"(?m)^(BertConfig.feed_forward_size = )\d+", r"\g<1>1000", text))
    line = refused(trained, tmp_path, READERS[command])
    assert "model/config.gin is not that of" in line and "params/encoder/" in line and "1000) by the configuration" in line


@pytest.mark.parametrize("command", ["pretrain", "check"])
def test_the_cache_that_a_run_was_started_from_is_named_where_it_is_gone(trained, damaged, tmp_path, command):
    (damaged / "files.json").unlink()
    lines = (damaged / "config.gin").read_text().split("\n")
    kept = [line for line in lines if not line.startswith(("TextData.corpus =", "TextData.cache_dir ="))]
    (damaged / "config.gin").write_text(
        "\n".join([*kept, "TextData.corpus = @PythonDocs()", "TextData.cache_dir = '/none/cache'"])
    )
    line = refused(trained, tmp_path, READERS[command])
    assert "/none/cache, the token cache of model, does not exist" in line and "--cache_dir" in line


@pytest.mark.parametrize("command", sorted(CONFIG_READERS.keys() - {"pretrain", "check"}))
def test_nothing_is_downloaded_from_the_hub(trained, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    for name in ("bert-base-uncased", "google/electra"):
        assert f"hf download {name} " in refused(trained, tmp_path, CONFIG_READERS[command], name)


@pytest.mark.parametrize("words", [["import", "--input={}", "--output=i"], ["encode", "--vocab={}", "a text"]])
def test_nothing_is_downloaded_from_the_hub_by_commands_without_a_model_folder(trained, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    assert "hf download bert-base-uncased " in refused(trained, tmp_path, words, "bert-base-uncased")
    assert "there is no folder /none/here" in refused(trained, tmp_path, words, "/none/here")


def test_a_huggingface_folder_is_answered_with_import(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf/config.json").write_text("{}")
    assert "`bertfam import --input=hf " in refused(trained, tmp_path, READERS["export"], "hf")


@pytest.mark.parametrize("command", ["check", "pretrain"])
def test_other_text_calls_for_no_deletion_of_the_cache_of_a_run(trained, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    copy_run(trained.model_dir, tmp_path / "model")
    (tmp_path / "other.txt").write_text("A sentence more.\n")
    line = refused(trained, tmp_path, [command, "--model_dir={}", "--input={text}", "--input=other.txt"])
    assert "model/cache was built from something else" in line and "--init_from=model " in line and "delete" not in line


def test_the_vocabulary_of_a_model_or_a_token_cache_is_not_replaced(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    copy_run(trained.model_dir, tmp_path / "model")
    words = ["vocab", "--input={text}", "--size=200", "--output={}", "--overwrite"]
    assert "the model in model " in refused(trained, tmp_path, words, "model/vocab")
    assert "the token cache in model/cache " in refused(trained, tmp_path, words, "model/cache/vocab")


def test_a_vocabulary_that_does_not_fit_a_warm_start_can_be_left_out(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ByteBpe.train(["the cat sat on the mat"] * 3, size=269, layout=LAYOUTS["gpt2"]).save("bpe")
    line = refused(trained, tmp_path, [*READERS["init_from"], "--vocab=bpe"], trained.model_dir)
    assert "no cls token" in line and f"or leave --vocab out to use the vocabulary of {trained.model_dir}" in line


def test_advice_about_other_folders_and_vocabularies_can_be_followed(trained, rewritten, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(rewritten / "cache", "cache")
    for words in (["checkpoints", "--model_dir=cache"], ["checkpoints", "--model_dir=cache", "--copy_weights=c"]):
        assert "cache is no model folder (no config.gin)" in refused(trained, tmp_path, words)
    words = ["preview", f"--model_dir={trained.model_dir}", "--cache_dir=cache", "--examples=1"]
    assert "cache/vocab is not the vocabulary that" in refused(trained, tmp_path, words)
    words = ["pretrain", f"--gin_file={trained.folder / 'run.gin'}", "--model_dir=new"]
    line = refused(trained, tmp_path, [*words, "--cache_dir=cache", f"--vocab={trained.folder / 'vocab'}"])
    assert "name no vocabulary to use it as it is" in line
    assert "there is no token cache at nothing" in refused(trained, tmp_path, [*words, "--cache_dir=nothing"])
