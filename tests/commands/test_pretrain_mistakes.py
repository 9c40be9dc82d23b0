"""Mistakes in what is given to `pretrain`: one exact line, exit code 2, and nothing is written."""

import pytest
from command_line import listing

from bertfam import cli


@pytest.fixture
def folder(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").touch()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "cache.json").write_text("{}")
    (tmp_path / "file").write_text("")
    return tmp_path


def refused(words, folder, capfd):
    """The line on stderr."""
    before = listing(folder)
    try:
        status = cli.main(words)
    except SystemExit as stopped:  # a child process has said why
        status = stopped.code
    output = capfd.readouterr()
    assert (status, output.out) == (2, "")
    assert listing(folder) == before
    assert output.err.startswith("bertfam: error: ") and output.err.count("\n") == 1
    return output.err.removeprefix("bertfam: error: ").rstrip("\n")


BAD_FLAGS = {
    "--gin.BertConfig.num_layer=3": (
        "--gin.BertConfig.num_layer=3: BertConfig has no parameter num_layer; did you mean num_layers?"
    ),
    "--gin.TRAIN_STEP=3": "--gin.TRAIN_STEP=3: nothing refers to the macro TRAIN_STEP; did you mean TRAIN_STEPS?",
    "--gin.Stage.batch_size=0": ("Stage: batch_size 0 is less than 1 (Stage.batch_size from --gin.Stage.batch_size=0)"),
    "--vocab=nowhere": "nowhere is no folder: a vocabulary is a folder with tokenizer.json, vocab.txt, spiece.model, or "
    "vocab.json and merges.txt in it",
    "--input=none.txt": "no such file: none.txt (in {folder})",
    "--task=x": "--input and --task both say where the text comes from; give one of them",
    "--cache_dir=other": "other holds no token cache (no cache.json); build one with `bertfam cache`",
    "--cache_dir=damaged": "damaged/cache.json is damaged ('format'); delete damaged and build it again",
    "--model_dir=file": "--model_dir=file is a file; name a folder",
    "--model_dir=.": "--model_dir=. holds damaged and no run (no config.gin): name a new folder",
    "--model_dir=file/model": "file/model/cache cannot be written: {folder}/file is no folder; name another",
    "--gin.MeshShape.data=3": (
        "a mesh of data=3, fsdp=1, tensor=1 does not fit 1 device; the product of its axes must be their number"
    ),
    "--gin.long/Stage.length=32": (
        "Run: stages[1]: Stage.length 32 is more than BertConfig.max_length 24; shorten the rows, or enlarge the model's table "
        "of positions (Run.stages from {run_file}:10)"
    ),
    "--gin.short/Stage.length=32": (
        "Run: stages[0]: Stage.length 32 is more than BertConfig.max_length 24; shorten the rows, or enlarge the model's table "
        "of positions (Run.stages from {run_file}:10)"
    ),
    "--gin.long/Stage.length=4": (
        "Run: stages[1]: length 4 is too short for a sentence pair; use at least 5 (Run.stages from {run_file}:10)"
    ),
    "--gin.Run.microbatches=3": "batch size 8 is not divisible by 3 microbatches",
    "--gin.BertConfig.num_heads=3": (
        "BertConfig.hidden_size = 16 is not a multiple of num_heads = 3: change one of them (BertConfig.hidden_size from "
        "{run_file}:17, BertConfig.num_heads from --gin.BertConfig.num_heads=3)"
    ),
    "--gin.BertConfig.vocab_size=1000": (
        "BertConfig.vocab_size is 1000 and the vocabulary has 300 tokens; leave vocab_size out, or give the vocabulary that it "
        "was meant for"
    ),
}


@pytest.mark.parametrize("flag", BAD_FLAGS)
def test_a_bad_value(trained, folder, capfd, flag):
    message = BAD_FLAGS[flag].format(folder=folder, run_file=trained.folder / "run.gin")
    assert refused(trained.pretrain("model", flag), folder, capfd) == message


@pytest.mark.parametrize(
    ("left_out", "message"),
    [
        ("gin_file", "no configuration: give --gin_file=FILE (runs/quickstart.gin, say)"),
        ("vocab", "no vocabulary: train one with `bertfam vocab --output=DIR` and give it with --vocab=DIR"),
        ("input", "no text: give --input=GLOB, --task=NAME, or --cache_dir=DIR of a token cache that is built already"),
        ("model_dir", "the following arguments are required: --model_dir (see bertfam pretrain --help)"),
    ],
)
def test_a_flag_that_is_left_out(trained, folder, capfd, left_out, message):
    # Held-out text alone is a value of what is not there.
    gone = (f"--{left_out}=", "--validation_input=") if left_out == "input" else (f"--{left_out}=",)
    words = [word for word in trained.pretrain("model") if not word.startswith(gone)]
    assert refused(words, folder, capfd) == message


def test_a_cache_of_something_else(trained, folder, capfd):
    cache = trained.model_dir / "cache"
    message = refused(trained.pretrain("model", f"--cache_dir={cache}", f"--vocab={trained.folder}/other-vocab"), folder, capfd)
    assert message.startswith(f"{cache} was built from something else (vocabulary was ")
    text = folder / "other.txt"
    text.write_text((trained.folder / "text/train.txt").read_text() + "\nOne more sentence.\n")
    words = [word for word in trained.pretrain("model", f"--cache_dir={cache}") if not word.startswith("--input=")]
    assert refused([*words, f"--input={text}"], folder, capfd) == (
        f'{cache} was built from something else (corpora.text.train[train.txt].name was "train.txt" and is "other.txt" now); '
        "delete it to build it anew, choose another folder, or name no text to use it as it is"
    )
