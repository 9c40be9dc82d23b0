"""Attention whose rows, heads and tokens are sharded over devices."""

import json
from pathlib import Path

import pytest
import xla
from fork_server import run_program


@pytest.fixture(scope="module")
def results():
    """Return what eight simulated devices, and the compiler for TPUs, give."""
    out, _ = run_program(Path(__file__).parent / "attention_meshes.py", environment=xla.device_environment(8))
    return json.loads(out.splitlines()[-1])


def test_sharded_rows_give_the_values_and_gradients_of_whole_ones(results):
    assert len(results["differences"]) == 7
    assert {case: value for case, value in results["differences"].items() if value > 1e-5} == {}


def test_sharded_rows_give_the_values_and_gradients_of_whole_ones_in_row_kernels(results):
    """Rows are sharded over two devices, tokens over two, and heads and the hidden layer over two; one device has no kernels."""
    assert results["row kernels"] < 1e-4


def test_a_window_exchanges_the_tokens_beside_a_device_only(results):
    gathers = {
        case: count
        for case, count in results["gathers"].items()
        if case.startswith(("blocks", "splash")) and "global" not in case
    }
    assert {case for case, count in gathers.items() if count} == {"splash, 300 tokens on each side"}


def test_kernels_for_hopper_lower_with_the_tokens_of_rows_sharded(results):
    """Windows exchange the tokens beside a device's own: keys and values, their segments, and the gradients of the former."""
    if "hopper" not in results:
        pytest.skip("the kernels require jax 0.11.2")
    calls = {name: counts["mosaic_gpu"] for name, counts in results["hopper"].items()}
    assert calls.keys() == {"all", "window", "blocks", "global"} and min(calls.values()) >= 3
    exchanges = {name: counts["collective_permute"] for name, counts in results["hopper"].items()}
    assert exchanges == {"all": 0, "window": 10, "blocks": 0, "global": 0}


def test_kernels_compile_for_tpu_slices(results):
    """Each has a kernel for the outputs, one for the gradients of queries and one for those of keys and values."""
    if not results["tpu"]:
        pytest.skip("no TPU compiler: pip install 'bertfam[tpu]' (the test extra has it)")
    assert {slice_: (found["name"], found["calls"]) for slice_, found in results["tpu"].items()} == dict.fromkeys(
        ("v5e-8", "v6e-4"), ("splash", 3)
    )
    assert results["tpu"]["v5e-8"]["gathers"] == 0
