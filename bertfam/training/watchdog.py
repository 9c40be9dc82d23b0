"""Ends a process in which nothing has gone on for long: another has gone, a device hangs, a disk does not answer."""

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

EXIT_CODE = 76  # not 1, 2, 75 or 128 + N: a scheduler can tell it from all other ends
_LONG = 3600.0  # seconds


class Watchdog:
    """Writes what every thread does to stderr and ends the process when `tick` is not called for long."""

    def __init__(self, seconds: float, process: int = 0) -> None:
        """A watchdog that sleeps until it is entered.

        Args:
          seconds: the longest time between ticks; 0 watches nothing.
          process: the number of this process, to be told.
        """
        self._seconds, self._process = seconds, process
        self._doing, self._end = "starting", 0.0
        self._over = threading.Event()

    def tick(self, doing: str, *, long: bool = False) -> None:
        """Something has been done; what comes now is `doing`. Where it is `long` (compiling, saving) it may take an hour."""
        self._doing, self._end = doing, time.monotonic() + max(self._seconds, _LONG if long else 0)

    @contextmanager
    def watching(self) -> Iterator["Watchdog"]:
        """Watches as long as the block runs."""
        if self._seconds:
            self.tick(self._doing, long=True)
            threading.Thread(target=self._watch, name="watchdog", daemon=True).start()
        try:
            yield self
        finally:
            self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(min(max(self._end - time.monotonic(), 0.05), 1.0)):
            if time.monotonic() > self._end:
                faulthandler.dump_traceback(all_threads=True)
                print(
                    f"bertfam: error: process {self._process} has been {self._doing} for too long (Run.watchdog_seconds = "
                    f"{self._seconds:g}): ended; above is where each of its threads stood",
                    file=sys.stderr,
                    flush=True,
                )
                os._exit(EXIT_CODE)
