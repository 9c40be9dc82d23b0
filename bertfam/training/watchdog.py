"""Watchdog that ends a process stuck in one phase: another process is gone, a device or a disk hangs."""

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bertfam.training.logs.phase_timer import PhaseTimer

EXIT_CODE = 76  # not 1, 2, 75, 77 or 128 + N: a scheduler can tell it from all other ends
_LONG = 3600.0  # seconds


@contextmanager
def watch(phase_timer: PhaseTimer, seconds: float, process: int = 0, later: float = 0) -> Iterator[None]:
    """Watch a block: when a phase takes too long, dump the stack of every thread and end the process.

    Args:
      phase_timer: the current phase.
      seconds: the longest that one thing may take; one that is long, an hour, unless this is more; 0 watches nothing.
      process: the number of this process, to be told.
      later: seconds more, in which another process that is stuck may tell where.
    """
    over = threading.Event()
    if seconds:
        threading.Thread(target=_watch, args=(phase_timer, seconds, process, later, over), name="watchdog", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _watch(phase_timer: PhaseTimer, seconds: float, process: int, later: float, over: threading.Event) -> None:
    # What was waited for before, such as a token cache that process 0 builds, is not its affair.
    began, left = time.monotonic(), 0.05
    while not over.wait(min(max(left, 0.05), 1.0)):
        doing = phase_timer.now
        left = max(doing.since, began) + max(seconds, _LONG if doing.long else 0) + later - time.monotonic()
        if left < 0:
            faulthandler.dump_traceback(all_threads=True)
            print(
                f"bertfam: error: process {process} has been {doing.name} for too long (Run.watchdog_seconds = {seconds:g}): "
                "ended; above is where each of its threads stood",
                file=sys.stderr,
                flush=True,
            )
            os._exit(EXIT_CODE)
