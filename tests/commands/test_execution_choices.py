"""A run replaces each "auto" by a choice for its devices, records it in MODEL_DIR, and keeps it when it resumes."""

import ast
import json
import shutil

import pytest
from command_line import in_process
from model_folders import copy_run

from bertfam import session
from bertfam.commands import held_out_scores
from bertfam.errors import UserError
from bertfam.planning.choices import choose_execution

CHOSEN = {
    "Execution.dtype": "'float32'",
    "Execution.layers": "'scan'",
    "Execution.remat": "'none'",
    "Execution.dropout_bits": "'threefry'",
    "Run.microbatches": "1",
}


def shown(*words):
    """Run `check --show` and return the values and their origins, and the line of the plan."""
    done = in_process(*words, "--show")
    assert done.returncode == 0, done.stderr
    lines = [line.partition("  # ") for line in done.stdout.splitlines() if "  # " in line and " = " in line]
    values = {line.partition(" = ")[0]: (line.partition(" = ")[2].strip(), origin) for line, _, origin in lines}
    (plan,) = [line for line in done.stdout.splitlines() if line.startswith("execution ")]
    return {name: values.get(name) for name in CHOSEN}, plan


def check(trained, folder, *more):
    return ["check", *trained.pretrain(folder, *more)[1:]]


@pytest.fixture
def recorded(trained, tmp_path):
    """Return a folder of the run that has recorded other choices."""

    def make(changes):
        folder = copy_run(trained.model_dir, tmp_path / f"model{len(list(tmp_path.iterdir()))}")
        text = (folder / "config.gin").read_text()
        for old, new in changes.items():
            assert text.count(old) == 1
            text = text.replace(old, new)
        (folder / "config.gin").write_text(text)
        (folder / "files.json").unlink()  # as if that text had been written at first
        return folder

    return make


OTHERS = {"Execution.layers = 'scan'": "Execution.layers = 'unroll'", "Run.microbatches = 1": "Run.microbatches = 2"}


def test_a_run_that_binds_nothing_records_what_was_chosen(trained):
    lines = (trained.model_dir / "config.gin").read_text().splitlines()
    assert [f"{name} = {value}" for name, value in CHOSEN.items() if f"{name} = {value}" not in lines] == []
    assert [line for line in lines if "= 'auto'" in line] == ["Execution.attention = 'auto'", "Run.eval_batches = 'auto'"]
    plan = json.loads((trained.model_dir / "plan.json").read_text())
    assert plan["execution"] == {name: ast.literal_eval(value) for name, value in CHOSEN.items()}
    assert plan["reasons"].keys() == CHOSEN.keys() and plan["reasons"]["Execution.dtype"] == "cpu"
    (line,) = [line for line in trained.stdout.splitlines() if line.startswith("execution ")]
    assert "dtype float32, layers scan (cpu)" in line and "microbatches 1 (memory unknown)" in line


def test_the_operative_configuration_has_the_choices_and_their_reasons(trained, tmp_path):
    values, _ = shown(*check(trained, tmp_path / "model"))
    assert {name: value for name, (value, _) in values.items()} == CHOSEN
    assert values["Execution.layers"][1] == "auto: cpu"


def test_resuming_keeps_recorded_choices_unless_they_are_overridden(trained, recorded):
    folder = recorded(OTHERS)
    for words in (check(trained, folder), ["check", f"--model_dir={folder}"]):
        values, plan = shown(*words)
        assert (values["Execution.layers"][0], values["Run.microbatches"][0]) == ("'unroll'", "2")
        assert "layers unroll" in plan and "microbatches 2" in plan
    values, plan = shown(*check(trained, folder, "--gin.Execution.layers='scan'"))
    assert values["Execution.layers"] == ("'scan'", "--gin.Execution.layers='scan'") and values["Run.microbatches"][0] == "2"
    assert "layers scan, remat none, dropout_bits threefry, microbatches 2 (as before)" in plan
    values, _ = shown(*check(trained, folder, "--gin.Execution.layers='auto'"))
    shutil.rmtree(folder / "checkpoints")  # nothing to resume
    assert shown(*check(trained, folder))[0]["Run.microbatches"] == ("1", "auto: memory unknown")
    assert values["Execution.layers"] == ("'scan'", "auto: cpu")


def test_a_folder_of_an_earlier_version_resumes_as_it_was(trained, recorded, monkeypatch, tmp_path):
    def choose(run, devices, memory):
        return choose_execution(run.objective, "gpu")

    monkeypatch.setattr(session, "choose", choose)
    assert shown(*check(trained, tmp_path / "new"))[0]["Execution.dtype"] == ("'bfloat16'", "auto: gpu")
    # Such a version wrote the values of Execution only where a gin file referred to it.
    lines = {f"{name} = {value}\n": "" for name, value in CHOSEN.items() if name.startswith("Execution")}
    unnamed = recorded(lines | {"MlmNsp.execution = @Execution()\n": "", "Execution.attention = 'auto'\n": ""})
    # Later ones wrote all but the generator of dropout's bits.
    without_bits = recorded({"Execution.dropout_bits = 'threefry'\n": ""})
    for folder in (trained.model_dir, unnamed, without_bits):
        for words in (check(trained, folder), ["check", f"--model_dir={folder}"]):
            values, plan = shown(*words)
            assert {name: value for name, (value, _) in values.items()} == CHOSEN
            assert "dtype float32, layers scan" in plan


def test_evaluation_of_a_model_that_was_not_trained_here_chooses_for_the_devices(trained, recorded, monkeypatch):
    def trainer(run, mesh):
        raise UserError(f"{run.objective.execution.dtype} {run.objective.execution.layers}")

    monkeypatch.setattr(held_out_scores, "Trainer", trainer)
    monkeypatch.setattr(held_out_scores, "choose_execution", lambda objective, platform: choose_execution(objective, "gpu"))
    imported = recorded({"Execution.dtype = 'float32'": "Execution.dtype = 'auto'"})
    for folder, computed in ((imported, "bfloat16 scan"), (trained.model_dir, "float32 scan")):
        done = in_process("evaluate", f"--model_dir={folder}")
        assert done.returncode == 2 and computed in done.stderr
