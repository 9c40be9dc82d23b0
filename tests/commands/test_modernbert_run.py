"""ModernBERT by the command line: a run on packed rows, its export and the import of that."""

import json

from command_line import in_process
from same_weights import assert_same_weights

from bertfam import api, cli

RUN = """\
include "models/modernbert_base.gin"
include "objectives/modernbert.gin"
include "runs/defaults.gin"

TRAIN_STEPS = 3
EVAL_EVERY = 0
CHECKPOINT_EVERY = 3
BATCH_SIZE = 4
Run.log_every = 1
Stage.length = 32
ModernBertConfig.num_layers = 2
ModernBertConfig.hidden_size = 16
ModernBertConfig.num_heads = 2
ModernBertConfig.feed_forward_size = 12
ModernBertConfig.max_length = 64
ModernBertConfig.window = 8
ModernBertConfig.head_activation = "gelu"
"""


def test_pretrain_export_import_fill(trained, tmp_path, capsys):
    (tmp_path / "run.gin").write_text(RUN)
    model, cache = tmp_path / "model", f"--cache_dir={trained.model_dir / 'cache'}"
    done = in_process("pretrain", f"--gin_file={tmp_path / 'run.gin'}", cache, f"--model_dir={model}")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (model / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if line["split"] == "train"]
    assert len(losses) == 3 and all(5.0 < loss < 6.5 for loss in losses)  # ln 300 is 5.70
    assert json.loads((model / "plan.json").read_text())["stages"][0]["attention"].startswith("xla: the fastest")

    assert cli.main(["export", f"--model_dir={model}", f"--output={tmp_path / 'theirs'}"]) == 0
    content = json.loads((tmp_path / "theirs/config.json").read_text())
    assert content["model_type"] == "modernbert" and content["architectures"] == ["ModernBertForMaskedLM"]
    assert cli.main(["import", f"--input={tmp_path / 'theirs'}", f"--output={tmp_path / 'back'}"]) == 0
    assert_same_weights(api.load(tmp_path / "back"), api.load(model))
    capsys.readouterr()
    assert cli.main(["fill", f"--model_dir={tmp_path / 'back'}", "--json", "the [MASK] of"]) == 0
    assert len(json.loads(capsys.readouterr().out)[0]["masks"]) == 1
