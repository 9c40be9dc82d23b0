"""`bertfam plan`: slices of chips that are not here, and the devices that are."""

import argparse
import json
import subprocess
import sys

import pytest

from bertfam import cli
from bertfam.commands import plan_search

# A word table that a small chip does not hold with its moments, and eight larger ones do.
TINY = [
    *("plan", "--gin_file=runs/bert_base.gin", "--gin_file=models/bert_tiny.gin", "--gin_file=meshes/fsdp.gin"),
    *("--gin.Run.stages=(@Stage(),)", "--gin.Stage.length=16", "--gin.BATCH_SIZE=8", "--gin.BertConfig.num_layers=1"),
]
LARGE = [*TINY, "--vocab_size=10000000", "--program=train"]


@pytest.fixture(scope="module")
def planned():
    """As a user runs it, in a process that has not imported JAX yet."""
    words = [*LARGE, "--slice=v5e-1", "--slice=2xv5p-8", "--json", "--shardings"]
    done = subprocess.run([sys.executable, "-m", "bertfam", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def test_progress_is_all_that_stderr_has(planned):
    first, second, last, advising = planned[1].splitlines()
    assert first == "[1/2] v5e-1: train 8 x 16"
    assert second.startswith("[2/2] 2xv5p-8: train 8 x 16, about ")
    assert last.startswith("compiled 2 programs in ")
    assert advising.startswith("v5e-1: searching for a change that fits, 10 min") and planned[0]["advice"] == {"v5e-1": None}


def test_a_run_that_one_chip_does_not_hold(planned):
    row = planned[0]["programs"][0]
    assert (row["slice"], row["topology"], row["chips"], row["fits"]) == ("v5e-1", "v5e:1x1", 1, False)
    assert "rows of 16 tokens on tpu" in row["attention"]
    table = 128 * 4 * 10_000_000
    memory = row["memory"]
    assert memory["parameters"] == pytest.approx(table, rel=0.02)
    assert memory["optimizer"] == pytest.approx(2 * table, rel=0.02)
    assert memory["total"] > row["memory_limit"] == int(15.75 * 2**30)
    assert memory["total"] == sum(size for name, size in memory.items() if name != "total")
    assert "10000" in row["largest"][0]["shape"]


def test_two_slices_that_hold_it(planned):
    row = planned[0]["programs"][1]
    assert (row["chips"], row["fits"], row["rows_per_device"]) == (8, True, 1)
    assert row["mesh"] == {"replica": 2, "data": 1, "fsdp": 4, "sequence": 1, "tensor": 1}
    assert row["memory"]["parameters"] == pytest.approx(128 * 10_000_000, rel=0.05)
    # The gradients of the table, in whatever pieces, go from slice to slice, and parameters within.
    axes = {axis for each in row["collectives"] for axis in each["axes"]}
    assert axes == {"replica", "fsdp"}
    between = sum(each["bytes"] for each in row["collectives"] if each["axes"] == ["replica"])
    # The bias of the words is whole on each device, which sends a quarter of it.
    assert between >= row["memory"]["parameters"] * 0.97
    bound = row["bound"]
    assert bound["binds"] == "dcn" and bound["seconds"] == bound["dcn"] >= between / 6.25e9 * 0.98


def test_shardings_of_all_arrays(planned):
    for name, parts in (("v5e-1", 1), ("2xv5p-8", 4)):
        table = {(row["part"], row["name"]): row for row in planned[0]["shardings"][name]}
        words = table["parameters", "encoder/embeddings/word/table"]
        assert words["axes"] == ["vocab", "embed"] and words["over"] == [[], ["fsdp"] if parts > 1 else []]
        assert words["bytes"] == words["shape"][0] * 128 * 4 // parts
        moments = [row for (part, path), row in table.items() if part == "optimizer" and path.endswith("word/table")]
        assert [row["bytes"] for row in moments] == 2 * [words["bytes"]]
    assert table["batch of 16 tokens", "encoder_input_tokens"]["over"] == [["replica", "fsdp"], []]
    assert table["activations", "batch"]["over"] == [["replica", "fsdp"]]


def test_the_devices_that_are_here(capsys):
    words = [*TINY, "--slice=here", "--program=evaluate", "--shardings", "--most_rows"]
    assert cli.main([*words, "--vocab_size=100"]) == 0
    out, err = capsys.readouterr()
    assert err.startswith("[1/1] here: evaluate 8 x 16\ncompiled 1 program in ")
    assert err.endswith("bertfam: warning: here: the memory of cpu is unknown, so --most_rows is skipped\n")
    assert "encoder/layers/attention/query/kernel  [layers 1, embed 128, heads 2, head_dim 64]  and of the optimizer" in out
    assert "evaluate 8 x 16" in out


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
