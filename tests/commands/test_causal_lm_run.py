"""A GPT-2 by the command line: a run, perplexities beside those of its text, minimal pairs, before and after its export."""

import json
import math
import zipfile

import numpy as np
import pytest
from command_line import in_process, listing

from bertfam import cli
from bertfam.data.token_cache.cache import TokenCache

RUN = """\
include "models/gpt2_small.gin"
include "objectives/causal_lm.gin"
include "runs/defaults.gin"

TRAIN_STEPS = 4
EVAL_EVERY = 4
CHECKPOINT_EVERY = 4
BATCH_SIZE = 4
Run.log_every = 1
Run.inspect_every = 4
Run.sample_every = 4
Run.microbatches = 2
Run.keep_best = "lm_loss"
Stage.length = 32
CausalLm.z_loss = 1e-4
CausalLm.label_smoothing = 0.1
CausalLm.chunk = 12
Execution.layers = "unroll"
Gpt2Config.num_layers = 1
Gpt2Config.hidden_size = 16
Gpt2Config.num_heads = 2
Gpt2Config.max_length = 32
"""
PAIRS = {
    "agreement": [("The class statements are here.", "The class statements is here."), ("It works.", "It work.")],
    "order": [("a name of the list", "list the of name a"), ("same", "same")],
}


def lines(model_dir, split):
    found = [json.loads(line) for line in (model_dir / "metrics.jsonl").read_text().splitlines()]
    return [line for line in found if line["split"] == split]


@pytest.fixture(scope="module")
def run(trained, caches_in_process, tmp_path_factory):
    folder = tmp_path_factory.mktemp("causal_lm")
    text = trained.folder / "text/train.txt"
    (folder / "run.gin").write_text(RUN)
    words = ["--kind=byte_bpe", "--layout=gpt2", "--size=320"]
    assert cli.main(["vocab", *words, f"--input={text}", f"--output={folder / 'vocab'}"]) == 0
    words = [f"--gin_file={folder / 'run.gin'}", f"--input={text}", f"--vocab={folder / 'vocab'}"]
    words += [f"--validation_input={trained.folder / 'text/held-out.txt'}", f"--model_dir={folder / 'model'}"]
    assert cli.main(["check", *words[:-1]]) == 0
    done = in_process("pretrain", *words)
    assert done.returncode == 0, done.stderr
    (folder / "stdout.txt").write_text(done.stdout)
    with zipfile.ZipFile(folder / "pairs.zip", "w") as file:
        for name, pairs in PAIRS.items():
            fields = {"linguistics_term": "word_order"} if name == "order" else {}
            content = [json.dumps({"sentence_good": good, "sentence_bad": bad} | fields) for good, bad in pairs]
            file.writestr(f"data/{name}.jsonl", "\n".join(content))
    return folder


def evaluated(capsys, *words):
    capsys.readouterr()
    assert cli.main(["evaluate", "--json", *map(str, words)]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_run(run):
    train, (inspected,) = lines(run / "model", "train"), lines(run / "model", "inspect")
    assert [line["step"] for line in train] == [1, 2, 3, 4]
    assert all(5.2 < line["lm_loss"] < 6.4 for line in train)  # ln 320 is 5.77
    assert all(0 < line["z_loss"] < 0.01 for line in train)  # 1e-4 (ln 320)^2 is 0.0033
    assert {"gradient_norm/decoder/layers/00", "activation_rms/decoder/01", "update_norm/embeddings"} <= set(inspected)
    (sample,) = [line for line in (run / "stdout.txt").read_text().splitlines() if " sample  " in line]
    assert sample.startswith("step 4 sample  ") and sample.count(": ") >= 32  # a target and a guess at every place
    assert "stage 1      4 steps of 4 rows x 32 tokens (32 predicted): 128 tokens and " in (run / "stdout.txt").read_text()
    assert (
        "attention    xla: the fastest backend that supports float32 rows of 32 tokens on cpu" in (run / "stdout.txt").read_text()
    )


def test_perplexities_of_the_held_out_text(run, trained, capsys):
    found = evaluated(capsys, f"--model_dir={run / 'model'}", "--baselines")
    (logged,) = lines(run / "model", "eval")
    assert {name: found[name] for name in logged.keys() - {"split"}} == pytest.approx(
        {name: value for name, value in logged.items() if name != "split"}, rel=1e-6
    )
    documents = (trained.folder / "text/held-out.txt").read_text().split("\n\n")
    text = [" ".join(document.split("\n")) for document in documents]
    counts = TokenCache(run / "model/cache").counts("validation")
    nats = found["lm_loss"] * (counts["tokens"] + len(documents))
    assert found["perplexity"] == pytest.approx(math.exp(found["lm_loss"]))
    assert found["word_perplexity"] == pytest.approx(math.exp(nats / sum(len(one.split()) for one in text)))
    assert found["bits_per_byte"] == pytest.approx(nats / sum(len(one.encode()) for one in text) / math.log(2))
    assert found["byte_perplexity"] == pytest.approx(2 ** found["bits_per_byte"])
    assert found["unigram_loss"] < found["lm_loss"] + 0.5 and 0 < found["most_frequent_accuracy"] < 0.2
    # A sample of the batches stands for all.
    some = evaluated(capsys, f"--model_dir={run / 'model'}", "--batches=1")
    assert some["lm_loss"] != found["lm_loss"]
    assert math.log(some["word_perplexity"]) / some["lm_loss"] == pytest.approx(
        math.log(found["word_perplexity"]) / found["lm_loss"]
    )


def test_a_cache_of_an_earlier_version_has_no_counts_of_words(run, capsys):
    manifest = run / "model/cache/cache.json"
    whole = manifest.read_text()
    content = json.loads(whole)
    for counts in (split["counts"] for splits in content["corpora"].values() for split in splits.values()):
        del counts["words"], counts["bytes"]
    del content["digests"]
    manifest.write_text(json.dumps(content))
    digests = manifest.with_name("digests.json")  # which such a version did not write
    digests.rename(digests.with_suffix(".away"))
    capsys.readouterr()
    assert cli.main(["evaluate", "--json", f"--model_dir={run / 'model'}", "--batches=1"]) == 0
    output = capsys.readouterr()
    manifest.write_text(whole)
    digests.with_suffix(".away").rename(digests)
    assert {"word_perplexity", "bits_per_byte"} & json.loads(output.out).keys() == set()
    assert output.err.count("\n") == 2 and "cache has no counts of words and bytes" in output.err
    assert "cache has no digests" in output.err


def test_minimal_pairs_before_and_after_export(run, random_model, capsys):
    before = listing(run)
    found = evaluated(capsys, f"--model_dir={run / 'model'}", f"--blimp={run / 'pairs.zip'}")
    assert listing(run) == before
    assert (found["step"], found["pairs"], found["ties"], found["chance"]) == (4, 4, 1, 0.5)
    assert found["score"] == "log-probability after <|endoftext|>"
    assert found["phenomena"] == {"word_order": found["files"]["order"]["accuracy"]}
    assert found["files"].keys() == PAIRS.keys() and found["files"]["order"]["ties"] == 1
    assert found["accuracy"] == np.mean([one["accuracy"] for one in found["files"].values()])
    assert cli.main(["export", f"--model_dir={run / 'model'}", f"--output={run / 'theirs'}"]) == 0
    theirs = evaluated(capsys, f"--model_dir={run / 'theirs'}", f"--blimp={run / 'pairs.zip'}")
    assert theirs == found | {"step": None}

    # A masked model, the first pair of each file, as text.
    assert cli.main(["evaluate", f"--model_dir={random_model}", f"--blimp={run / 'pairs.zip'}", "--limit=1"]) == 0
    first, *files, title, phenomenon, last = capsys.readouterr().out.splitlines()
    assert title == "mean of the files of each phenomenon" and phenomenon.split()[0] == "word_order"
    assert first.endswith("pairs.zip, by pseudo-log-likelihood, each token masked in turn")
    assert [line.split()[0] for line in files] == list(PAIRS) and last.split()[0] == "all"
    assert last.endswith("of 2 pairs, 0 ties; chance is 0.5")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--limit=3"], "--limit is of minimal pairs and tasks: give --blimp=PATH or --task=NAME with it, or --batches=N"),
        (["--blimp=pairs.zip", "--limit=0"], "--limit=0 is less than 1"),
        (["--within_word"], "--within_word is of --blimp, which names the sentences: it does not go with held-out text"),
        (["--blimp=pairs.zip", "--within_word"], "--within_word is of pseudo-log-likelihoods, and a causal LM has"),
        (["--blimp=pairs.zip", "--baselines"], "--baselines is of held-out text: it does not go with --blimp, which names"),
        (["--blimp=none.zip"], "there is no none.zip: give BLiMP's zip file, or a folder of its files"),
        (["--blimp=pairs.zip", "--step=3"], "model/checkpoints has no step 3; it has 4"),
    ],
)
def test_mistakes(run, monkeypatch, capsys, words, message):
    monkeypatch.chdir(run)
    capsys.readouterr()
    assert cli.main(["evaluate", "--model_dir=model", *words]) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.count("\n") == 1 and message in output.err
