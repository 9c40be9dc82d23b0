"""`bertfam evaluate`: the numbers that the run itself wrote, on any devices, beside baselines."""

import json
import re
import shutil

import numpy as np
import pytest
import xla
from command_line import bertfam, listing, replaced

from bertfam import cli
from bertfam.data import vocabularies
from bertfam.data.token_cache.cache import TokenCache
from bertfam.training.model_dir import read_run

METRICS = ["mlm_accuracy", "mlm_loss", "nsp_accuracy", "nsp_loss"]


def scores(capsys, *flags):
    assert cli.main(["evaluate", "--json", *flags]) == 0
    return json.loads(capsys.readouterr().out)


def assert_scores_of_the_run(found, trained):
    """They are those of the last evaluation in metrics.jsonl."""
    lines = [json.loads(line) for line in (trained.model_dir / "metrics.jsonl").read_text().splitlines()]
    expected = [line for line in lines if line["split"] == "eval"][-1]
    assert expected.pop("split") == "eval" and found.pop("split") == "validation"
    counts = found.pop("targets")
    assert found.pop("rows") == counts.pop("nsp") and list(counts) == ["mlm"]
    assert found.pop("perplexity") == pytest.approx(np.exp(found["mlm_loss"]))
    assert found == pytest.approx(expected, rel=1e-6) and found["step"] == 24


def test_the_scores_are_those_of_the_run(trained, capsys):
    before = listing(trained.model_dir)
    found = scores(capsys, f"--model_dir={trained.model_dir}")
    assert_scores_of_the_run(found, trained)
    assert listing(trained.model_dir) == before


def test_on_several_devices_also_where_they_divide_no_batch(trained, tmp_path):
    """In a process of its own, which imports neither TensorFlow nor seqio nor torch."""
    modules = tmp_path / "modules.json"
    environment = {"IMPORT": 1, "MODULES": modules, **xla.device_environment(3)}
    done = bertfam("evaluate", f"--model_dir={trained.model_dir}", "--json", **environment)
    assert done.returncode == 0, done.stderr
    assert_scores_of_the_run(json.loads(done.stdout), trained)
    assert not {"tensorflow", "seqio", "torch"} & set(json.loads(modules.read_text()))


def test_another_step_split_and_number_of_batches(trained, capsys):
    model_dir = f"--model_dir={trained.model_dir}"
    early = scores(capsys, model_dir, "--step=5", "--batches=3")
    late = scores(capsys, model_dir, "--step=24", "--batches=3")
    assert (early["step"], late["step"]) == (5, 24) and late["mlm_loss"] < early["mlm_loss"] - 0.1
    train = scores(capsys, model_dir, "--split=train", "--batches=3")
    assert train["split"] == "train" and abs(train["mlm_loss"] - late["mlm_loss"]) > 1e-3


def test_baselines_from_the_rows_themselves(trained, capsys):
    found = scores(capsys, f"--model_dir={trained.model_dir}", "--baselines")
    run, cache = read_run(trained.model_dir), TokenCache(trained.model_dir / "cache")
    vocabulary = vocabularies.load(trained.folder / "vocab")
    held_out = run.data.held_out(cache, vocabulary.token_ids, 24, 8)
    rows = held_out.source.rows(0, 0, len(held_out.source.sequence))  # all rows, one batch
    used = rows["masked_loss_weights"] > 0
    targets = rows["masked_target_tokens"][used]
    counts = np.bincount(cache.documents("train", "text").tokens, minlength=300).astype(float)
    assert found["unigram_loss"] == pytest.approx(-np.log((counts[targets] + 1) / (counts + 1).sum()).mean(), rel=1e-6)
    assert found["most_frequent_accuracy"] == pytest.approx((targets == counts.argmax()).mean(), rel=1e-6)
    assert found["rows"] == len(held_out.source.sequence) and found["targets"] == {"mlm": used.sum(), "nsp": found["rows"]}
    labels = rows["next_sentence_labels"]
    assert found["nsp_majority_accuracy"] == pytest.approx(max(labels.mean(), 1 - labels.mean()), rel=1e-6)


def test_huggingface_folder_has_the_scores_of_the_run(trained, tmp_path, capsys):
    """Its default rows, sentence pairs of at most 128 tokens, are those of the run here."""
    folder, cache = tmp_path / "exported", f"--cache_dir={trained.model_dir / 'cache'}"
    assert cli.main(["export", f"--model_dir={trained.model_dir}", f"--output={folder}"]) == 0
    capsys.readouterr()
    expected, found = (scores(capsys, f"--model_dir={path}", cache) for path in (trained.model_dir, folder))
    assert (expected.pop("step"), found.pop("step")) == (24, None)
    assert found.pop("targets") == expected.pop("targets") and found.pop("split") == expected.pop("split")
    assert found == pytest.approx(expected, rel=1e-5)
    for flag, named in ((), "--cache_dir"), (["--step=24"], "--step"), (["--average"], "--average"):
        assert cli.main(["evaluate", f"--model_dir={folder}", *flag]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert named in line and str(folder) in line


def test_text_output(trained, capsys):
    assert cli.main(["evaluate", f"--model_dir={trained.model_dir}", "--batches=1"]) == 0
    first, rows, targets, *rest = capsys.readouterr().out.splitlines()
    assert rows == "8 rows of 24 tokens in 1 batch of 8"
    assert re.fullmatch(r"targets: \d+ mlm, 8 nsp", targets)
    assert first == f"step 24 of {trained.model_dir} on the validation split of {trained.model_dir}/cache"
    assert [line.split()[0] for line in rest] == ["loss", *METRICS, "perplexity"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--batches=0"], "--batches=0 is less than 1"),
        (["--step=7"], "{model_dir}/checkpoints has no step 7; it has 5, 10, 15, 20, 24"),
        (["--split=test"], "--split=test is not one of the choices; one of validation, train"),
        (["--cache_dir=empty"], "empty holds no token cache (no cache.json); build one with `bertfam cache`"),
        (["--cache_dir=other"], "other was built with another vocabulary than {model_dir}; build one with its vocab/"),
        (
            ["--cache_dir=one"],
            "the validation split of one has too few documents; build a cache of other text by `bertfam cache "
            "--vocab={model_dir}/vocab` and give it with --cache_dir",
        ),
        (
            ["--model_dir=empty"],
            "empty is neither a model folder (config.gin) nor a Hugging Face folder (config.json)",
        ),
    ],
)
def test_mistakes(trained, tmp_path, monkeypatch, capsys, flags, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    text = f"--input={trained.folder / 'text/held-out.txt'}"
    for name, vocabulary in (("other", "other-vocab"), ("one", "vocab")):
        if flags == [f"--cache_dir={name}"]:
            shutil.rmtree(name, ignore_errors=True)
            assert cli.main(["cache", text, f"--vocab={trained.folder / vocabulary}", f"--output={name}"]) == 0
    capsys.readouterr()
    before = listing(tmp_path) | listing(trained.model_dir)
    assert cli.main(replaced(["evaluate", f"--model_dir={trained.model_dir}"], flags)) == 2
    output = capsys.readouterr()
    assert (output.out, output.err) == ("", f"bertfam: error: {message.format(model_dir=trained.model_dir)}\n")
    assert listing(tmp_path) | listing(trained.model_dir) == before
