"""Detection of stragglers: processes that the others wait for.

A step ends on all processes at once, in its collectives, so its time does not tell who was late. But the devices of a process
that is late stand still until it hands them the next update, while those of the others are at work: they wait for its in a
collective. So each process counts how long its devices stood still.
"""

import time
from statistics import median_low

from bertfam.errors import warn
from bertfam.multihost.preemption import Stop
from bertfam.multihost.processes import Processes
from bertfam.training.logs.metrics import NoMetrics, Writer

_LATE = 0.2  # of a step: so much more than half of the others
_OFTEN = 3  # reports one after another in which the same process is so late, before it is told


class StragglerMonitor:
    """Idle time of every process; process 0 reports all. The counts are exchanged in the rounds of `stop`."""

    def __init__(self, processes: Processes | None = None, stop: Stop | None = None, writer: Writer | None = None) -> None:
        """Start with empty counts.

        Args:
          processes: of the run.
          stop: asked by all of them after every step.
          writer: where the reports go.
        """
        self._processes, self._stop, self._writer = processes or Processes(), stop or Stop(), writer or NoMetrics()
        self._stop.message = self._counts
        self._steps, self._seconds, self._idle, self._data = 0, 0.0, 0.0, 0.0
        self._began: float | None = None  # when the last update was about to be handed over
        self._handed = 0.0  # when it was
        self._reported = [self._counts()] * max(len(self._processes.hosts), 1)
        self._late: tuple[int, int] = (0, 0)  # which process, in how many reports

    def before_update(self, busy: bool, waited: float) -> None:
        """Count the time before an update is dispatched to the devices.

        Args:
          busy: whether they still work on the one before.
          waited: seconds for which they stood still while its batch was not there.
        """
        now = time.monotonic()
        if self._began is not None:
            self._steps += 1
            self._seconds += now - self._began
            self._idle += 0 if busy else now - self._handed
            self._data += waited
        self._began = now

    def after_update(self) -> None:
        """Mark the time after the update was dispatched, and after anything that all waited for."""
        self._handed = time.monotonic()

    def pause(self) -> None:
        """Leave out the time until the next update."""
        self._began = None

    def _counts(self) -> list[float]:
        return [self._steps, self._seconds, self._idle, self._data]

    def report(self, step: int) -> None:
        """Write a line for the rounds that ended in this interval, if any did, on process 0.

        Its values have a number for each process: seconds of a step, for which the devices stood still, and those of them in
        which there was no batch.
        """
        messages = self._stop.messages
        if not messages or not self._processes.first or self._processes.alone:
            return
        passed = [
            [now - then for now, then in zip(*counts, strict=True)] for counts in zip(messages, self._reported, strict=True)
        ]
        if min(steps for steps, *_ in passed) < 1:
            return
        self._reported = messages
        names = ("step_seconds", "idle_seconds", "data_seconds")
        values = {name: [counts[index] / counts[0] for counts in passed] for index, name in enumerate(names, 1)}
        seconds, idle = max(values["step_seconds"]), values["idle_seconds"]
        slowest = max(range(len(idle)), key=idle.__getitem__)
        usual = median_low(idle)
        late = (idle[slowest] - usual) / seconds
        self._writer.write(step, "hosts", values | {"slowest": slowest, "late": late})
        times = self._late[1] if self._late[0] == slowest else 0
        self._late = (slowest, times + 1 if late > _LATE else 0)
        if self._late[1] == _OFTEN:
            mostly = " for want of data" if values["data_seconds"][slowest] > idle[slowest] / 2 else ""
            warn(
                [
                    f"{self._processes.place(slowest)} holds the others up: its devices stand still for {idle[slowest]:.2g} s of "
                    f"each step's {seconds:.2g} s{mostly}, others' for {usual:.2g} s"
                ]
            )
