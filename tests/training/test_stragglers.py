"""Stragglers among several processes."""

from types import SimpleNamespace

import pytest

from bertfam.multihost.preemption import Stop
from bertfam.multihost.processes import Processes
from bertfam.training.logs import stragglers
from bertfam.training.logs.stragglers import StragglerMonitor


class Lines:
    def __init__(self):
        self.found = []

    def write(self, step, split, values):
        self.found.append((step, split, values))


def test_devices_stand_still_while_their_process_is_late(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(stragglers.time, "monotonic", lambda: clock.now)
    stop = Stop()
    times = StragglerMonitor(stop=stop)

    def update(began, busy, waited, took=0.5):
        clock.now = began
        times.before_update(busy, waited)
        clock.now = began + took
        times.after_update()

    update(0, False, 9)  # the first compiles and is not counted
    assert stop.message() == [0, 0, 0, 0]
    update(1, True, 0)  # in time
    assert stop.message() == [1, 1, 0, 0]
    update(3, False, 0.25)  # 1.5 s after the last was handed over
    assert stop.message() == [2, 3, 1.5, 0.25]
    times.pause()  # evaluating, say
    update(50, False, 0)
    assert stop.message() == [2, 3, 1.5, 0.25]
    update(51, False, 0)
    assert stop.message() == [3, 4, 2, 0.25]


@pytest.fixture
def report(capsys):
    """report(counts of three processes) gives the line of metrics.jsonl and what is told."""
    processes, stop, lines = Processes(0, ["link", "link"]), Stop(), Lines()
    processes.hosts = ["a", "b", "c"]
    times = StragglerMonitor(processes, stop, lines)

    def report(counts=None):
        stop.messages = stop.messages if counts is None else counts
        lines.found.clear()
        times.report(7)
        return (lines.found[0] if lines.found else None), capsys.readouterr().err

    return report


def rounds(number, late, data=0.0):
    """What is told after so many rounds of 10 steps of 0.5 s, in which process 1 is `late` at each."""
    return [[10 * number, 5.0 * number, 10 * number * idle, 10 * number * data] for idle in (0.05, late, 0.1)]


def test_a_line_has_a_number_for_each_process(report):
    assert report() == (None, "")  # no round has ended
    line, told = report(rounds(1, 0.11, 0.02))
    assert line[:2] == (7, "hosts") and told == ""
    expected = {
        "step_seconds": [0.5] * 3,
        "idle_seconds": [0.05, 0.11, 0.1],
        "data_seconds": [0.02] * 3,
        "slowest": 1,
        "late": 0.02,
    }
    assert {name: pytest.approx(value) for name, value in line[2].items()} == expected
    assert report() == (None, "")  # none since


@pytest.mark.parametrize(("data", "why"), [(0.0, ""), (0.3, ", mostly waiting for data,")])
def test_one_that_is_late_again_and_again_is_named_once(report, data, why):
    told = [report(rounds(number, 0.3, data))[1] for number in range(1, 6)]
    assert told == [
        "",
        "",
        f"bertfam: warning: process 1 on b is a straggler: its devices are idle{why} for 0.3 s of each step of 0.5 s, those "
        "of the others for 0.1 s\n",
        "",
        "",
    ]


def test_all_that_are_late_alike_hold_up_nobody(report):
    for number in range(1, 6):
        line, told = report([[10 * number, 5.0 * number, 4.0 * number, 0.0]] * 3)
        assert line[2]["late"] == 0 and told == ""
