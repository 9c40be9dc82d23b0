"""Benchmark of weak scaling on simulated devices."""

import os
import re
import subprocess
import sys

from tests import xla


def test_rows_of_single_devices_all_devices_and_a_mesh():
    """Rows of the table are in order, each with a rate and its share of the slowest device's rate."""
    words = ["--run=quickstart_bert", "--rows=2", "--length=32", "--steps=1", "--rounds=1", "--mesh=zero1"]
    words += ["--gin=BertConfig.num_layers = 1", "--gin=Execution.layers = 'scan'"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.scaling", *words],
        env=os.environ | xla.device_environment(2),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines() if line.startswith("|")][2:]
    assert [row[:2] for row in rows] == [
        ["device 0 alone", "1"],
        ["device 1 alone", "1"],
        ["all at once", "2"],
        ["zero1", "2"],
    ]
    shares = [float(re.fullmatch(r"([\d.]+)%", row[3])[1]) for row in rows]
    assert min(shares[:2]) == 100 and all(share > 0 for share in shares)
