"""`bertfam check`: what pretrain would say, before anything is built or compiled."""

import functools
import json
import random
import re

import jax
import numpy as np
import pytest
from command_line import listing

from bertfam import cli
from bertfam.data import vocabularies
from bertfam.data.checks import sampling
from bertfam.errors import UserError

GOOD = ("--gin_file={folder}/run.gin", "--input={folder}/text/train.txt", "--vocab={folder}/vocab")

MLM = ("--gin.Run.objective=@Mlm()", "--gin.Mlm.model=@BertConfig()", "--gin.Mlm.execution=@Execution()")


def words(trained, *flags):
    names = {"{folder}": trained.folder, "{model_dir}": trained.model_dir}
    return ["check", *(functools.reduce(lambda text, name: text.replace(name, str(names[name])), names, flag) for flag in flags)]


def test_a_good_run(trained, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(words(trained, *GOOD, "--validation_input={folder}/text/held-out.txt")) == 0
    output = capsys.readouterr()
    # What the training said, of the same text.
    warned = [line for line in trained.stderr.splitlines() if line.startswith("bertfam: warning: ")]
    named = [line.replace(f"the train split of {trained.model_dir}/cache", "the training text") for line in warned]
    assert [re.sub(r"\d+%", "", line) for line in output.err.splitlines()] == [re.sub(r"\d+%", "", line) for line in named]
    lines = output.out.splitlines()
    assert [line.split()[0] for line in lines] == [
        "parameters",
        "devices",
        "state",
        "execution",
        *["stage", "attention"] * 2,
        "optimizer",
        "ok",
    ]
    assert lines[4].startswith("stage 1      12 steps of 8 rows x 16 tokens (3 predicted): 128 tokens and ")
    # What was trained with the same settings says the same.
    assert [line for line in trained.stdout.splitlines() if line.startswith(("parameters", "stage "))] == [
        lines[0],
        lines[4],
        lines[6],
    ]
    assert list(tmp_path.iterdir()) == []


def test_a_gin_file_that_a_later_one_overrides_in_all_is_named_in_a_warning(trained, tmp_path, capsys):
    (tmp_path / "before.gin").write_text("Run.log_every = 7\n")
    (tmp_path / "after.gin").write_text("Run.log_every = 3\nRun.sample_every = 3\n")
    before, after = (f"--gin_file={tmp_path}/{name}.gin" for name in ("before", "after"))
    assert cli.main(words(trained, "--model_dir={model_dir}", before, after)) == 0
    (line,) = (line for line in capsys.readouterr().err.splitlines() if "no effect" in line)
    assert f"{before} has no effect" in line and f"give it after {tmp_path}/after.gin" in line
    assert cli.main(words(trained, "--model_dir={model_dir}", after, before)) == 0
    assert "no effect" not in capsys.readouterr().err


def test_gin_file_without_an_objective_is_laid_over_the_configuration_of_the_folder(trained, tmp_path, capsys):
    (tmp_path / "over.gin").write_text("Run.log_every = 7\nRun.sample_every = 3\n")
    assert cli.main(words(trained, "--model_dir={model_dir}", f"--gin_file={tmp_path}/over.gin", "--show")) == 0
    shown = dict(
        line.partition("  # ")[0].strip().split(" = ", 1) for line in capsys.readouterr().out.splitlines() if "  # " in line
    )
    assert (shown["Run.log_every"], shown["Run.sample_every"], shown["BertConfig.hidden_size"]) == ("7", "3", "16")


def test_masks_of_a_run_file_that_names_no_noise(trained, tmp_path, capsys):
    """A file of one's own without objectives/*.gin: its masks are BERT's, and what it says of them is heeded."""
    lines = (trained.folder / "run.gin").read_text().splitlines()
    own = ["Run.objective = @MlmNsp()", "MlmNsp.model = %MODEL", "MlmNsp.execution = @Execution()", "BertMasking.rate = 0.5"]
    (tmp_path / "own.gin").write_text("\n".join([line for line in lines if 'include "objectives/' not in line] + own))
    assert cli.main(words(trained, *GOOD, "--show", f"--gin_file={tmp_path}/own.gin")) == 0
    assert "rows x 16 tokens (8 predicted)" in capsys.readouterr().out


def test_a_built_cache_reports_its_documents(trained, capsys):
    assert cli.main(words(trained, "--gin_file={folder}/run.gin", "--cache_dir={model_dir}/cache")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "ok" and sum(line.startswith("train        76 documents, ") for line in lines) == 1


def test_show_gives_every_value_its_origin(trained, capsys):
    assert cli.main(words(trained, *GOOD, "--show", "--gin.SEED=5", "--gin.short/Stage.length=12")) == 0
    lines = capsys.readouterr().out.splitlines()
    origins = {line.split("=")[0].strip(): line.rpartition("# ")[2] for line in lines if "  # " in line}
    assert origins["SEED"] == "--gin.SEED=5"
    assert origins["BertConfig.num_layers"] == f"{trained.folder}/run.gin:16"
    assert origins["TextData.vocabulary"] == f"--vocab={trained.folder}/vocab"
    assert re.search(r"runs/defaults.gin:\d+$", origins["Run.optimizer"])
    # Of a macro its own place, of a scope the value in it.
    assert re.search(r"runs/defaults.gin:\d+$", origins["Run.seed"]) and origins["TRAIN_STEPS"] == f"{trained.folder}/run.gin:4"
    assert origins["short/Stage.length"] == "--gin.short/Stage.length=12"
    assert origins["long/Stage.length"] == f"{trained.folder}/run.gin:13"


def test_a_vocabulary_without_a_mask_token_is_refused(trained, tmp_path, monkeypatch, capsys):
    """All other mistakes are in the catalogue."""
    monkeypatch.chdir(tmp_path)
    made = ["vocab", "--input={folder}/text/held-out.txt", "--kind=unigram", "--layout=t5", "--size=300", "--output=maskless"]
    assert cli.main(words(trained, *made)[1:]) == 0
    capsys.readouterr()
    before = listing(trained.folder), listing(tmp_path)
    assert cli.main(words(trained, "--gin.TextData.rows=@Chunks()", *GOOD[:2], "--vocab=maskless", *MLM)) == 2
    assert capsys.readouterr() == (
        "",
        "bertfam: error: maskless: the vocabulary has no mask token, which BertMasking requires: choose another vocabulary "
        "(bertfam vocab --layout=roberta has all)\n",
    )
    assert (listing(trained.folder), listing(tmp_path)) == before


@pytest.mark.parametrize("command", [["check"], ["pretrain", "--model_dir=model"]])
def test_a_jaxlib_that_is_too_slow(trained, tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax.lib, "__version__", "0.10.2")
    assert cli.main([*command, *words(trained, *GOOD)[1:]]) == 2
    assert capsys.readouterr().err.startswith("bertfam: error: jaxlib 0.10.2 on a GPU is hundreds of times too slow")
    assert not list(tmp_path.iterdir())


CHUNKS = ["--gin_file={folder}/run.gin", "--gin.TextData.rows=@Chunks()", *MLM]  # rows that fit any text
NO_HELD_OUT = "the text has too few held-out documents: nothing is evaluated; give a new run some by --validation_input"


def warnings(capsys, flags):
    """The warnings of a good check, and what it prints as JSON."""
    assert cli.main([*flags, "--json"]) == 0
    output = capsys.readouterr()
    lines = output.err.splitlines()
    assert all(line.startswith("bertfam: warning: ") for line in lines)
    result = json.loads(output.out)
    assert [line.removeprefix("bertfam: warning: ") for line in lines] == result["warnings"]
    return result["warnings"], result


def test_all_that_pretrain_warns_of(trained, tmp_path, monkeypatch, capsys):
    """The same lines with text, with a cache of it, and from pretrain."""
    (tmp_path / "lines.txt").write_text("\n\n".join(f"The {number} cats sat on the mats." for number in range(60)))
    text = [f"--input={tmp_path / 'lines.txt'}", "--vocab={folder}/vocab", "--gin.TextFiles.validation_fraction=0.0"]
    run = ["--gin_file={folder}/run.gin", "--gin.LinearDecay.warmup_steps=30", "--gin.Run.sample_every=5"]
    run.append("--gin.LinearDecay.peak=3")
    cached = [f"--cache_dir={tmp_path / 'cache'}"]
    expected = [
        r"100% of the sentence pairs of (.*) at length 16 have a random second sentence in every epoch.*",
        r"100% of the sentence pairs of (.*) at length 24 have a random second sentence in every epoch.*",
        r"LinearDecay.warmup_steps 30 is not less than the 24 steps: the peak is never reached",
        r"LinearDecay.peak is 3: with a rate above 0.1 an update of AdamW is larger than the weights.*",
        re.escape(NO_HELD_OUT.replace("evaluated", "evaluated or sampled")),
    ]
    found, _ = warnings(capsys, words(trained, *run, *text))
    assert all(any(re.fullmatch(line, other) for other in found) for line in expected) and len(found) == 5
    assert "of the training text at length 16" in "".join(found)
    assert cli.main(["cache", *words(trained, *text)[1:], f"--output={tmp_path / 'cache'}"]) == 0
    capsys.readouterr()
    of_cache, result = warnings(capsys, words(trained, *run, *cached))
    assert all(any(re.fullmatch(line, other) for other in of_cache) for line in expected) and len(of_cache) == 5
    assert result["plan"]["data"]["train"]["documents"] == 60

    assert cli.main(["preview", *words(trained, *run, *text)[1:], "--examples=1", "--stat_rows=1"]) == 0
    assert expected[-1].replace("\\", "") in capsys.readouterr().err

    # It warns before it makes its folder, which here it does not.
    def no_folder(*_):
        raise UserError("no folder")

    monkeypatch.setattr("bertfam.commands.pretrain_run.prepare_folder", no_folder)
    assert cli.main(["pretrain", *words(trained, *run, *cached)[1:], f"--model_dir={tmp_path / 'model'}"]) == 2
    *lines, error = capsys.readouterr().err.splitlines()
    assert [line.removeprefix("bertfam: warning: ") for line in lines] == of_cache and error == "bertfam: error: no folder"


def test_text_that_does_not_fit(trained, tmp_path, capsys):
    """Unknown tokens, few documents and padding, counted anew from the cache's tokens."""
    lines = [line for line in (trained.folder / "text/train.txt").read_text().splitlines() if 20 < len(line) < 60]
    texts = ["\n".join(lines[3 * number : 3 * number + 3]) + " ∰∰ ∯∯" for number in range(40)]
    (tmp_path / "few.txt").write_text("\n\n".join(texts))
    (tmp_path / "empty.txt").touch()
    flags = ["--gin_file={folder}/run.gin", *MLM, f"--input={tmp_path / '*.txt'}", "--vocab={folder}/vocab"]
    flags += ["--gin.long/Stage.length=200", "--gin.BertConfig.max_length=200", "--gin.EVAL_EVERY=0"]
    flags.append("--gin.TextFiles.validation_fraction=0.0")
    found, _ = warnings(capsys, words(trained, *flags, "--gin.TextData.rows=@DocSentences()"))
    vocabulary = vocabularies.load(trained.folder / "vocab")
    ids = [np.concatenate(vocabulary.encode_batch(text.split("\n"))) for text in texts]
    unknown = np.mean(np.concatenate(ids) == vocabulary.token_ids.unk)
    assert unknown > 0.01 and max(map(len, ids)) <= 198
    padding = 1 - (np.mean([len(found) for found in ids]) + 2) / 200
    half = int(np.median([len(found) + 2 for found in ids]))
    assert found == [
        f"{unknown:.1%} of the tokens of the training text are unknown to the vocabulary {trained.folder}/vocab (more than 1%): "
        "train one on this text with `bertfam vocab`, or check --encoding",
        "the training text has 40 documents (fewer than 50): little is held out of so few, and random second sentences repeat; "
        "blank lines separate documents, unless --input_format says otherwise",
        f"{padding:.0%} of the positions in rows of 200 tokens of the training text are padding (more than 33%), as half of the "
        f"rows have at most {half} tokens: pack them (--gin.TextData.rows=@Packed() --gin.Packed.rows=@DocSentences()), or give "
        "shorter rows (Stage.length)",
    ]
    packed = ["--gin.TextData.rows=@Packed()", "--gin.Packed.rows=@DocSentences()"]
    of_packed, _ = warnings(capsys, words(trained, *flags, *packed))
    assert of_packed == found[:2]


def test_no_more_than_a_sample_is_read(trained, tmp_path, monkeypatch, capsys):
    """What is wrong far behind the beginning of a file is not seen, and the sample is called one."""
    monkeypatch.setattr(sampling, "CHARACTERS", 200_000)
    words_ = (trained.folder / "text/held-out.txt").read_text().split()
    text = "\n\n".join(f"{' '.join(words_[:250])}\nNumber ∰ {'∯ ' * 20} {number}." for number in range(1000))
    (tmp_path / "long.txt").write_text(text)
    with open(tmp_path / "long.txt", "ab") as file:
        file.write(b"\n\n\xff\xfe is no UTF-8\n")
    flags = [*CHUNKS, f"--input={tmp_path / 'long.txt'}", "--vocab={folder}/other-vocab"]
    flags.append("--validation_input={folder}/text/held-out.txt")
    (line,), _ = warnings(capsys, words(trained, *flags))
    assert "% of the tokens of a sample of the training text are unknown to the vocabulary" in line
    assert cli.main(words(trained, *flags, "--duplicates")) == 2
    assert "not UTF-8" in capsys.readouterr().err


def test_duplicates_of_held_out_documents(trained, tmp_path, capsys):
    """Exact ones whatever their case and spaces, near ones, and shared passages; from text and from a cache."""
    generator = random.Random(0)
    letters = sorted({word for word in re.findall("[a-z]{4,}", (trained.folder / "text/train.txt").read_text())})
    sentence = lambda: " ".join(generator.choices(letters, k=12)) + "."  # noqa: E731
    held_out = [[sentence() for _ in range(20)] for _ in range(10)]
    training = [[sentence() for _ in range(20)] for _ in range(40)]
    training.append([line.upper() for line in held_out[3]])  # exact
    training.append([" ".join([*held_out[3]])])  # exact
    training.append(held_out[5][:15] + [sentence()])  # three quarters of it
    training.append([sentence(), *held_out[7][:4], sentence()])  # a fifth of it
    for name, texts in (("train", training), ("held-out", held_out)):
        (tmp_path / f"{name}.txt").write_text("\n\n".join("\n".join(text) for text in texts))
    text = [f"--input={tmp_path / 'train.txt'}", f"--validation_input={tmp_path / 'held-out.txt'}", "--vocab={folder}/vocab"]
    assert cli.main(["cache", *words(trained, *text)[1:], f"--output={tmp_path / 'cache'}"]) == 0
    capsys.readouterr()
    for given, places in (
        (text, (str(tmp_path / "held-out.txt"), str(tmp_path / "train.txt"))),
        (
            [f"--cache_dir={tmp_path / 'cache'}"],
            [f"the {split} split of {tmp_path / 'cache'}" for split in ("validation", "train")],
        ),
    ):
        flags = words(trained, *CHUNKS, *given, "--duplicates")
        (few, line), result = warnings(capsys, flags)
        found = result["duplicates"]
        assert "has 44 documents" in few
        assert (found["held_out"], found["exact"], found["near"]) == (10, 1, 1)
        # About 1 + 3/4 + 1/5 documents of 10; one passage in 16 of some 15,000 is looked at.
        assert found["passages"] == pytest.approx(0.195, abs=0.03)
        assert (found["example"]["held_out"], found["example"]["training"]) == tuple(places)
        assert found["example"]["begins"].lower()[:30] == held_out[3][0][:30]
        assert line.startswith("2 of 10 held-out documents (20.0%) are in the training text too, 1 of them nearly: ")
        assert line.endswith(f" and is in {places[1]}")
        assert cli.main(flags) == 0
        assert "duplicates   1 exact and 1 near of 10 held-out documents; " in capsys.readouterr().out
