"""A run of phases on real files, its commands, and a branch from one of its checkpoints."""

import json
import re

import numpy as np
import pytest
from command_line import in_process, listing
from model_folders import arrays, cut, metrics

from bertfam import cli
from bertfam.training.model_dir import open_model

RUN_FILE = """\
include "objectives/mlm.gin"
include "runs/defaults.gin"

TRAIN_STEPS = 4
EVAL_EVERY = 4
CHECKPOINT_EVERY = 2
BATCH_SIZE = 4
SEED = 3

Run.stages = (@causal/Stage(), @masked/Stage(), @late/Stage())
Run.eval_batches = None
Run.log_every = 4
Run.keep_checkpoints = None
Run.average_decay = 0.5
Stage.length = 16
causal/Stage.objective = @causal/CausalAndMasked()
CausalAndMasked.model = %MODEL
CausalAndMasked.causal_share = 1.0
late/Stage.corruption = @late/BertMasking()
late/BertMasking.rate = 0.4
late/Stage.frozen = ("mlm_head",)
late/Stage.schedule = @late/ConstantRate()
late/ConstantRate.peak = 1e-3
late/ConstantRate.warmup_steps = 0
BertConfig.num_layers = 1
BertConfig.hidden_size = 8
BertConfig.num_heads = 2
BertConfig.feed_forward_size = 16
BertConfig.max_length = 24
LinearDecay.peak = 1e-2
LinearDecay.warmup_steps = 2
MODEL = @BertConfig()
"""


@pytest.fixture(scope="module")
def initialisation():
    """Keep the model's own initial values, with which rounding gives each parameter of the encoder a gradient."""


@pytest.fixture(scope="module")
def phases(trained, tmp_path_factory):
    """Train the run of three phases; return its folder, MODEL_DIR and the words of the command without --model_dir."""
    folder = tmp_path_factory.mktemp("phases")
    (folder / "phases.gin").write_text(RUN_FILE)
    words = ["pretrain", f"--gin_file={folder / 'phases.gin'}", f"--cache_dir={trained.model_dir / 'cache'}"]
    done = in_process(*words, f"--model_dir={folder / 'model'}")
    assert done.returncode == 0, done.stderr
    (folder / "stdout.txt").write_text(done.stdout)
    return folder / "model", words


def test_the_plan_has_the_settings_of_each_phase(phases):
    model_dir, _ = phases
    lines = (model_dir.parent / "stdout.txt").read_text().splitlines()
    stages = [index for index, line in enumerate(lines) if line.startswith("stage ")]
    own = [lines[start + 1 : stop] for start, stop in zip(stages, [*stages[1:], len(lines)], strict=True)]
    assert own[0][0].startswith("objective    CausalAndMasked(model=BertConfig(") and "causal_share=1.0" in own[0][0]
    assert own[1][0].startswith("attention ")
    assert own[2][:3] == [
        "corruption   BertMasking(rate=0.4)",
        "schedule     ConstantRate(peak=0.001, warmup_steps=0)",
        "frozen       mlm_head",
    ]
    assert json.loads((model_dir / "plan.json").read_text())["stages"][2]["settings"]["frozen"] == "mlm_head"
    lines = [line for line in metrics(model_dir) if line["split"] == "train"]
    assert {line["step"]: ("causal_loss" in line, "mlm_loss" in line) for line in lines} == {
        step: (step <= 4, step > 4) for step in (2, 4, 6, 8, 10, 12)
    }
    assert [line["learning_rate"] for line in lines] == pytest.approx([1e-2, 1e-2 * 2 / 3, 1e-2 / 3, 0, 1e-3, 1e-3])


@pytest.mark.parametrize("step", [6, 10])
def test_a_run_resumes_within_a_phase(phases, tmp_path, step):
    model_dir, words = phases
    copy = cut(model_dir, tmp_path / "model", step)
    done = in_process(*words, f"--model_dir={copy}")
    assert done.returncode == 0, done.stderr
    _assert_equal(arrays(copy, 12), arrays(model_dir, 12))
    assert metrics(copy) == metrics(model_dir)


def test_a_frozen_part_keeps_its_parameters_moments_and_average(phases):
    model_dir, _ = phases
    before, after = arrays(model_dir, 8), arrays(model_dir, 12)
    equal = {name for name in before if np.array_equal(before[name], after[name])}
    heads = {name for name in before if "mlm_head" in name}
    assert len(heads) == 4 * 5 and equal >= heads and not any("encoder" in name for name in equal)


def test_evaluation_of_a_checkpoint_is_that_of_its_phase(phases, capsys):
    model_dir, _ = phases
    scores = {}
    for step in (4, 12):
        assert cli.main(["evaluate", f"--model_dir={model_dir}", f"--step={step}", "--json"]) == 0
        scores[step] = json.loads(capsys.readouterr().out)
    assert scores[4].keys() >= {"causal_loss"} and "mlm_loss" in scores[12]
    held_out = {line["step"]: line for line in metrics(model_dir) if line["split"] == "eval"}
    assert scores[12]["mlm_loss"] == pytest.approx(held_out[12]["mlm_loss"], rel=1e-5)
    opened = open_model(model_dir, 4)
    assert type(opened.run.objective).__name__ == "CausalAndMasked" and opened.params.keys() == {"encoder", "mlm_head"}


def test_check_preview_and_replay_read_phases(phases, capsys):
    model_dir, _ = phases
    assert cli.main(["check", f"--model_dir={model_dir}"]) == 0
    assert "frozen       mlm_head" in capsys.readouterr().out
    rates = {}
    for step in (5, 9):
        assert cli.main(["preview", f"--model_dir={model_dir}", f"--step={step}", "--json", "--examples=40"]) == 0
        rows = json.loads(capsys.readouterr().out)
        rates[step] = json.dumps(rows).count('"masked"')
    assert rates[9] > 1.5 * rates[5]
    assert cli.main(["replay", f"--model_dir={model_dir}", "--step=10"]) == 0
    assert "all agree" in capsys.readouterr().out


@pytest.fixture(scope="module")
def branch(phases):
    """Branch from the middle of the second phase with two more updates in it; return its MODEL_DIR."""
    model_dir, _ = phases
    flags = ("--gin.masked/Stage.steps=6", "--gin.Run.stages=(@causal/Stage(), @masked/Stage())")
    done = in_process("pretrain", f"--branch_from={model_dir}@6", f"--model_dir={model_dir.parent / 'branch'}", *flags)
    assert done.returncode == 0, done.stderr
    assert f"goes on from step 6 of {model_dir}, with its optimizer state" in done.stdout.splitlines()
    return model_dir.parent / "branch"


def test_a_branch_goes_on_with_step_cursor_and_moments(phases, branch, tmp_path):
    """With the settings of the other run it makes the same updates; the length of the schedule is its own."""
    model_dir, words = phases
    assert sorted(int(path.name) for path in (branch / "checkpoints").iterdir()) == [8, 10]
    seen = {line["step"]: line["tokens_seen"] for line in metrics(branch) if line["split"] == "train"}
    assert seen == {8: 8 * 64, 10: 10 * 64}
    same = tmp_path / "same"
    done = in_process("pretrain", f"--branch_from={model_dir}@6", f"--model_dir={same}")
    assert done.returncode == 0, done.stderr
    _assert_equal(arrays(same, 12), arrays(model_dir, 12))
    assert metrics(same) == [line for line in metrics(model_dir) if line["step"] > 6]
    # It resumes like any run, with or without the flag, and only as the branch that it is.
    own = listing(same)
    for more in ([], [f"--branch_from={model_dir}@6"]):
        assert in_process("pretrain", f"--model_dir={same}", *more).returncode == 0
    assert listing(same) == own
    done = in_process("pretrain", f"--model_dir={same}", f"--branch_from={model_dir}@8")
    assert done.returncode == 2 and f"the run in {same} goes on from {model_dir}@6; leave --branch_from out" in done.stderr


@pytest.mark.parametrize(
    ("where", "flags", "message"),
    [
        ("@7", [], "has no step 7; it has 2, 4, 6, 8, 10, 12"),
        ("", [], "it must be DIR@STEP, a model folder and one of its checkpoints"),
        ("@2,4", [], "it must be one checkpoint; write DIR or DIR@STEP"),
        ("@best", [], "keep_best"),
        ("@6", ["--gin.BertConfig.num_layers=2"], "Run.objective.model.num_layers was 1 in .* and is 2 now"),
        ("@6", ["--gin.Run.optimizer=@Lion()"], "Run.optimizer was AdamW there and is Lion now"),
        ("@6", ["--cache_dir={rewritten}/cache"], "that run has another vocabulary"),
        ("@12", [], "Run.stages have 12 updates, which are made already"),
        ("@6", ["--gin.causal/Stage.batch_size=8"], r"Run.stages\[0\].batch_size was 4 .* and is 8 now"),
        ("@6", ["--init_from={model}"], "--branch_from and --init_from both say what a new run starts from"),
    ],
)
def test_branches_that_make_no_sense_are_refused(phases, rewritten, tmp_path, capsys, where, flags, message):
    model_dir, _ = phases
    words = [flag.format(rewritten=rewritten, model=model_dir) for flag in flags]
    assert cli.main(["pretrain", f"--branch_from={model_dir}{where}", f"--model_dir={tmp_path / 'new'}", *words]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("bertfam: error: ")
    assert re.search(message, error) and not (tmp_path / "new").exists()


def _assert_equal(left, right):
    assert left.keys() == right.keys()
    assert not [name for name in left if not np.array_equal(left[name], right[name])]
