"""All processes stop after the same step; here they are threads, each with its own sockets."""

import os
import random
import signal
import time

import pytest
from process_threads import on_each

from bertfam.multihost import preemption
from bertfam.multihost.preemption import Stop, stop_on_signals


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
        stop.finish_round()
        return processes.gather("afterwards", processes.index)

    assert on_each(2, train) == [[0, 1]] * 2


def test_a_signal_asks_once_and_leaves_no_trace(capsys):
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    stop = Stop()
    with stop_on_signals(stop):
        os.kill(os.getpid(), signal.SIGTERM)
        end = time.monotonic() + 5
        while not stop.asked and time.monotonic() < end:
            time.sleep(0.01)
    assert stop.asked == "SIGTERM" and stop.ask()
    assert capsys.readouterr().err == "bertfam: SIGTERM: stopping after this step and saving it; a second signal exits at once\n"
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
