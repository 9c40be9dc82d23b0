"""The watchdog of a stuck process prints the stacks of all threads and exits.

tests/commands/test_pretrain_processes.py has a real process that is stuck.
"""

import threading
from types import SimpleNamespace

import pytest
from time_limits import FAR_SECONDS

from bertfam.training import watchdog
from bertfam.training.logs.phase_timer import Phase, PhaseTimer
from bertfam.training.watchdog import EXIT_CODE, watch


class Exited(Exception):
    """The watchdog has ended the process."""


class Clock:
    """Clock that the watchdog moves by waiting; phase_at(time) is the phase then. The machine stands still once for `still`."""

    def __init__(self, phase_timer, phase_at, end, still):
        self.now, self.end, self.phase_timer, self.phase_at, self.still = 0.0, end, phase_timer, phase_at, still

    def wait(self, seconds):
        self.now += seconds + self.still
        self.still = 0.0
        self.phase_timer.now = self.phase_at(self.now)
        return self.now > self.end

    def monotonic(self):
        return self.now


@pytest.fixture
def watched(monkeypatch):
    """Return a function that watches a process for some seconds, and returns the time at the end."""

    def watch_until(end, phase_at, later=0, still=0.0):
        def leave(status):
            raise Exited(status)

        phase_timer = PhaseTimer()
        phase_timer.now = phase_at(0.0)
        clock = Clock(phase_timer, phase_at, end, still)
        monkeypatch.setattr(watchdog, "time", clock)
        monkeypatch.setattr(watchdog, "os", SimpleNamespace(_exit=leave))
        monkeypatch.setattr(watchdog.faulthandler, "dump_traceback", lambda **options: None)
        watchdog._watch(phase_timer, 0.5, 1, later, clock)
        return clock.now

    return watch_until


def changing(now):
    """Return a phase of a tenth of a second until second 5, and then one without an end."""
    return Phase("training", min(now, 5) - min(now, 5) % 0.1, False)


def test_watchdog_stays_silent_while_phases_change(watched, capsys):
    assert 5 < watched(5.2, changing) < 6 and capsys.readouterr().err == ""
    with pytest.raises(Exited, match=str(EXIT_CODE)):
        watched(6, changing)
    assert capsys.readouterr().err == (
        "bertfam: error: process 1 was stuck in the phase 'training' (Run.watchdog_seconds = 0.5) and exits; the stack of "
        "each thread is above\n"
    )
    assert 6 < watched(6, changing, later=2) < 7  # another process may report first


def test_long_phase_may_take_an_hour(watched):
    def compiling(now):
        return Phase("compiling", 0.0, True)

    assert watched(3590, compiling) > 3590
    with pytest.raises(Exited):
        watched(3610, compiling)


def test_time_before_the_watch_does_not_count(watched):
    """A process has waited two hours for the token cache, which another process builds."""
    assert watched(3590, lambda now: Phase("starting", -7200.0, True)) > 3590


def test_time_in_which_the_machine_stands_still_does_not_count(watched):
    def stuck(now):
        return Phase("training", 0.0, False)

    with pytest.raises(Exited):
        watched(60, stuck)
    assert 90 < watched(90.4, stuck, still=90) < 91
    with pytest.raises(Exited):
        watched(91, stuck, still=90)


def test_watchdog_ends_with_the_watch():
    def watchdogs():
        return [thread for thread in threading.enumerate() if thread.name == "watchdog"]

    with watch(PhaseTimer(), 1000):
        (thread,) = watchdogs()
    thread.join(FAR_SECONDS)
    assert not thread.is_alive()
    with watch(PhaseTimer(), 0):
        assert not watchdogs()
