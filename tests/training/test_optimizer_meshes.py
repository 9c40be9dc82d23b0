"""Updates are the same on every mesh, and an optimizer's state is spread like the parameters."""

import json
import os
import subprocess
import sys
from pathlib import Path

import xla


def test_updates_are_the_same_on_eight_devices():
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("optimizer_meshes.py")],
        env=os.environ | xla.devices(8),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert {case: values["difference"] < 1e-6 for case, values in found.items()} == dict.fromkeys(found, True)
    kernel = "['encoder']['layers']['attention']['query']['kernel']"
    factors = {name: split for name, split in found["Adafactor factored"]["splits"].items() if kernel in name}
    # [layers, embed] and [layers, heads, head_dim] of [layers, embed, heads, head_dim]
    assert sorted(factors.values(), key=len) == [[None, "fsdp"], [None, "tensor", None]]
    spread = [None, "fsdp", "tensor", None]
    for case in ("AdamW", "Lamb", "Muon"):
        moments = [split for name, split in found[case]["splits"].items() if kernel in name]
        assert moments == [spread] * (1 if case == "Muon" else 2)
