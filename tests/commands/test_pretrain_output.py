"""Output of `pretrain`: phases, samples, moving average, profile; interrupted evaluations."""

import json
import re

import pytest
from command_line import bertfam, in_process
from model_folders import arrays, assert_equal_arrays, metrics
from test_pretrain_processes import cut

SUMMARY = re.compile(r"(\d+) updates in (.+?): (.+)")


def test_where_the_time_went(trained):
    updates, _, told = SUMMARY.fullmatch(trained.stdout.splitlines()[-2]).groups()
    assert updates == "24"
    shares = {name.strip(): float(share) for name, share in re.findall(r"([a-z ]+?) (\d+\.\d)%", told)}
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
    """The same run with a moving average, samples and a profile: (MODEL_DIR, what it printed)."""
    model_dir = tmp_path_factory.mktemp("watched") / "model"
    flags = ["--gin.Run.average_decay=0.5", "--gin.Run.sample_every=10", "--profile_steps=14-16"]
    done = in_process(*trained.pretrain(model_dir, *flags))
    assert done.returncode == 0, done.stderr
    return model_dir, done.stdout.splitlines()


def test_looking_changes_nothing(trained, watched):
    model_dir, _ = watched
    left, right = arrays(model_dir, 24), arrays(trained.model_dir, 24)
    assert_equal_arrays({name: left[name] for name in right}, right)


def test_the_average_is_scored_too(trained, watched):
    model_dir, out = watched
    lines = metrics(model_dir)
    assert [(line["step"], line["split"]) for line in lines if "eval" in line["split"]] == [
        (12, "eval_average"), (12, "eval"), (24, "eval_average"), (24, "eval"),
    ]  # fmt: skip
    assert [line for line in lines if line["split"] == "eval"] == [
        line for line in metrics(trained.model_dir) if line["split"] == "eval"
    ]
    average = next(line for line in lines if line["split"] == "eval_average" and line["step"] == 24)
    assert sum(line.startswith("step 24 held out, moving average  loss") for line in out) == 1
    done = in_process("evaluate", f"--model_dir={model_dir}", "--average", "--json")
    assert json.loads(done.stdout)["mlm_loss"] == pytest.approx(average["mlm_loss"], rel=1e-5)


def test_samples_are_held_out_rows_with_their_guesses(trained, watched):
    """At 10, 20 and the last step; four of them in TensorBoard."""
    model_dir, out = watched
    told = [line for line in out if " sample  " in line]
    assert [line.partition(" sample")[0] for line in told] == [f"step {step}" for step in (10, 20, 24)]
    held_out = (trained.folder / "text" / "held-out.txt").read_text().lower()
    seen, _, guesses = told[-1].partition(" sample  ")[2].rpartition("  |  ")
    assert seen.startswith("[CLS]") and "[MASK]" in seen
    assert max(seen.replace("[SEP]", "[MASK]").split("[MASK]"), key=len).strip().split()[1] in held_out
    pairs = re.findall(r"(\S+): (\S+) (0\.\d\d|1\.00)", guesses)
    assert len(pairs) == guesses.count(", ") + 1 >= seen.count("[MASK]")
    events = b"".join(path.read_bytes() for path in model_dir.glob("events.out.tfevents.*"))
    assert guesses.encode() in events and events.count(b"  |  ") == 12


def test_a_profile_of_the_updates_that_were_named(watched):
    model_dir, out = watched
    assert out.count(f"profile of the updates 14 to 16: {model_dir}/plugins/profile") == 1
    found = list((model_dir / "plugins" / "profile").glob("*/*.xplane.pb"))
    assert len(found) == 1 and found[0].stat().st_size > 10_000


def test_a_signal_cuts_an_evaluation_short_which_is_made_up_for(trained, tmp_path):
    """At step 12, and at the last one: the state is saved, and nothing is missing in the end."""
    model_dir = cut(trained.model_dir, tmp_path / "model", 10)
    done = bertfam(*trained.pretrain(model_dir), EVALUATION="SIGTERM")
    assert done.returncode == 75 and "held out" not in done.stdout
    assert done.stdout.splitlines()[-1] == "stopped after step 12 of 24, which is saved; the same command resumes it"
    done = bertfam(*trained.pretrain(model_dir), DIE="24:SIGTERM:0")
    assert done.returncode == 75
    assert [line.partition("  ")[0] for line in done.stdout.splitlines() if "held out" in line] == ["step 12 held out"]
    assert done.stdout.splitlines()[-1] == "stopped after step 24 of 24, which is saved; the same command resumes it"
    done = in_process(*trained.pretrain(model_dir))
    out = done.stdout.splitlines()
    assert done.returncode == 0 and "resumed from step 24" in out and out[-1] == f"finished: {model_dir}"
    assert SUMMARY.fullmatch(out[-2])[1] == "0"
    assert metrics(model_dir) == metrics(trained.model_dir)


@pytest.mark.parametrize("words", ["3", "1-4", "5-4", "x-y", "3-", "-3", "3-4-5"])
def test_a_profile_of_nothing(trained, tmp_path, capsys, words):
    from bertfam import cli

    assert cli.main(trained.pretrain(tmp_path / "model", f"--profile_steps={words}")) == 2
    assert capsys.readouterr().err == (
        f"bertfam: error: --profile_steps={words}: write FIRST-LAST, such as 100-104; FIRST is at least 2, "
        "since update 1 compiles\n"
    )


def test_a_profile_of_what_is_not_made(trained, tmp_path, capsys):
    """Beyond the run it is a mistake; of what came before, the same command may go on without it."""
    from bertfam import cli

    model_dir = cut(trained.model_dir, tmp_path / "model", 20)
    assert cli.main(trained.pretrain(model_dir, "--profile_steps=20-25")) == 2
    assert capsys.readouterr().err == (
        "bertfam: error: --profile_steps=20-25: the run has only 24 updates; choose some of those\n"
    )
    done = in_process(*trained.pretrain(model_dir, "--profile_steps=21-22"))
    assert done.returncode == 0, done.stderr
    told = "bertfam: warning: --profile_steps=21-22 is not recorded: this command starts with update 21, which compiles"
    assert told in done.stderr.splitlines() and not (model_dir / "plugins").exists()
