"""Output of `pretrain`: phases, samples, moving average, profile; interrupted evaluations."""

import json
import os
import re
import signal

import bertfam_process
import pytest
from command_line import in_process
from model_folders import arrays, assert_equal_arrays, cut, metrics

SUMMARY = re.compile(r"(\d+) updates in (.+?): (.+)")


@pytest.fixture(scope="module")
def initialisation():
    """Keep the model's own initial values: a run in this process has the parameters of one in another."""


def test_time_of_each_phase_is_reported(trained):
    updates, _, listed = SUMMARY.fullmatch(trained.stdout.splitlines()[-2]).groups()
    assert updates == "24"
    shares = {name.strip(): float(share) for name, share in re.findall(r"([a-z ]+?) (\d+\.\d)%", listed)}
    assert {"starting", "preparing the text", "compiling", "evaluating", "saving"} <= shares.keys()
    assert sum(shares.values()) == pytest.approx(100, abs=0.5) and list(shares.values()) == sorted(shares.values(), reverse=True)
    lines = [json.loads(line) for line in (trained.model_dir / "metrics.jsonl").read_text().splitlines()]
    seconds = lines.pop()
    assert (seconds.pop("step"), seconds.pop("split")) == (24, "time") and all(value >= 0 for value in seconds.values())
    total = sum(seconds.values())
    assert seconds["compiling"] / total == pytest.approx(shares["compiling"] / 100, abs=1e-3)
    waits = [line["waiting_for_data"] for line in lines if line["split"] == "train"]
    assert len(waits) == 9 and all(0 <= share <= 1 for share in waits)


@pytest.fixture(scope="module")
def watched(trained, tmp_path_factory):
    """Train with a moving average, samples and a profile; return MODEL_DIR and the lines of the output.

    All updates are of the first stage. The first half is that of the run `trained`.
    """
    model_dir = tmp_path_factory.mktemp("watched") / "model"
    one_stage = ["--gin.Run.stages=(@short/Stage(),)", "--gin.short/Stage.steps=24"]
    flags = [*one_stage, f"--cache_dir={trained.model_dir / 'cache'}", "--gin.CHECKPOINT_EVERY=10", "--profile_steps=14-16"]
    flags += ["--gin.Run.average_decay=0.5", "--gin.Run.sample_every=10"]
    done = in_process(*trained.pretrain(model_dir, *flags))
    assert done.returncode == 0, done.stderr
    return model_dir, done.stdout.splitlines()


def test_average_samples_and_profile_change_no_parameter(trained, watched):
    model_dir, _ = watched
    left, right = arrays(model_dir, 10), arrays(trained.model_dir, 10)
    assert_equal_arrays({name: left[name] for name in right}, right)


def test_moving_average_is_evaluated_too(trained, watched):
    model_dir, out = watched
    lines = metrics(model_dir)
    assert [(line["step"], line["split"]) for line in lines if "eval" in line["split"]] == [
        (12, "eval_average"), (12, "eval"), (24, "eval_average"), (24, "eval"),
    ]  # fmt: skip
    own, expected = (
        [line for line in metrics(folder) if (line["step"], line["split"]) == (12, "eval")]
        for folder in (model_dir, trained.model_dir)
    )
    assert own == expected
    average = next(line for line in lines if line["split"] == "eval_average" and line["step"] == 24)
    assert sum(line.startswith("step 24 held out, moving average  loss") for line in out) == 1
    done = in_process("evaluate", f"--model_dir={model_dir}", "--average", "--json")
    assert json.loads(done.stdout)["mlm_loss"] == pytest.approx(average["mlm_loss"], rel=1e-5)


def test_samples_are_held_out_rows_with_predictions(trained, watched):
    """There is a sample at steps 10, 20 and the last, and four rows of each in TensorBoard."""
    model_dir, out = watched
    samples = [line for line in out if " sample  " in line]
    assert [line.partition(" sample")[0] for line in samples] == [f"step {step}" for step in (10, 20, 24)]
    held_out = (trained.folder / "text" / "held-out.txt").read_text().lower()
    text, _, guesses = samples[-1].partition(" sample  ")[2].rpartition("  |  ")
    assert text.startswith("[CLS]") and "[MASK]" in text
    parts = [part for line in samples for part in re.split(r"\[[A-Z]+\]", line.partition(" sample  ")[2].rpartition("  |  ")[0])]
    words = {word for part in parts for word in part.split()[1:-1]}  # without words of which pieces may be masked
    assert words and sum(word in held_out for word in words) > 0.8 * len(words)  # a word may be replaced
    assert re.fullmatch(r"(\S+: \S+ (0\.\d\d|1\.00)(, |$))+", guesses)
    assert len(re.findall(r"\S+: \S+ \d\.\d\d", guesses)) >= text.count("[MASK]")
    events = b"".join(path.read_bytes() for path in model_dir.glob("events.out.tfevents.*"))
    assert guesses.encode() in events and events.count(b"  |  ") == 12


def test_profile_covers_the_named_updates(watched):
    model_dir, out = watched
    assert out.count(f"profile of the updates 14 to 16: {model_dir}/plugins/profile") == 1
    (trace,) = (model_dir / "plugins" / "profile").glob("*/*.xplane.pb")
    assert trace.stat().st_size > 10_000


def send_sigterm(step=None):
    os.kill(os.getpid(), signal.SIGTERM)


def test_evaluation_that_a_signal_interrupts_is_made_up_for(trained, tmp_path):
    """Interrupt the run at step 12 and at the last one: the state is saved, and nothing is missing in the end."""
    model_dir = cut(trained.model_dir, tmp_path / "model", 10)
    with pytest.MonkeyPatch.context() as patch:
        bertfam_process.at_evaluation(send_sigterm, patch.setattr)
        done = in_process(*trained.pretrain(model_dir))
    assert done.returncode == 75 and "held out" not in done.stdout
    assert done.stdout.splitlines()[-1] == "stopped after step 12 of 24, which is saved; the same command resumes it"
    with pytest.MonkeyPatch.context() as patch:
        bertfam_process.at_step(24, send_sigterm, patch.setattr)
        done = in_process(*trained.pretrain(model_dir))
    assert done.returncode == 75
    assert [line.partition("  ")[0] for line in done.stdout.splitlines() if "held out" in line] == ["step 12 held out"]
    assert done.stdout.splitlines()[-1] == "stopped after step 24 of 24, which is saved; the same command resumes it"
    done = in_process(*trained.pretrain(model_dir))
    out = done.stdout.splitlines()
    assert done.returncode == 0 and "resumed from step 24" in out and out[-1] == f"finished: {model_dir}"
    assert SUMMARY.fullmatch(out[-2])[1] == "0"
    assert metrics(model_dir) == metrics(trained.model_dir)


@pytest.mark.parametrize("words", ["3", "1-4", "5-4", "x-y", "3-", "-3", "3-4-5"])
def test_malformed_profile_steps_are_refused(trained, tmp_path, capsys, words):
    from bertfam import cli

    assert cli.main(trained.pretrain(tmp_path / "model", f"--profile_steps={words}")) == 2
    assert capsys.readouterr().err == (
        f"bertfam: error: --profile_steps={words}: write FIRST-LAST, such as 100-104; FIRST is at least 2, "
        "since update 1 compiles\n"
    )


def test_profile_of_updates_that_are_not_made(trained, tmp_path, capsys):
    """Updates beyond the run are refused; for those made already, the same command resumes without a profile."""
    from bertfam import cli

    model_dir = cut(trained.model_dir, tmp_path / "model", 20)
    assert cli.main(trained.pretrain(model_dir, "--profile_steps=20-25")) == 2
    assert capsys.readouterr().err == (
        "bertfam: error: --profile_steps=20-25: the run has only 24 updates; choose some of those\n"
    )
    done = in_process(*trained.pretrain(model_dir, "--profile_steps=21-22"))
    assert done.returncode == 0, done.stderr
    warning = "bertfam: warning: --profile_steps=21-22 is not recorded: this command starts with update 21, which compiles"
    assert warning in done.stderr.splitlines() and not (model_dir / "plugins").exists()
