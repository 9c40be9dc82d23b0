"""The watchdog of a stuck process prints the stacks of all threads and exits."""

import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from bertfam.training import watchdog
from bertfam.training.logs.phase_timer import Phase, PhaseTimer
from bertfam.training.watchdog import EXIT_CODE, watch

STUCK = """
import time
from bertfam.training.logs.phase_timer import PhaseTimer
from bertfam.training.watchdog import watch
phase_timer = PhaseTimer()
with watch(phase_timer, 0.3, process=1):
    phase_timer.begin("compiling", long=True)
    time.sleep(0.6)
    phase_timer.begin("training")
    def the_function_that_hangs():
        time.sleep(60)
    the_function_that_hangs()
"""

# A process that has waited two hours for the token cache, which another process builds.
WAITING_LONG = """
import time
from bertfam.training.logs.phase_timer import PhaseTimer, Phase
from bertfam.training.watchdog import watch
phase_timer = PhaseTimer()
phase_timer.now = Phase("starting", time.monotonic() - 7200, True)
with watch(phase_timer, 0.3):
    time.sleep(0.5)
"""


def test_stuck_process_prints_stacks_and_exits_with_its_own_code():
    done = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=300)
    assert done.returncode == EXIT_CODE == 76
    assert "in the_function_that_hangs" in done.stderr
    assert done.stderr.splitlines()[-1] == (
        "bertfam: error: process 1 was stuck in the phase 'training' (Run.watchdog_seconds = 0.3) and exits; the stack of "
        "each thread is above"
    )


def test_time_before_the_watch_does_not_count():
    done = subprocess.run([sys.executable, "-c", WAITING_LONG], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")


class Exited(Exception):
    """The watchdog has ended the process."""


class Clock:
    """Clock that the watchdog moves by waiting; the phase changes every tenth of a second."""

    def __init__(self, phase_timer, end):
        self.now, self.end, self.phase_timer = 0.0, end, phase_timer

    def wait(self, seconds):
        self.now += seconds
        if self.now < 5:
            self.phase_timer.now = Phase("training", self.now - self.now % 0.1, False)
        return self.now > self.end

    def monotonic(self):
        return self.now


@pytest.fixture
def watched(monkeypatch):
    """Return a function that watches a process for some seconds; its phases change until second 5."""

    def watch_until(seconds):
        def leave(status):
            raise Exited(status)

        phase_timer = PhaseTimer()
        phase_timer.now = Phase("training", 0.0, False)
        clock = Clock(phase_timer, seconds)
        monkeypatch.setattr(watchdog, "time", clock)
        monkeypatch.setattr(watchdog, "os", SimpleNamespace(_exit=leave))
        monkeypatch.setattr(watchdog.faulthandler, "dump_traceback", lambda **options: None)
        watchdog._watch(phase_timer, 0.5, 0, 0, clock)
        return clock.now

    return watch_until


def test_watchdog_stays_silent_while_phases_change(watched, capsys):
    assert 5 < watched(5.2) < 6 and capsys.readouterr().err == ""
    with pytest.raises(Exited, match="76"):
        watched(6)


def test_watchdog_ends_with_the_watch():
    def watchdogs():
        return [thread for thread in threading.enumerate() if thread.name == "watchdog"]

    with watch(PhaseTimer(), 1000):
        (thread,) = watchdogs()
    thread.join(30)
    assert not thread.is_alive()
    with watch(PhaseTimer(), 0):
        assert not watchdogs()
