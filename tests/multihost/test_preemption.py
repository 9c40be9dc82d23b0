"""All processes stop after the same step; here they are threads, each with its own sockets."""

import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from bertfam.multihost import preemption
from bertfam.multihost.exit_status import ExitStatusLinks
from bertfam.multihost.preemption import Stop, signals_stop
from bertfam.multihost.processes import Processes
from bertfam.multihost.rendezvous import meet


def free_port():
    import socket

    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def on_each(count, what):
    """What what(processes) gives on each of so many."""
    port = free_port()

    def one(index):
        links, third = (meet("localhost", port, index, count, 10) for _ in range(2))
        return what(Processes(index, links, exit_status=ExitStatusLinks(third)))

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def test_one_process_stops_at_once():
    stop = Stop()
    assert not stop.ask()
    stop.asked = "SIGTERM"
    assert stop.ask()
    stop = Stop()
    stop.reasons.append(lambda: True)
    assert stop.ask()


@pytest.mark.parametrize(("count", "who"), [(2, 0), (2, 1), (3, 2)])
def test_all_stop_after_the_same_step_whoever_is_asked(count, who, monkeypatch):
    """Each at its own pace: nothing but the rounds holds them together."""
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

    found = on_each(count, train)
    assert len({step for step, _ in found}) == 1 and 57 < found[0][0] < 200
    assert all(values == list(range(count)) for _, values in found)


def test_a_round_that_is_under_way_at_the_end_disturbs_nothing(monkeypatch):
    monkeypatch.setattr(preemption, "_ROUND", 1.0)

    def train(processes):
        stop = Stop(processes)
        assert not any(stop.ask() for step in range(1, 40))
        stop.settle()
        return processes.gather("afterwards", processes.index)

    assert on_each(2, train) == [[0, 1]] * 2


def test_a_signal_asks_once_and_leaves_no_trace(capsys):
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    stop = Stop()
    with signals_stop(stop):
        os.kill(os.getpid(), signal.SIGTERM)
        end = time.monotonic() + 5
        while not stop.asked and time.monotonic() < end:
            time.sleep(0.01)
    assert stop.asked == "SIGTERM" and stop.ask()
    assert capsys.readouterr().err == "bertfam: SIGTERM: ends after this step and saves it; a second signal ends at once\n"
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
