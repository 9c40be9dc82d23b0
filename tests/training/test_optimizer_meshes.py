"""Updates are the same on every mesh, and the state of an optimizer is split like the parameters."""

import json
from pathlib import Path

import xla
from fork_server import run_program


def test_updates_are_the_same_on_eight_devices():
    out, _ = run_program(Path(__file__).with_name("optimizer_meshes.py"), environment=xla.device_environment(8))
    results = json.loads(out.splitlines()[-1])
    assert {case: values["difference"] < 1e-6 for case, values in results.items()} == dict.fromkeys(results, True)
    kernel = "['encoder']['layers']['attention']['query']['kernel']"
    factors = {name: split for name, split in results["Adafactor factored"]["splits"].items() if kernel in name}
    # [layers, embed] and [layers, heads, head_dim] of [layers, embed, heads, head_dim]
    assert sorted(factors.values(), key=len) == [[None, "fsdp"], [None, "tensor", None]]
    kernel_axes = [None, "fsdp", "tensor", None]
    for case in ("AdamW", "Lamb", "Muon"):
        moments = [split for name, split in results[case]["splits"].items() if kernel in name]
        assert moments == [kernel_axes] * (1 if case == "Muon" else 2)
