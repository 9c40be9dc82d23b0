"""A masked language model on packed rows of three corpora, from the command line to an exported model."""

import json
import pydoc_data.topics
import re

import pytest
from command_line import in_process
from model_folders import cut

from bertfam import cli

RUN_FILE = """\
include "objectives/mlm.gin"
include "runs/defaults.gin"

TRAIN_STEPS = 4
EVAL_EVERY = 2
CHECKPOINT_EVERY = 2
BATCH_SIZE = 8
Stage.length = 32
Execution.layers = "unroll"
LinearDecay.warmup_steps = 1
Run.eval_batches = None
Run.log_every = 1
BertConfig.num_layers = 1
BertConfig.hidden_size = 16
BertConfig.num_heads = 2
BertConfig.feed_forward_size = 32
BertConfig.max_length = 32
BertConfig.dropout_rate = 0.0
BertConfig.attention_dropout_rate = 0.0
TextData.vocabulary = "{folder}/vocab"
TextData.corpus = @Mixture()
TextData.rows = @Packed()
Mixture.corpora = (@one/TextFiles(), @many/TextFiles(), @json/TextFiles())
Mixture.names = ("one", "many", "json")
Mixture.rates = (2.0, 1.0, 1.0)
one/TextFiles.train = ("{folder}/one.txt",)
many/TextFiles.train = ("{folder}/many-*.txt",)
json/TextFiles.train = ("{folder}/lines.jsonl",)
json/TextFiles.input_format = "jsonl"
TextFiles.validation_fraction = 0.1
MODEL = @BertConfig()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixture")
    topics = [re.sub(r"\n\n+", "\n", text) for _, text in sorted(pydoc_data.topics.topics.items())]
    (folder / "one.txt").write_text("\n\n".join(topics[0::3]))
    for number in range(3):
        (folder / f"many-{number}.txt").write_text("\n\n".join(topics[1 + 3 * number :: 9]))
    (folder / "lines.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in topics[2::3]))
    (folder / "run.gin").write_text(RUN_FILE.format(folder=folder))
    assert cli.main(["vocab", f"--gin_file={folder / 'run.gin'}", "--size=300", f"--output={folder / 'vocab'}"]) == 0
    return folder


def run(*words):
    done = in_process(*words)
    assert done.returncode == 0, done.stderr
    return done


def losses(model_dir):
    lines = [json.loads(line) for line in (model_dir / "metrics.jsonl").read_text().splitlines()]
    return {(line["split"], line["step"]): line["loss"] for line in lines if line["split"] not in ("memory", "time")}


def test_from_three_corpora_to_an_exported_model(folder, caches_in_process, compilations):
    run("pretrain", f"--gin_file={folder / 'run.gin'}", f"--model_dir={folder / 'model'}")
    whole = losses(folder / "model")
    assert {("train", 1), ("train", 4), ("eval", 2), ("eval", 4)} <= whole.keys()
    manifest = json.loads((folder / "model" / "cache" / "cache.json").read_text())
    names = list(manifest["corpora"])
    assert names == ["one", "many", "json"]

    # Held-out loss by corpus and in total, whose mean is weighted by targets.
    by_corpus = {name: whole[f"eval/{name}", 4] for name in names}
    assert min(by_corpus.values()) < whole["eval", 4] < max(by_corpus.values())
    scores = json.loads(run("evaluate", f"--model_dir={folder / 'model'}", "--json").stdout)
    assert {name: scores["corpora"][name]["loss"] for name in names} == pytest.approx(by_corpus, rel=1e-6)
    assert scores["loss"] == pytest.approx(whole["eval", 4], rel=1e-6)
    assert {"perplexity", "mlm_accuracy"} <= scores["corpora"]["one"].keys()

    # The cycle of the corpora continues where it was.
    resumed = cut(folder / "model", folder / "resumed", 2)
    rest = run("pretrain", f"--model_dir={resumed}", "--gin.Run.eval_every=0")
    assert "resumed from step 2" in rest.stdout
    expected = {key: loss for key, loss in whole.items() if key[0] == "train"}
    assert {key: loss for key, loss in losses(resumed).items() if key[0] == "train"} == expected

    run("export", f"--model_dir={folder / 'model'}", f"--output={folder / 'export'}")
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    model, info = transformers.AutoModelForMaskedLM.from_pretrained(folder / "export", output_loading_info=True)
    assert type(model).__name__ == "BertForMaskedLM" and not any(info.values())


def test_another_mixture_than_the_cache_holds_is_refused(folder, tmp_path):
    assert cli.main(["cache", f"--gin_file={folder / 'run.gin'}", f"--output={tmp_path / 'cache'}"]) == 0
    done = in_process(
        "pretrain",
        f"--gin_file={folder / 'run.gin'}",
        f"--cache_dir={tmp_path / 'cache'}",
        '--gin.Mixture.names=("one", "some", "json")',
        f"--model_dir={tmp_path / 'model'}",
    )
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert "holds the corpora one, many, json, but Mixture.names are one, some, json" in done.stderr
    assert not (tmp_path / "model").exists()
