"""`bertfam plan`: slices of chips that are not here, and the devices that are."""

import argparse
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from bertfam import cli
from bertfam.commands import plan_run, plan_search
from bertfam.planning import choices, gpu_time
from bertfam.planning.programs import Job, Program
from bertfam.planning.slices import parse
from bertfam.sharding.chips import chip_of_kind

TINY = [
    *("plan", "--gin_file=runs/bert_base.gin", "--gin_file=models/bert_tiny.gin", "--gin_file=meshes/fsdp.gin"),
    *("--gin.Run.stages=(@Stage(),)", "--gin.Stage.length=16", "--gin.BATCH_SIZE=8", "--gin.BertConfig.num_layers=1"),
]
TRAIN = [*TINY, "--program=train", "--json", "--shardings"]


def word_table(plan, slice):
    """Return the rows of a slice's shardings by part and name, after checking the word table and its moments; and its parts."""
    table = {(row["part"], row["name"]): row for row in plan["shardings"][slice]}
    words = table["parameters", "encoder/embeddings/word/table"]
    assert words["axes"] == ["vocab", "embed"]
    moments = [row for (part, path), row in table.items() if part == "optimizer" and path.endswith("word/table")]
    assert [row["bytes"] for row in moments] == 2 * [words["bytes"]]
    return table, words["over"], words["shape"][0] * 128 * 4 / words["bytes"]


def test_a_run_that_one_chip_does_not_hold():
    """As a user runs it, in a process that has not imported JAX yet: the chip lacks memory for the moments of the word table."""
    words = [*TRAIN, "--vocab_size=10000000", "--slice=v5e-1"]
    done = subprocess.run([sys.executable, "-m", "bertfam", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, last, advising, *searching = done.stderr.splitlines()  # progress is all that stderr has
    assert all(" changes estimated, " in line for line in searching)  # every half minute
    assert first == "[1/1] v5e-1: train 8 x 16" and last.startswith("compiled 1 program in ")
    assert advising.startswith("v5e-1: searching for a change that fits, 10 min")
    plan = json.loads(done.stdout)
    assert plan["advice"] == {"v5e-1": None} and word_table(plan, "v5e-1")[1:] == ([[], []], 1)
    (row,) = plan["programs"]
    assert (row["slice"], row["topology"], row["chips"], row["fits"]) == ("v5e-1", "v5e:1x1", 1, False)
    assert "rows of 16 tokens on tpu" in row["attention"]
    table = 128 * 4 * 10_000_000
    memory = row["memory"]
    assert memory["parameters"] == pytest.approx(table, rel=0.02)
    assert memory["optimizer"] == pytest.approx(2 * table, rel=0.02)
    assert memory["total"] > row["memory_limit"] == int(15.75 * 2**30)
    assert memory["total"] == sum(size for name, size in memory.items() if name != "total")
    assert "10000" in row["largest"][0]["shape"]


def test_two_slices(capsys):
    assert cli.main([*TRAIN, "--vocab_size=1000", "--slice=2xv5p-8"]) == 0
    plan = json.loads(capsys.readouterr().out)
    (row,) = plan["programs"]
    assert (row["chips"], row["fits"], row["rows_per_device"]) == (8, True, 1)
    chosen = plan["execution"]["2xv5p-8"]
    assert (chosen["values"]["Execution.layers"], chosen["reasons"]["Execution.layers"]) == ("scan", "tpu")
    assert (chosen["values"]["Execution.remat"], chosen["values"]["Run.microbatches"]) == ("none", 1)
    assert "of 95.73 GiB" in chosen["reasons"]["Run.microbatches"] and "Execution.dtype" not in chosen["reasons"]
    assert row["mesh"] == {"replica": 2, "data": 1, "fsdp": 4, "sequence": 1, "tensor": 1}
    table, over, parts = word_table(plan, "2xv5p-8")
    assert (over, parts) == ([[], ["fsdp"]], 4)
    parameters = [row for (part, _), row in table.items() if part == "parameters"]
    assert row["memory"]["parameters"] == pytest.approx(sum(row["bytes"] for row in parameters), rel=0.02)
    # The gradients, in whatever pieces and some of them in two bytes a number, go from slice to slice, and parameters within;
    # each device sends a quarter of those that all of a slice have.
    axes = {axis for each in row["collectives"] for axis in each["axes"]}
    assert axes == {"replica", "fsdp"}
    between = sum(each["bytes"] for each in row["collectives"] if each["axes"] == ["replica"])
    assert between >= 0.5 * sum(row["bytes"] / (1 if ["fsdp"] in row["over"] else 4) for row in parameters)
    bound = row["bound"]
    assert bound["binds"] == "dcn" and bound["seconds"] == bound["dcn"] >= between / 6.25e9 * 0.98
    assert table["batch of 16 tokens", "encoder_input_tokens"]["over"] == [["replica", "fsdp"], []]
    assert table["activations", "batch"]["over"] == [["replica", "fsdp"]]


def test_progress_estimates_the_time_that_is_left(monkeypatch, capsys):
    monkeypatch.setattr(plan_run, "make_row", lambda program, slice: slice.name)
    job = SimpleNamespace(name="train 8 x 16", compile=lambda largest: None, predicted=None)
    plans = [SimpleNamespace(slice=parse(name), compiled={}) for name in ("v5e-1", "2xv5p-8")]
    assert plan_run._compile([(plan, job) for plan in plans]) == ["v5e-1", "2xv5p-8"]
    first, second, last = capsys.readouterr().err.splitlines()
    assert first == "[1/2] v5e-1: train 8 x 16"
    assert second.startswith("[2/2] 2xv5p-8: train 8 x 16, about ") and second.endswith(" left")
    assert last.startswith("compiled 2 programs in ")


def test_the_devices_that_are_here(capsys):
    words = [*TINY, "--slice=here", "--program=evaluate", "--shardings", "--most_rows"]
    assert cli.main([*words, "--vocab_size=100"]) == 0
    out, err = capsys.readouterr()
    assert err.startswith("[1/1] here: evaluate 8 x 16\ncompiled 1 program in ")
    assert err.endswith("bertfam: warning: here: the memory of cpu is unknown, so --most_rows is skipped\n")
    assert "encoder/layers/attention/query/kernel  [layers 1, embed 128, heads 2, head_dim 64]  and of the optimizer" in out
    assert "evaluate 8 x 16" in out
    assert "here: dtype bfloat16, layers scan (cpu), remat none (memory unknown)" in out


def test_a_program_that_was_compiled_for_a_choice_is_not_compiled_again(monkeypatch, capsys):
    """The compiler does not run, and its programs are too large whatever is chosen: the last choice is that of the plan."""
    compiled = []

    def compile_nothing(job, largest):
        compiled.append(job.name)
        return Program(job, None, "RESOURCE_EXHAUSTED", 0.0)

    monkeypatch.setattr(Job, "compile", compile_nothing)
    monkeypatch.setattr(choices, "_MARGIN", 1e9)  # no estimate is certain
    monkeypatch.setattr(plan_run, "memory_bytes", lambda device: 2**40)
    assert cli.main([*TINY, "--slice=here", "--vocab_size=100", "--no_advice", "--json"]) == 0
    assert compiled == ["train 8 x 16", "evaluate 8 x 16"]
    out, err = capsys.readouterr()
    assert [row["kind"] for row in json.loads(out)["programs"]] == ["train", "evaluate"]
    choosing, evaluating, _ = err.splitlines()
    assert choosing == "here: compiling remat none, microbatches 1 to see whether it fits"
    assert evaluating == "[1/1] here: evaluate 8 x 16"


def test_predicted_time_on_a_gpu(monkeypatch, capsys):
    """The device of this machine stands for an H200; the compiler does not run."""
    monkeypatch.setattr(gpu_time, "chip_of", lambda device: chip_of_kind("NVIDIA H200"))
    monkeypatch.setattr(Job, "compile", lambda job, largest: Program(job, None, "RESOURCE_EXHAUSTED", 0.0))
    words = [*TINY, "--slice=here", "--program=train", "--vocab_size=100"]
    assert cli.main(words) == 0
    out, err = capsys.readouterr()
    (line,) = (line for line in out.splitlines() if "(predicted*)" in line)
    assert line.startswith("here: train 8 x 16 takes ") and " ms " in line and "products" in line
    assert err.splitlines()[1] == line  # before compiling
    assert cli.main([*words, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["programs"]
    times = row["predicted"]
    assert sum(times.values()) == pytest.approx(2 * times["seconds"])


def test_the_vocabulary_of_the_published_models(capsys):
    assert cli.main([*TINY, "--slice=here", "--program=evaluate", "--json"]) == 0
    out, err = capsys.readouterr()
    assert "using the vocabulary size 30,522 of the family's published models" in err
    assert json.loads(out)["vocab_size"] == 30522


def test_command_in_the_file_of_a_search():
    args = argparse.Namespace(
        **{"gin_file": ["a.gin"], "module_import": ["my_parts"], "gin_bindings": ["Run.stages = (@Stage(),)"]},
        **{"slice": ["v5e-4"], "vocab_size": 100, "vocab": None, "output": "b.gin"},
    )
    assert plan_search._command(args) == (
        "bertfam plan --gin_file=a.gin --module_import=my_parts '--gin.Run.stages=(@Stage(),)' --slice=v5e-4 --vocab_size=100 "
        "--search --output=b.gin"
    )
