"""Watchdog that ends a process stuck in one phase, because another process exited or a device or disk hangs.

`faulthandler.dump_traceback_later` (Python 3.11) was considered. It can only exit with status 1, and it knows no phases.
"""

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bertfam.training.logs.phase_timer import PhaseTimer

EXIT_CODE = 76  # distinct from 1, 2, 74, 75, 77 and 128 + N, for schedulers
_LONG_PHASE_SECONDS = 3600.0
_LEAST_PAUSE_SECONDS, _MOST_PAUSE_SECONDS = 0.05, 1.0  # between two looks at the phase


@contextmanager
def watch(phase_timer: PhaseTimer, seconds: float, process: int = 0, later: float = 0) -> Iterator[None]:
    """Watch a block: when a phase takes too long, dump the stack of every thread and end the process.

    Args:
      phase_timer: timer with the current phase.
      seconds: longest duration of a phase; long phases may take an hour if that is more; 0 disables the watchdog.
      process: index of this process, for the message.
      later: extra seconds, in which another stuck process may report first.
    """
    over = threading.Event()
    if seconds:
        threading.Thread(target=_watch, args=(phase_timer, seconds, process, later, over), name="watchdog", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _watch(phase_timer: PhaseTimer, seconds: float, process: int, later: float, over: threading.Event) -> None:
    # Time before the start does not count, such as waiting for process 0 to build a token cache. Neither does time in which this
    # thread stood still, as when the machine is suspended: the phase is measured anew.
    start, left = time.monotonic(), _LEAST_PAUSE_SECONDS
    while True:
        due = time.monotonic() + min(max(left, _LEAST_PAUSE_SECONDS), _MOST_PAUSE_SECONDS)
        if over.wait(due - time.monotonic()):
            return
        if time.monotonic() - due > _MOST_PAUSE_SECONDS:
            start = time.monotonic()
        phase = phase_timer.now
        left = max(phase.since, start) + max(seconds, _LONG_PHASE_SECONDS if phase.long else 0) + later - time.monotonic()
        if left < 0:
            faulthandler.dump_traceback(all_threads=True)
            print(
                f"bertfam: error: process {process} was stuck in the phase {phase.name!r} (Run.watchdog_seconds = {seconds:g}) "
                "and exits; the stack of each thread is above",
                file=sys.stderr,
                flush=True,
            )
            os._exit(EXIT_CODE)
