"""Stops of all processes after the same step, here as threads with separate sockets."""

import os
import random
import signal
import time

import pytest
from process_threads import run_on_all
from time_limits import FAR_SECONDS

from bertfam.multihost import preemption
from bertfam.multihost.preemption import Stop, stop_on_signals
from bertfam.multihost.processes import Processes


def test_single_process_stops_immediately():
    stop = Stop()
    assert not stop.ask()
    stop.asked = "SIGTERM"
    assert stop.ask()
    stop = Stop()
    stop.reasons.append(lambda: True)
    assert stop.ask()


@pytest.mark.parametrize(("count", "who"), [(2, 0), (2, 1), (3, 2)])
def test_all_processes_stop_after_the_same_step(count, who, monkeypatch):
    """Train at a different pace in each process; only the rounds synchronise them."""
    monkeypatch.setattr(preemption, "_ROUND", 0.02)

    def train(processes):
        stop, pace = Stop(processes), random.Random(processes.index)
        for step in range(1, 10_000):
            time.sleep(pace.random() * 2e-3)
            if processes.index == who and step == 57:
                stop.asked = "SIGTERM"
            if stop.ask():
                break
        return step, processes.gather("afterwards", processes.index)

    results = run_on_all(count, train)
    assert len({step for step, _ in results}) == 1 and 57 < results[0][0] < 200
    assert all(values == list(range(count)) for _, values in results)


def test_unfinished_round_at_the_end_does_not_disturb_later_messages(monkeypatch):
    monkeypatch.setattr(preemption, "_ROUND", 1.0)

    def train(processes):
        stop = Stop(processes)
        assert not any(stop.ask() for step in range(1, 40))
        stop.finish_round()
        return processes.gather("afterwards", processes.index)

    assert run_on_all(2, train) == [[0, 1]] * 2


@pytest.mark.parametrize("count", [1, 2])
def test_signal_with_nothing_to_save_ends_a_run_of_one_process_at_once(count, capsys, monkeypatch):
    done, statuses = [], []
    monkeypatch.setattr(preemption.os, "_exit", statuses.append)
    processes = Processes(links=[None] * (count - 1))
    processes.held.callback(done.append, "freed")
    stop = Stop(processes)
    with stop_on_signals(stop), stop.nothing_to_save():
        os.kill(os.getpid(), signal.SIGTERM)
        deadline = time.monotonic() + FAR_SECONDS
        while not (capsys.readouterr().err if count > 1 else statuses) and time.monotonic() < deadline:
            time.sleep(0.01)
    assert (statuses, done) == (([75], ["freed"]) if count == 1 else ([], []))


def test_signal_before_there_is_nothing_to_save_is_not_forgotten(capsys):
    stop = Stop()
    stop.asked = "SIGTERM"
    with pytest.raises(SystemExit, match="75"), stop.nothing_to_save():
        raise AssertionError
    assert "SIGTERM" in capsys.readouterr().err and not stop.exits


def test_signal_requests_a_stop_and_handlers_are_restored(capsys):
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    stop = Stop()
    with stop_on_signals(stop):
        os.kill(os.getpid(), signal.SIGTERM)
        deadline = time.monotonic() + FAR_SECONDS
        while not stop.asked and time.monotonic() < deadline:
            time.sleep(0.01)
    assert stop.asked == "SIGTERM" and stop.ask()
    assert capsys.readouterr().err == "bertfam: SIGTERM: stopping after this step and saving it; a second signal exits at once\n"
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_a_closed_terminal_stops_the_run_once(capsys):
    stop = Stop()
    with stop_on_signals(stop):
        for _ in range(2):  # the shell and the kernel say so
            os.kill(os.getpid(), signal.SIGHUP)
            time.sleep(0.05)
    assert stop.asked == "SIGHUP"
    assert capsys.readouterr().err.count("stopping after this step") == 1


def test_a_closed_terminal_is_ignored_under_nohup():
    before, stop = signal.signal(signal.SIGHUP, signal.SIG_IGN), Stop()
    try:
        with stop_on_signals(stop):
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert stop.asked is None
