"""`bertfam check`: what pretrain would say, before anything is built or compiled."""

import re

import pytest
from command_line import listing

from bertfam import cli

GOOD = ("--gin_file={folder}/run.gin", "--input={folder}/text/train.txt", "--vocab={folder}/vocab")


def words(trained, *flags):
    return ["check", *(flag.format(folder=trained.folder, model_dir=trained.model_dir) for flag in flags)]


def test_a_good_run(trained, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(words(trained, *GOOD)) == 0
    output = capsys.readouterr()
    assert output.err == ""
    lines = output.out.splitlines()
    assert [line.split()[0] for line in lines] == ["parameters", "devices", "state", *["stage", "attention"] * 2, "ok"]
    assert lines[3].startswith("stage 1      12 steps of 8 rows x 16 tokens (3 predicted): 128 tokens and ")
    # What was trained with the same settings says the same.
    assert [line for line in trained.stdout.splitlines() if line.startswith(("parameters", "stage "))] == [
        lines[0],
        lines[3],
        lines[5],
    ]
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_is_built_says_what_is_in_it(trained, capsys):
    assert cli.main(words(trained, "--gin_file={folder}/run.gin", "--cache_dir={model_dir}/cache")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "ok" and sum(line.startswith("train        76 documents, ") for line in lines) == 1


def test_show_gives_every_value_its_origin(trained, capsys):
    assert cli.main(words(trained, *GOOD, "--show", "--gin.SEED=5")) == 0
    lines = capsys.readouterr().out.splitlines()
    origins = {line.split("=")[0].strip(): line.rpartition("# ")[2] for line in lines if "  # " in line}
    assert origins["SEED"] == "--gin.SEED=5"
    assert origins["BertConfig.num_layers"] == f"{trained.folder}/run.gin:16"
    assert origins["TextData.vocabulary"] == f"--vocab={trained.folder}/vocab"
    assert re.search(r"runs/defaults.gin:\d+$", origins["Run.optimizer"])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "no configuration: give --gin_file=FILE (runs/quickstart.gin, say)"),
        (
            [*GOOD[:2]],
            "no vocabulary: train one with `bertfam vocab --output=DIR` and give it with --vocab=DIR",
        ),
        (
            [GOOD[0], GOOD[2]],
            "no text: give --input=GLOB, --task=NAME, or --cache_dir=DIR of a token cache that is built already",
        ),
        ([*GOOD, "--input=none.txt"], "no such file: none.txt (in {here})"),
        (
            [*GOOD, "--gin.MeshShape.tensor=2"],
            "a mesh of data=-1, fsdp=1, tensor=2 does not fit 1 device; the product of its axes must be their number",
        ),
        ([*GOOD, "--gin.Run.microbatches=3"], "batch size 8 is not divisible by 3 microbatches"),
        (
            [*GOOD, "--gin.BertConfig.hidden_sise=32"],
            "--gin.BertConfig.hidden_sise=32: BertConfig has no parameter hidden_sise; did you mean hidden_size?",
        ),
        (
            [GOOD[0], "--vocab={folder}/other-vocab", "--cache_dir={model_dir}/cache"],
            "{model_dir}/cache was built from something else (vocabulary was ",
        ),
    ],
)
def test_mistakes(trained, tmp_path, monkeypatch, capsys, flags, message):
    monkeypatch.chdir(tmp_path)
    before = listing(trained.folder)
    assert cli.main(words(trained, *flags)) == 2
    output = capsys.readouterr()
    expected = f"bertfam: error: {message.format(model_dir=trained.model_dir, here=tmp_path)}"
    assert output.out == "" and output.err.count("\n") == 1
    assert output.err.startswith(expected) and (message.endswith("was ") or output.err == f"{expected}\n")
    assert listing(trained.folder) == before and list(tmp_path.iterdir()) == []
