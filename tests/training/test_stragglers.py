"""Detection of stragglers among several processes."""

from types import SimpleNamespace

import pytest

from bertfam.multihost.preemption import Stop
from bertfam.multihost.processes import Processes
from bertfam.training.logs import stragglers
from bertfam.training.logs.stragglers import StragglerMonitor


class RecordedLines:
    def __init__(self):
        self.lines = []

    def write(self, step, split, values):
        self.lines.append((step, split, values))


def test_idle_time_of_devices_is_measured(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(stragglers.time, "monotonic", lambda: clock.now)
    stop = Stop()
    times = StragglerMonitor(stop=stop)

    def update(start, busy, waited, seconds=0.5):
        clock.now = start
        times.before_update(busy, waited)
        clock.now = start + seconds
        times.after_update()

    update(0, False, 9)  # the first update compiles and does not count
    assert stop.message() == [0, 0, 0, 0]
    update(1, True, 0)  # without delay
    assert stop.message() == [1, 1, 0, 0]
    update(3, False, 0.25)  # 1.5 s after the last one was dispatched
    assert stop.message() == [2, 3, 1.5, 0.25]
    times.pause()  # for an evaluation, for example
    update(50, False, 0)
    assert stop.message() == [2, 3, 1.5, 0.25]
    update(51, False, 0)
    assert stop.message() == [3, 4, 2, 0.25]


@pytest.fixture
def report(capsys):
    """Return a function from the counts of three processes to the line of metrics.jsonl and the warning."""
    processes, stop, writer = Processes(0, ["link", "link"]), Stop(), RecordedLines()
    processes.hosts = ["a", "b", "c"]
    times = StragglerMonitor(processes, stop, writer)

    def report(counts=None):
        stop.messages = stop.messages if counts is None else counts
        writer.lines.clear()
        times.report(7)
        return (writer.lines[0] if writer.lines else None), capsys.readouterr().err

    return report


def rounds(number, late, data=0.0):
    """Return the counts after `number` rounds of 10 steps of 0.5 s; process 1 is idle for `late` seconds at each step."""
    return [[10 * number, 5.0 * number, 10 * number * idle, 10 * number * data] for idle in (0.05, late, 0.1)]


def test_line_has_a_value_for_each_process(report):
    assert report() == (None, "")  # no round has ended
    line, warning = report(rounds(1, 0.11, 0.02))
    assert line[:2] == (7, "hosts") and warning == ""
    expected = {
        "step_seconds": [0.5] * 3,
        "idle_seconds": [0.05, 0.11, 0.1],
        "data_seconds": [0.02] * 3,
        "slowest": 1,
        "late": 0.02,
    }
    assert {name: pytest.approx(value) for name, value in line[2].items()} == expected
    assert report() == (None, "")  # no round has ended since


@pytest.mark.parametrize(("data", "reason"), [(0.0, ""), (0.3, ", mostly waiting for data,")])
def test_persistent_straggler_is_named_once(report, data, reason):
    warnings = [report(rounds(number, 0.3, data))[1] for number in range(1, 6)]
    assert warnings == [
        "",
        "",
        f"bertfam: warning: process 1 on b is a straggler: its devices are idle{reason} for 0.3 s of each step of 0.5 s, those "
        "of the others for 0.1 s\n",
        "",
        "",
    ]


def test_processes_that_are_equally_late_are_no_stragglers(report):
    for number in range(1, 6):
        line, warning = report([[10 * number, 5.0 * number, 4.0 * number, 0.0]] * 3)
        assert line[2]["late"] == 0 and warning == ""
