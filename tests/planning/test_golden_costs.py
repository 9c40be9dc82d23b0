"""Costs of a small model on a TPU slice by the TPU compiler, equal to the recorded ones; libtpu prints nothing."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from benchmarks.tpu_golden import SMALL, TEMPORARIES, differences, unexpected
from bertfam.planning.hlo.collectives import Collective

requires_compiler = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="no TPU compiler: pip install 'bertfam[tpu]' (the test extra has it)"
)


def run_python(*words, **environment):
    command, root = [sys.executable, *words], Path(__file__).parents[2]
    return subprocess.run(command, capture_output=True, text=True, cwd=root, env=os.environ | environment)


@requires_compiler
def test_costs_of_a_small_model_equal_the_record():
    process = run_python("-m", "benchmarks.tpu_golden", "small")
    assert process.returncode == 0, process.stderr
    assert [line.rpartition(":")[0] for line in process.stdout.splitlines()] == list(SMALL)
    assert "dropout_bits hash" in process.stdout  # "auto", as it is chosen for a TPU


@requires_compiler
def test_libtpu_prints_nothing_without_a_tpu():
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TPU_", "JAX_PLATFORMS"))}
    code = "from bertfam.sharding import libtpu; libtpu.quieten(); import jax; print(jax.devices()[0].platform)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert process.returncode == 0 and process.stderr == ""


def gather(
    shape, op_name="jit(train_step)/jvp(Encoder)/layers/while/body/attention/dot_general", kind="all-gather", axes=("fsdp",)
):
    return Collective(kind, axes, 2, 0, 1, shape, op_name)


@pytest.fixture(scope="module")
def params():
    """Parameters of a stack of 3 layers over fsdp and tensor, and of a table over fsdp."""
    mesh = AbstractMesh((2, 2), ("fsdp", "tensor"))

    def leaf(shape, *axes):
        return jax.ShapeDtypeStruct(shape, np.float32, sharding=NamedSharding(mesh, PartitionSpec(*axes)))

    return {"layers": leaf((3, 40, 60), None, "fsdp", "tensor"), "table": leaf((50, 40), None, "fsdp")}


@pytest.mark.parametrize(
    "shape",
    [
        "bf16[40,30]",
        "f32[1,40,30]",
        "bf16[3,40,30]",
        "bf16[50,40]",
        "f32[8,12]",
        "bf16[40,2,30]",
        "s32[8,12,40]",
        "(bf16[50,40], f32[40,30])",
    ],
)
def test_gathered_parameters_and_small_arrays_are_expected(params, shape):
    assert unexpected([gather(shape)], params, tokens=96) == []


@pytest.mark.parametrize("shape", ["bf16[8,12,40]", "f32[8,12,70]", "(bf16[50,40], f32[8,12,40])"])
def test_gathered_activations_and_logits_are_reported_with_their_module(params, shape):
    (report,) = unexpected([gather(shape)], params, tokens=96)
    assert "is gathered over fsdp, but is no parameter: jit(train_step)/jvp(Encoder)/layers" in report
    assert unexpected([gather(shape)], params, 96, allowed=("layers/attention",)) == []
    assert unexpected([gather(shape, kind="all-reduce")], params, tokens=96) == []


def test_differences_are_exact_only_with_the_same_versions():
    before = {"FLOPs": 1_000_000, "bytes of all-gather over fsdp": 1_000_000, TEMPORARIES: 10}
    assert differences(before, before, exact=True) == []
    after = before | {"bytes of all-gather over fsdp": 1_000_001, TEMPORARIES: 10_000_000}
    assert differences(after, before, exact=True) == [
        "bytes of all-gather over fsdp: 1,000,001 and not 1,000,000",
        "bytes of temporaries: 10,000,000 and not 10",
    ]
    assert differences(after, before, exact=False) == []
    assert differences(before | {"FLOPs": 1_500_001}, before, exact=False) == ["FLOPs: 1,500,001 and not 1,000,000"]
    assert differences(before | {"bytes of all-to-all over fsdp": 70_000}, before, exact=False) == [
        "bytes of all-to-all over fsdp: 70,000 and not 0"
    ]
