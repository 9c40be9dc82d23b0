"""Several processes restore a checkpoint: each byte is read by one of them, and all have it, bit for bit."""

import json
import os
import socket
import subprocess
import sys

import broadcast_process
import numpy as np
import orbax.checkpoint as ocp
import xla

COUNT = 2


def test_what_all_hold_is_read_by_one(tmp_path):
    with ocp.PyTreeCheckpointer() as orbax:
        orbax.save(tmp_path / "checkpoint", broadcast_process.values())
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    started = [
        subprocess.Popen(
            [sys.executable, broadcast_process.__file__, tmp_path, str(port), str(COUNT), str(index)],
            env=os.environ | xla.devices(2),
        )
        for index in range(COUNT)
    ]
    assert [process.wait(120) for process in started] == [0] * COUNT
    told = [json.loads((tmp_path / f"{index}.json").read_text()) for index in range(COUNT)]
    assert all(one["once differs"] == [] for one in told)
    values = {name: np.asarray(value).nbytes for name, value in broadcast_process.values().items()}
    # One piece on the disk holds all of an array, so whoever has a part of it that nobody else has reads it too.
    everywhere = values.pop("more")
    assert all(one["all"] > 0.9 * (sum(values.values()) + everywhere) for one in told)
    # Each array once, and at times, as a process's requests happen to meet, one more that lies between two others.
    between = max(values.values())
    assert sum(one["once"] for one in told) < 1.1 * sum(values.values()) + COUNT * (everywhere + between)
    # About half of what is read by one, by each of two.
    assert max(one["once"] for one in told) < 0.6 * sum(values.values()) + everywhere + between
