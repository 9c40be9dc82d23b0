"""ModernBERT by the command line: a run on packed rows, its export and the import of that."""

import json

import numpy as np
from command_line import in_process
from initial_state import initial_state, leaves
from model_folders import arrays
from same_weights import assert_same_weights

from bertfam import api, cli
from bertfam.config import load
from bertfam.training.model_dir import read_run

RUN = """\
include "models/modernbert_base.gin"
include "objectives/modernbert.gin"
include "runs/defaults.gin"

TRAIN_STEPS = 3
EVAL_EVERY = 0
CHECKPOINT_EVERY = 3
BATCH_SIZE = 4
Run.log_every = 1
Execution.layers = "unroll"
Stage.length = 32
ModernBertConfig.num_layers = 2
ModernBertConfig.hidden_size = 16
ModernBertConfig.num_heads = 2
ModernBertConfig.feed_forward_size = 12
ModernBertConfig.max_length = 64
ModernBertConfig.window = 8
ModernBertConfig.head_activation = "gelu"
ModernBertConfig.global_theta = 10_000.0
"""


def test_pretrain_export_import_fill(trained, tmp_path, capsys):
    (tmp_path / "run.gin").write_text(RUN)
    model, cache = tmp_path / "model", f"--cache_dir={trained.model_dir / 'cache'}"
    done = in_process("pretrain", f"--gin_file={tmp_path / 'run.gin'}", cache, f"--model_dir={model}")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (model / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if line["split"] == "train"]
    assert len(losses) == 3 and all(5.0 < loss < 6.5 for loss in losses)  # ln 300 is 5.70
    stage = json.loads((model / "plan.json").read_text())["stages"][0]
    run = read_run(model).sized(300)
    assert 0.5 < stage["flops_per_step"] / (4 * run.objective.flops(run.shape(0))) < 1  # packed rows have fewer pairs
    assert stage["attention"].startswith("xla: the fastest")

    assert cli.main(["export", f"--model_dir={model}", f"--output={tmp_path / 'theirs'}"]) == 0
    content = json.loads((tmp_path / "theirs/config.json").read_text())
    assert content["model_type"] == "modernbert" and content["architectures"] == ["ModernBertForMaskedLM"]
    assert cli.main(["import", f"--input={tmp_path / 'theirs'}", f"--output={tmp_path / 'back'}"]) == 0
    assert_same_weights(api.load(tmp_path / "back"), api.load(model))
    capsys.readouterr()
    assert cli.main(["fill", f"--model_dir={tmp_path / 'back'}", "--json", "the [MASK] of"]) == 0
    assert len(json.loads(capsys.readouterr().out)[0]["masks"]) == 1

    _assert_longer_rows_keep_the_optimizer(tmp_path, cache)


def _assert_longer_rows_keep_the_optimizer(folder, cache):
    """The second phase of the recipe has longer rows and another base of the rotary positions; no parameter depends on them."""
    long = RUN.replace("max_length = 64", "max_length = 96").replace("theta = 10_000.0", "theta = 160_000.0")
    (folder / "long.gin").write_text(long.replace("Stage.length = 32", "Stage.length = 96"))
    words = [f"--gin_file={folder / 'long.gin'}", f"--init_from={folder / 'model'}", "--init_optimizer", cache]
    out, state = initial_state("pretrain", *words, f"--model_dir={folder / 'long'}", initialise=False)
    assert "with the optimizer's moments" in out and "by repetition" not in out
    config = read_run(folder / "long").objective.model
    assert (config.max_length, config.global_theta, config.local_theta) == (96, 160_000, 10_000)
    old, new = arrays(folder / "model", 3), leaves({"params": state.params, "rest": {"opt_state": state.opt_state}})
    for name, value in new.items():
        theirs = old[name]
        assert np.array_equal(value[:300], theirs[:300]) if value.ndim else value == theirs, name


def test_phases_of_the_recipe():
    short, long = (load([f"runs/modernbert_base{end}.gin"]).build("Run") for end in ("", "_long"))
    assert (short.stages[-1].length, short.objective.model.global_theta) == (1024, 10_000)
    assert (long.stages[-1].length, long.objective.model.global_theta) == (8192, 160_000)
    assert long.optimizer.schedule.warmup_steps == 0
