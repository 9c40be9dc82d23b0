"""Limits of CPU time: what waits for the machine passes, and what computes or waits for ever fails."""

import subprocess
import sys
import time

import pytest
import time_limits
from time_limits import ProcessLimit, cpu_limit

SPIN = [sys.executable, "-c", "while True: pass"]


def test_a_block_is_limited_by_its_cpu_time(monkeypatch):
    with cpu_limit(0.2, "a wait"):
        time.sleep(0.3)
    with pytest.raises(AssertionError, match="a loop: took 0.1 s of CPU time"), cpu_limit(0.1, "a loop"):
        while True:
            pass
    monkeypatch.setattr(time_limits, "FAR_SECONDS", 1)
    with pytest.raises(AssertionError, match="a wait: waits for ever"), cpu_limit(9, "a wait"):
        time.sleep(5)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_process_is_limited_by_its_cpu_time():
    with subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(0.3)"]) as process:
        ProcessLimit(process, 20).wait()
    assert process.returncode == 0
    with subprocess.Popen(SPIN) as process:
        with pytest.raises(AssertionError, match="took 0.2 s of CPU time"):
            ProcessLimit(process, 0.2).wait()
        with pytest.raises(AssertionError, match="waits for ever"):
            ProcessLimit(process, 900, far_seconds=0).check()
        process.kill()
