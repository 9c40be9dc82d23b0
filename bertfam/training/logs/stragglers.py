"""Detection of stragglers: processes that the others wait for.

The collectives of a step end on all processes at once, so step times do not show which process is late. The devices of a late
process, however, are idle until it dispatches the next update, while the devices of the others are busy waiting for it in a
collective. Each process therefore measures how long its devices are idle.
"""

import time
from statistics import median_low

from bertfam.errors import warn
from bertfam.multihost.preemption import Stop
from bertfam.multihost.processes import Processes
from bertfam.training.logs.metrics import NoMetrics, Writer

_LATE_SHARE = 0.2  # of a step, by which a straggler's idle time exceeds the median
_REPORTS_BEFORE_WARNING = 3  # consecutive reports with the same straggler


class StragglerMonitor:
    """Monitor of the idle time of every process, which process 0 reports; the rounds of `stop` exchange the counts."""

    def __init__(self, processes: Processes | None = None, stop: Stop | None = None, writer: Writer | None = None) -> None:
        """Start with empty counts.

        Args:
          processes: processes of the run.
          stop: request to stop, which all processes check after every step.
          writer: writer of the reports.
        """
        self._processes, self._stop, self._writer = processes or Processes(), stop or Stop(), writer or NoMetrics()
        self._stop.message = self._counts
        self._steps, self._seconds, self._idle, self._data = 0, 0.0, 0.0, 0.0
        self._began: float | None = None  # time just before the last dispatch
        self._dispatched = 0.0  # time just after it
        self._reported = [self._counts()] * max(len(self._processes.hosts), 1)
        self._late: tuple[int, int] = (0, 0)  # index of a late process, and number of consecutive reports

    def before_update(self, busy: bool, waited: float) -> None:
        """Count the time before an update is dispatched to the devices.

        Args:
          busy: whether the devices are still computing the previous update.
          waited: seconds for which they were idle because the batch was missing.
        """
        now = time.monotonic()
        if self._began is not None:
            self._steps += 1
            self._seconds += now - self._began
            self._idle += 0 if busy else now - self._dispatched
            self._data += waited
        self._began = now

    def after_update(self) -> None:
        """Mark the time after the update was dispatched and all processes have synchronised."""
        self._dispatched = time.monotonic()

    def pause(self) -> None:
        """Exclude the time until the next update."""
        self._began = None

    def _counts(self) -> list[float]:
        return [self._steps, self._seconds, self._idle, self._data]

    def report(self, step: int) -> None:
        """Write a line on process 0 if the processes have exchanged counts in this interval.

        Its values have a number for each process: the seconds per step, those in which its devices were idle, and those of them
        in which it waited for a batch.
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
        median_idle = median_low(idle)
        late = (idle[slowest] - median_idle) / seconds
        self._writer.write(step, "hosts", values | {"slowest": slowest, "late": late})
        count = self._late[1] if self._late[0] == slowest else 0
        self._late = (slowest, count + 1 if late > _LATE_SHARE else 0)
        if self._late[1] == _REPORTS_BEFORE_WARNING:
            cause = ", mostly waiting for data," if values["data_seconds"][slowest] > idle[slowest] / 2 else ""
            warn(
                [
                    f"{self._processes.place(slowest)} is a straggler: its devices are idle{cause} for {idle[slowest]:.2g} s of "
                    f"each step of {seconds:.2g} s, those of the others for {median_idle:.2g} s"
                ]
            )
