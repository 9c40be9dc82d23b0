"""Restoring a checkpoint on several processes: each byte is read by one of them, and all get the same bits."""

import json
import os
import socket

import broadcast_process
import numpy as np
import orbax.checkpoint as ocp
import xla
from fork_server import ForkedProcess
from time_limits import FAR_SECONDS

COUNT = 2


def test_replicated_arrays_are_read_once(tmp_path):
    with ocp.PyTreeCheckpointer() as orbax:
        orbax.save(tmp_path / "checkpoint", broadcast_process.values(), save_args=broadcast_process.save_args())
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    processes = [
        ForkedProcess([broadcast_process.__file__, tmp_path, port, COUNT, index], os.environ | xla.device_environment(2))
        for index in range(COUNT)
    ]
    assert [process.wait(FAR_SECONDS) for process in processes] == [0] * COUNT
    reports = [json.loads((tmp_path / f"{index}.json").read_text()) for index in range(COUNT)]
    assert all(report["once differs"] == [] for report in reports)
    values = {name: np.asarray(value).nbytes for name, value in broadcast_process.values().items()}
    sharded_bytes = values.pop("more") / COUNT
    assert all(report["all"] > 0.9 * (sum(values.values()) + sharded_bytes) for report in reports)
    # Each array is read once. Whatever is smaller than 1 MB and lies between two requests of the same millisecond is read too.
    gap_bytes = values["flags"] + sharded_bytes
    assert sum(report["once"] for report in reports) < 1.1 * sum(values.values()) + COUNT * (sharded_bytes + gap_bytes)
    # Each of the two processes reads about half of the bytes.
    assert max(report["once"] for report in reports) < 0.6 * sum(values.values()) + sharded_bytes + gap_bytes
