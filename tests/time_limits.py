"""Limits of time that a busy machine does not reach: of CPU time, and far ones of wall-clock time for what waits for ever."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FAR_SECONDS = 1800  # of wall-clock time
_POLL_SECONDS = 0.05
# Places in /proc/PID/stat, behind the name, of the CPU time of a process and of its children that have ended.
_TIMES = slice(11, 15)


@contextmanager
def cpu_limit(seconds: float, what: str) -> Iterator[None]:
    """Fail if a block takes more CPU time of this thread, the main one, or if it waits for ever."""
    start, until = time.thread_time(), time.monotonic() + FAR_SECONDS

    def check(number, frame):
        if time.thread_time() - start >= seconds:
            raise AssertionError(f"{what}: took {seconds:g} s of CPU time")
        if time.monotonic() >= until:
            raise AssertionError(f"{what}: waits for ever")

    # Not ITIMER_PROF: it counts the threads that earlier tests of the process left behind too.
    previous = signal.signal(signal.SIGALRM, check)
    interval = min(1.0, seconds / 2)
    signal.setitimer(signal.ITIMER_REAL, interval, interval)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


class ProcessLimit:
    """Limit of the CPU time of another process and its ended children."""

    def __init__(self, process: subprocess.Popen, seconds: float, far_seconds: float = FAR_SECONDS) -> None:
        """Start to count; `far_seconds` limits the wall-clock time."""
        self._process, self._seconds = process, seconds
        self._until = time.monotonic() + far_seconds

    def check(self) -> None:
        """Fail if the process has reached the limit."""
        assert cpu_seconds(self._process.pid) < self._seconds, f"{self._process.args}: took {self._seconds:g} s of CPU time"
        assert time.monotonic() < self._until, f"{self._process.args}: waits for ever"

    def wait(self) -> None:
        """Wait for the end of the process; fail once it has reached the limit."""
        while self._process.poll() is None:
            self.check()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_POLL_SECONDS)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and its ended children; 0 where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[_TIMES])) / os.sysconf("SC_CLK_TCK")
