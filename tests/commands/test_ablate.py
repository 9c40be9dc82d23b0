"""`bertfam ablate`: real runs of a tiny study, and plans, phases, failures and reports with stand-ins for training."""

import json
import os
import re
import shutil
import signal
import threading
import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar

import pytest
from command_line import in_process
from model_folders import copy_run

from bertfam.commands import pretrain
from bertfam.config import register
from bertfam.errors import TrainingError, UserError
from bertfam.evaluation.suites.results import Result
from bertfam.studies import children
from bertfam.studies.scores.score import Score
from bertfam.subprocesses import cores

STUDY = """\
# A tiny study.
Study.question = "Do random tokens beside the masks teach more?"
Study.files = ("objectives/mlm.gin", "runs/defaults.gin")
Study.bindings = (
    "MODEL = @BertConfig()", "BertConfig.num_layers = 1", "BertConfig.hidden_size = 16", "BertConfig.num_heads = 2",
    "BertConfig.feed_forward_size = 32", "BertConfig.max_length = 64", "Stage.length = 32", "BATCH_SIZE = 8",
    "LinearDecay.peak = 1e-2", "Run.eval_batches = None",
)
Study.budget = 768
Study.warmup = 0.25
Study.seeds = (0, 1)
Study.arms = (@low/Arm(), @high/Arm())
low/Arm.name = "80 %"
low/Arm.bindings = ("BertMasking.mask_share = 0.8",)
high/Arm.name = "<all>"
high/Arm.bindings = ("BertMasking.mask_share = 1.0", "BertMasking.random_share = 0.0")
Study.scores = (@MaskedLoss(), @HeldOut())
MaskedLoss.length = 32
MaskedLoss.rows = 100_000
Study.claims = (@Claim(),)
Claim.score = "masked_loss"
Claim.better = "80 %"
Claim.worse = "<all>"
"""


@dataclass(frozen=True)
class SeedScore(Score):
    """A score that a user's module adds: 1 for the arm "good", and a little more for each seed."""

    noise: float = 0.01

    name: ClassVar[str] = "toy"
    metrics: ClassVar[tuple[str, ...]] = ("toy",)

    def measure(self, trained):
        arm, run = trained.model_dir.parts[-3:-1]
        return Result({"toy": (arm == "good") + self.noise * int(run.removeprefix("seed_")) ** 2 * (1 + (arm == "good"))}, (), {})


register(SeedScore, "ablate_scores")


@pytest.fixture
def ablate(trained, tmp_path, monkeypatch):
    """Return ablate(study, *flags), which runs a study in the folder of the test."""
    monkeypatch.chdir(tmp_path)
    text = trained.folder / "text"
    flags = [f"--input={text}/train.txt", f"--validation_input={text}/held-out.txt", f"--vocab={trained.folder}/vocab"]
    flags.append(f"--cache_dir={trained.model_dir}/cache")

    def run(study, *more):
        (tmp_path / "study.gin").write_text(study)
        return in_process("ablate", "study.gin", *flags, "--output=out", "--parallel=0", *more)

    return run


def replaced(lines, study=STUDY):
    """Return the study with these lines in place of those that bind the same names; new ones come last."""
    new = {line.partition(" = ")[0]: line for line in lines.splitlines()}
    kept = [new.pop(line.partition(" = ")[0], line) for line in study.splitlines()]
    return "\n".join([*kept, *new.values()]) + "\n"


def test_two_arms_with_two_seeds_are_trained_scored_and_compared(ablate, tmp_path):
    done = ablate(STUDY)
    assert done.returncode == 0, done.stderr
    assert "2 arms x 2 seeds = 4 runs, each of 768 tokens" in done.stdout and "[4 of 4] <all>, seed 1: masked_loss" in done.stdout
    report = json.loads((tmp_path / "out/report.json").read_text())
    scores = report["scores"]
    # The noise that is common to all arms is that of the first one, whose own held-out scores are then the same.
    for seed, loss in scores["masked_loss"]["80 %"]["values"].items():
        assert loss == pytest.approx(scores["mlm_loss"]["80 %"]["values"][seed], rel=1e-5)
        assert abs(loss - scores["mlm_loss"]["<all>"]["values"][seed]) > 1e-3
    (claim,) = report["claims"]
    assert claim["verdict"] in ("reproduced", "not reproduced", "undecided at this size") and claim["seeds"] == [0, 1]
    assert claim["texts"]["texts"] == 49 and not report["diverged"] and not report["missing"]
    assert report["equal"] == (
        "Every run had 768 tokens, and all arms the same vocabulary, order of the data for a seed and held-out text."
    )
    runs = [(tmp_path / f"out/runs/{name}/run.gin").read_text().splitlines() for name in ("80__/seed_1", "_all_/seed_1")]
    assert set(runs[0]) - set(runs[1]) == {"BertMasking.mask_share = 0.8"}
    assert {"Stage.steps = 3", "LinearDecay.warmup_steps = 1", "Run.seed = 1"} <= set(runs[0])
    page, markdown = ((tmp_path / f"out/report.{ending}").read_text() for ending in ("html", "md"))
    assert (
        "&lt;all&gt;" in page and "<all" not in page and "http:" not in page and "<script" not in page and "&lt;all" in markdown
    )
    assert page.count("<svg") == 5 and page.count("<circle") == 16

    shutil.rmtree(tmp_path / "out/runs/80__/seed_0/masked_loss")
    again = ablate(STUDY)
    assert again.returncode == 0 and again.stdout.count(" of 1] 80 %, seed 0: masked_loss") == 1 and " of 4]" not in again.stdout
    assert json.loads((tmp_path / "out/report.json").read_text())["scores"] == scores
    other = ablate(STUDY, "--gin.Study.budget=2304")
    assert (
        other.returncode == 2
        and "LinearDecay.warmup_steps = 1 and now LinearDecay.warmup_steps = 2" in other.stderr
        and "name another --output" in other.stderr
    )


@pytest.fixture
def pretrained(trained, monkeypatch):
    """Replace training by a copy of a run, whose held-out loss is the distance of the rate from 0.02; return the folders."""
    folders = []

    def main(args):
        config = (args.model_dir and open(args.gin_file[0]).read()) or ""
        folders.append(args.model_dir)
        if "bad/seed_1" in args.model_dir:
            raise TrainingError("the update that leads to step 3 has loss nan")
        if "worse/seed_2" in args.model_dir:
            raise UserError("no space left")
        peak = float(config.partition("LinearDecay.peak = ")[2].split()[0])
        copy_run(trained.model_dir, args.model_dir)
        with open(f"{args.model_dir}/metrics.jsonl", "w") as file:
            file.write(json.dumps({"step": 99, "split": "eval", "loss": abs(peak - 0.02)}) + "\n")
            file.write(json.dumps({"step": 99, "split": "time", "training": 0.5, "waiting_for_data": 0.25, "saving": 1.0}) + "\n")
        return 0

    monkeypatch.setattr(pretrain, "main", main)
    return folders


TOYS = replaced(
    """\
Study.arms = (@low/Arm(), @high/Arm(), @worse/Arm())
low/Arm.name = "good"
high/Arm.name = "bad"
worse/Arm.name = "worse"
worse/Arm.bindings = ("BertMasking.rate = 0.5",)
Study.seeds = (0, 1, 2, 3)
Study.learning_rates = (0.01, 0.02, 0.1)
Study.budget = 8192
Study.scores = (@SeedScore(),)
Study.claims = (@Claim(), @wrong/Claim(), @near/Claim())
Claim.score = "toy"
Claim.better = "good"
Claim.worse = "bad"
wrong/Claim.better = "bad"
wrong/Claim.worse = "good"
near/Claim.better = "bad"
near/Claim.worse = "worse"
"""
)


def test_rates_are_chosen_and_runs_that_diverge_or_fail_stop_no_other(ablate, pretrained, tmp_path):
    done = ablate(TOYS)
    assert done.returncode == 1 and done.stderr.count("error: no space left") == 1
    assert "9 runs before, of 25% of that, to choose learning rates" in done.stdout
    assert "[5 of 12] bad, seed 1: diverged: the update that leads to step 3" in done.stdout
    assert "[9 of 12] worse, seed 2: exited with 2; see out/runs/worse/seed_2/log.txt" in done.stdout
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert report["missing"] == ["worse, seed 2"] and list(report["diverged"]) == ["bad, seed 1"]
    assert {arm["learning_rate"] for arm in report["arms"].values()} == {0.02} and not report["notes"]
    assert report["arms"]["good"]["seconds"] == 7 * 1.75 and report["arms"]["good"]["seconds_a_run"] == 0.75
    config = (tmp_path / "out/runs/good/rate_0.1/run.gin").read_text()
    assert "LinearDecay.peak = 0.1" in config and "Run.seed = 1000003" in config and "Stage.steps = 8\n" in config
    good, wrong, near = report["claims"]
    assert good["verdict"] == "reproduced" and good["seeds"] == [0, 2, 3] and good["difference"]["corrected"] < 0.05
    assert wrong["verdict"] == "not reproduced" and "bad is worse by" in wrong["reason"]
    assert near["verdict"] == "undecided at this size" and "more than 1,000 seeds" in near["reason"] and near["seeds"] == [0, 3]
    # The same command trains only what has failed.
    pretrained.clear()
    ablate(TOYS)
    assert pretrained == ["out/runs/worse/seed_2/model"]


def test_an_array_job_trains_the_runs_of_each_phase(ablate, pretrained, tmp_path):
    prepared = ablate(TOYS, "--prepare")
    assert "--array=9 " in prepared.stdout and "-- bertfam ablate --output=out" in prepared.stdout and not pretrained
    assert in_process("ablate", "--output=out", "--run=4").returncode == 0 and pretrained == ["out/runs/bad/rate_0.02/model"]
    assert "--array=8 " in ablate(TOYS, "--prepare").stdout
    for place in range(8):
        assert in_process("ablate", "--output=out", f"--run={place}").returncode == 0
    assert "--array=12 " in ablate(TOYS, "--prepare").stdout
    missing = in_process("ablate", "--output=out", "--run=12")
    assert missing.returncode == 2 and "--run=12: out/runs.json has 12 runs, from 0 to 11" in missing.stderr
    # Reading the folder imports no module that its user has not named.
    path = tmp_path / "out/runs.json"
    for name in ("study.gin", "runs/good/seed_0/run.gin"):
        own = (tmp_path / "out" / name).read_text()
        (tmp_path / "out" / name).write_text(f"import strangers_module\n{own}")
        shutil.rmtree(tmp_path / "out/runs/good/seed_0/training", ignore_errors=True)
        imports = in_process("ablate", "--output=out", "--run=0")
        assert imports.returncode == 2 and "strangers_module" in imports.stderr and f"out/{name}:1" in imports.stderr
        (tmp_path / "out" / name).write_text(own)
    (run, *_) = json.loads(path.read_text())["runs"]
    for content in ([], [{"kind": "seed"}], [5], [run | {"seed": "/../../.."}], [run | {"kind": "x"}], [run | {"config": None}]):
        path.write_text(json.dumps({"runs": content}))
        damaged = in_process("ablate", "--output=out", "--run=0")
        assert damaged.returncode == 2 and "out/runs.json h" in damaged.stderr, content


def test_a_budget_of_seconds_is_that_of_measured_updates(ablate, pretrained, tmp_path):
    study = replaced('Study.budget = 2.5\nStudy.equal = "seconds"\nStudy.learning_rates = ()', TOYS)
    dry = ablate(study, "--dry_run")
    assert dry.returncode == 0 and "the speed, which is measured first" in dry.stdout and not (tmp_path / "out").exists()
    ablate(study)
    # 0.75 s for 30 updates.
    assert "Stage.steps = 100\n" in (tmp_path / "out/runs/good/seed_0/run.gin").read_text()


LOW, HIGH, SCORES = "low/Arm.bindings = ", "high/Arm.bindings = ", "Study.scores = (@MaskedLoss(), "
# Name of a mistake: the lines that have it, and the message.
MISTAKES = {
    "an unknown parameter": (LOW + '("BertMasking.raet = 0.3",)', "study.gin:14: .*has no parameter raet; did you mean rate"),
    "a value of another type": (LOW + '("BertMasking.rate = True",)', "study.gin:14: .*BertMasking.rate must be"),
    "a binding without effect": (HIGH + '("Muon.weight_decay = 0.6",)', "study.gin:16: arms .* are the same run"),
    "a number of updates": (LOW + '("TRAIN_STEPS = 9",)', "study.gin:14: TRAIN_STEPS is the number of updates"),
    "names twice": ('high/Arm.name = "80 %"', "two are called '80 %'"),
    "names alike": ('high/Arm.name = "80 ?"', "'80 %' and '80 [?]' are alike"),
    "one seed": ("Study.seeds = (0,)", "one seed, and claims"),
    "a seed twice": ("Study.seeds = (1, 1)", "seeds [(]1, 1[)] must be different"),
    "an unknown score": (SCORES + "@BlimpPairs())", "study.gin:17: unknown configurable BlimpPairs"),
    "a score twice": (SCORES + "@MaskedLoss())", "scores: two are called masked_loss"),
    "a claim of an unknown score": (
        'Study.scores = (@MaskedLoss(),)\nClaim.score = "mask_loss"',
        "no score is called 'mask_loss'; did you mean masked_loss",
    ),
    "a claim of an unknown arm": ('Claim.better = "80"', "claims: no arm is called '80'; did you mean 80 %"),
    "an unknown budget": ('Study.warmup = 0.1\nStudy.equal = "FLOPs"', "Study.equal must be one of .*; write 'flops'"),
    "less than an update": ("Study.budget = 100", "arm '80 %': a run of 1 update has 256 tokens, and the budget is 100"),
    "unequal numbers of rates": (
        "Study.warmup = 0.1\nStudy.learning_rates = (0.1, 0.2)\nlow/Arm.learning_rates = (0.1, 0.2, 0.3)",
        "from 2 to 3 learning_rates",
    ),
    "unequal parameters": (
        HIGH + '("BertConfig.hidden_size = 32",)\nStudy.equal = "parameters"',
        "Study.equal is 'parameters', but arm '<all>' has",
    ),
    "a longer row than the model reads": ("MaskedLoss.length = 128", "MaskedLoss.length is 128, but .* '80 %' reads 64"),
    "no pairs": (SCORES + '@MinimalPairs())\nMinimalPairs.path = "nowhere"', "arm '80 %': there is no nowhere"),
    "no files of a task": (
        SCORES + '@FineTuned())\nFineTuned.data_dir = "GLUE"\nFineTuned.tasks = ("cola",)',
        "lacks files of glue/cola",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_a_study_is_one_line(ablate, name, tmp_path):
    lines, message = MISTAKES[name]
    done = ablate(replaced(lines), "--dry_run")
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2 and line.startswith("bertfam: error: ") and re.search(message, line), line
    assert not (tmp_path / "out").exists()


def test_arms_with_other_vocabularies_require_bits_per_byte(ablate, trained):
    other = f"TextData.vocabulary = '{trained.folder}/other-vocab'"
    done = ablate(replaced(f'{HIGH}("{other}",)'), "--dry_run")
    assert done.returncode == 2 and "arm '<all>': the token cache" in done.stderr and "TextData.cache_dir = None" in done.stderr
    study = replaced(f'{HIGH}("{other}", "TextData.cache_dir = None")')
    done = ablate(study, "--dry_run")
    assert done.returncode == 2 and "different vocabularies, between which MaskedLoss and HeldOut cannot compare" in done.stderr
    done = ablate(replaced(SCORES + "@BitsPerByte())", study), "--dry_run")
    assert done.returncode == 0, done.stderr


AXES = """\
Study.files = ("{folder}/run.gin",)
Study.axes = (@rate/Axis(), @share/Axis())
rate/Axis.parameter = "BertMasking.rate"
rate/Axis.values = (0.1, 0.4)
share/Axis.parameter = "BertMasking.mask_share"
share/Axis.values = (0.8, 0.9)
Study.scores = (@HeldOut(),)
Study.budget = 1920
"""


def test_axes_are_crossed_and_stages_keep_their_shares(ablate, trained):
    done = ablate(AXES.format(folder=trained.folder), "--dry_run")
    assert done.returncode == 0, done.stderr
    rows = [re.split("  +", line) for line in done.stdout.splitlines() if line.startswith("rate 0.")]
    assert [row[0] for row in rows] == [f"rate {rate}, mask_share {share}" for rate in (0.1, 0.4) for share in (0.8, 0.9)]
    assert {tuple(row[2:4]) for row in rows} == {("12", "1,920")}  # 6 updates of 8 x 16 tokens, and 6 of 8 x 24


def test_cores_and_gpus_are_shared_by_runs_at_once(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(6)))
    first, second = children.shares(2, {"CUDA_VISIBLE_DEVICES": "0,3,4,7"})
    assert (first.variables, second.variables) == ({"CUDA_VISIBLE_DEVICES": "0,3"}, {"CUDA_VISIBLE_DEVICES": "4,7"})
    assert (first.cores, second.cores) == ({0, 2, 4}, {1, 3, 5})
    assert children.shares(1, {"CUDA_VISIBLE_DEVICES": "0,3"})[0].variables == {}
    for count, what in ((3, "2 GPUs"), (7, "6 cores")):
        with pytest.raises(UserError, match=f"--parallel={count} is more than the {what}"):
            children.shares(count, {"CUDA_VISIBLE_DEVICES": "0,3" if count == 3 else ""})


def test_processes_fill_free_places_and_a_signal_stops_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seconds = {"slow": 0.5, "fails": 0, "quick": 0}
    ended, environment = [], {"PATH": os.environ["PATH"]}
    runs = [SimpleNamespace(name=name) for name in seconds]

    def command(place):
        name = runs[place].name
        return ["sh", "-c", f"sleep {seconds[name]}; exit {3 if name == 'fails' else 0}"]

    def done(run, status, seconds):
        ended.append((run.name, status))

    assert children.run_children(runs, command, min(2, cores()), environment, done) == 0
    assert sorted(ended) == [("fails", 3), ("quick", 0), ("slow", 0)]
    saves = ["sh", "-c", "trap 'touch saved; exit 75' TERM; touch ready; while :; do sleep 0.1; done"]

    def send_once_it_is_ready():
        while not os.path.exists("ready"):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=send_once_it_is_ready, daemon=True).start()
    with pytest.raises(SystemExit) as stopped:
        children.run_children(runs[:1], lambda place: saves, 1, environment, done)
    assert stopped.value.code == 75 and os.path.exists("saved")
