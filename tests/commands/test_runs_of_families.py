"""A few updates of families by the command line: pretrain, evaluate beside baselines, preview, export, import."""

import json

import numpy as np
import pytest
from command_line import bertfam

from bertfam import cli
from bertfam.interop import huggingface

SIZES = {"num_layers": 2, "hidden_size": 16, "num_heads": 2, "feed_forward_size": 32, "max_length": 24}
FAMILIES = {
    # objective, config, optimizer, what is exported, what transformers has no place for, metrics
    "albert": ("mlm_sop", "AlbertConfig", "Lamb", "AlbertForPreTraining", [], {"sop_accuracy", "sop_majority_accuracy"}),
    "structbert": (
        "mlm_structure", "BertConfig", "AdamW", "BertForMaskedLM", ["pooler", "structure_head"],
        {"shuffled_accuracy", "shuffled_unmoved_accuracy", "structure_accuracy", "structure_majority_accuracy"},
    ),
    "spanbert": ("mlm_sbo", "BertConfig", "AdamW", "BertForMaskedLM", ["sbo_head"], {"sbo_loss", "sbo_accuracy"}),
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_a_small_run(trained, tmp_path, family, capsys):
    objective, config, optimizer, architecture, left_out, scores = FAMILIES[family]
    sizes = "\n".join(f"{config}.{name} = {value}" for name, value in SIZES.items())
    (tmp_path / "run.gin").write_text(f"""
include "objectives/{objective}.gin"
include "runs/defaults.gin"
TRAIN_STEPS = 3
EVAL_EVERY = 3
CHECKPOINT_EVERY = 3
BATCH_SIZE = 8
MODEL = @{config}()
Run.optimizer = @{optimizer}()
Run.eval_batches = 2
Stage.length = 24
LinearDecay.warmup_steps = 1
{sizes}
""")
    model_dir, out = tmp_path / "model", tmp_path / "out"
    cache = f"--cache_dir={trained.model_dir / 'cache'}"
    done = bertfam("pretrain", f"--gin_file={tmp_path / 'run.gin'}", cache, f"--model_dir={model_dir}")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (model_dir / "metrics.jsonl").read_text().splitlines()]
    assert all(np.isfinite(line["loss"]) for line in lines if "loss" in line) and lines[-1]["step"] == 3

    assert cli.main(["evaluate", f"--model_dir={model_dir}", "--baselines", "--json", "--batches=2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert scores | {"mlm_loss", "mlm_accuracy", "unigram_loss"} <= found.keys()
    assert cli.main(["preview", f"--model_dir={model_dir}", "--json", f"--html={tmp_path / 'rows.html'}"]) == 0
    kinds = {prediction["kind"] for record in json.loads(capsys.readouterr().out) for prediction in record["predictions"]}
    assert ("shuffled" in kinds) == (family == "structbert") and (tmp_path / "rows.html").stat().st_size > 1000

    assert cli.main(["export", f"--model_dir={model_dir}", f"--output={out}"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert [line.split()[2].rstrip(":") for line in told[:-1]] == left_out and f": {architecture}, float32" in told[-1]
    assert cli.main(["import", f"--input={out}", f"--output={tmp_path / 'imported'}"]) == 0
    assert huggingface.read(out).ignored == ()


def test_marked_text(trained, tmp_path, capsys):
    """From names and numbers in plain text to masks of whole units; text without marks is refused."""
    (tmp_path / "marked.gin").write_text(f"""
TextData.corpus = @MarkedText()
MarkedText.corpus = @TextFiles()
MarkedText.marks = "names"
TextFiles.train = ("{trained.folder}/text/train.txt",)
""")
    units = ["--gin.BertMasking.choice=@Units()", "--gin.BertMasking.drawn_by='unit'", "--gin.Units.basic=0.0"]
    flags = [f"--gin_file={tmp_path / 'marked.gin'}", f"--vocab={trained.folder / 'vocab'}"]
    assert cli.main(["cache", *flags, f"--output={tmp_path / 'cache'}"]) == 0
    words = ["preview", "--length=48", "--examples=60", "--json", *units]
    capsys.readouterr()
    assert cli.main([*words, *flags, f"--cache_dir={tmp_path / 'cache'}"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert sum(len(record["predictions"]) for record in records) > 200 and "units" not in records[0]["features"]
    assert cli.main([*words, f"--cache_dir={trained.model_dir / 'cache'}"]) == 2
    assert "has no marks of phrases and entities, which Units masks" in capsys.readouterr().err
