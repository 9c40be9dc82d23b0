"""Exchange of exit statuses between the processes of a run, so that all end with the same one.

A process that sends no status was killed, or its machine was lost. The others then exit with `LOST`: the command is not at fault.
"""

import contextlib
import threading
import time
from collections.abc import Collection, Sequence
from multiprocessing.connection import wait

from bertfam.multihost.rendezvous import ConnectionLost, Link

LOST = 77  # exit status: another process exited without sending one; running the same command on all again resumes
_MESSAGE_SECONDS = 1.0  # to receive the rest of a partly received status


class ExitStatusLinks:
    """Links that carry exit statuses only; threads may share them."""

    def __init__(self, links: Sequence[Link] = ()) -> None:
        """Use the links of process 0 to all others in order, or of another process to process 0."""
        self._links = links
        self._received: dict[int, int | None] = {}
        self._lock = threading.Lock()

    def send(self, status: int) -> None:
        """Send the exit status of this process to all other ends."""
        for link in self._links:
            with contextlib.suppress(ConnectionLost):
                link.send(status)

    def wait_for_first(self) -> None:
        """Wait until another process ends, without holding up threads that ask for the statuses."""
        wait([link.connection for link in self._links])

    def received(self, seconds: float, of: Collection[int] | None = None) -> dict[int, int | None]:
        """Return the exit statuses of processes that ended, by link; None for a process that sent none.

        Args:
          seconds: longest time to wait for the first of them to end.
          of: the links to wait on; None: all.
        """
        with self._lock:
            numbers = range(len(self._links)) if of is None else of
            known = any(number in self._received for number in numbers)
            alive = {self._links[number].connection: number for number in numbers if number not in self._received}
            ready = [connection for connection, number in alive.items() if self._links[number].has_received]
            for connection in ready or wait(list(alive), 0 if known else seconds):
                number = alive[connection]  # type: ignore[index]
                try:
                    self._received[number] = self._links[number].receive(_MESSAGE_SECONDS)
                except (ConnectionLost, TimeoutError):
                    self._received[number] = None
            return {number: self._received[number] for number in numbers if number in self._received}

    def wait_until_closed(self, seconds: float) -> None:
        """Wait until all other ends are closed, at most the given number of seconds."""
        end = time.monotonic() + seconds
        with self._lock, contextlib.suppress(TimeoutError):
            for link in self._links:
                with contextlib.suppress(ConnectionLost):
                    while True:
                        link.receive(max(end - time.monotonic(), 0))
