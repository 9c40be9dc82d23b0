"""What two small models cost on TPU slices, by the TPU compiler, is what is on record; libtpu without a TPU is silent."""

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

compiles = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="no TPU compiler: pip install 'bertfam[tpu]' (the test extra has it)"
)


def python(*words, **environment):
    command, root = [sys.executable, *words], Path(__file__).parents[2]
    return subprocess.run(command, capture_output=True, text=True, cwd=root, env=os.environ | environment)


@compiles
def test_costs_of_two_small_models_are_as_on_record():
    done = python("-m", "benchmarks.tpu_golden", "small")
    assert done.returncode == 0, done.stderr
    assert [line.rpartition(":")[0] for line in done.stdout.splitlines()] == list(SMALL)


@compiles
def test_libtpu_does_not_complain_that_there_is_no_tpu():
    found = {name: value for name, value in os.environ.items() if not name.startswith(("TPU_", "JAX_PLATFORMS"))}
    code = "from bertfam.sharding import libtpu; libtpu.quieten(); import jax; print(jax.devices()[0].platform)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=found)
    assert done.returncode == 0 and done.stderr == ""


def gather(
    shape, op_name="jit(train_step)/jvp(Encoder)/layers/while/body/attention/dot_general", kind="all-gather", axes=("fsdp",)
):
    return Collective(kind, axes, 2, 0, 1, shape, op_name)


@pytest.fixture(scope="module")
def params():
    """Of a stack of 3 layers over fsdp and tensor, and of a table over fsdp."""
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
def test_gathered_activations_and_logits_are_told_with_their_module(params, shape):
    (told,) = unexpected([gather(shape)], params, tokens=96)
    assert "is gathered over fsdp, but is no parameter: jit(train_step)/jvp(Encoder)/layers" in told
    assert unexpected([gather(shape)], params, 96, allowed=("layers/attention",)) == []
    assert unexpected([gather(shape, kind="all-reduce")], params, tokens=96) == []


def test_differences_are_exact_under_the_same_versions_alone():
    before = {"FLOPs": 1_000_000, "bytes of all-gather over fsdp": 1_000_000, TEMPORARIES: 10}
    assert differences(before, before, exact=True) == []
    more = before | {"bytes of all-gather over fsdp": 1_000_001, TEMPORARIES: 10_000_000}
    assert differences(more, before, exact=True) == [
        "bytes of all-gather over fsdp: 1,000,001 and not 1,000,000",
        "bytes of temporaries: 10,000,000 and not 10",
    ]
    assert differences(more, before, exact=False) == []
    assert differences(before | {"FLOPs": 1_500_001}, before, exact=False) == ["FLOPs: 1,500,001 and not 1,000,000"]
    assert differences(before | {"bytes of all-to-all over fsdp": 70_000}, before, exact=False) == [
        "bytes of all-to-all over fsdp: 70,000 and not 0"
    ]
