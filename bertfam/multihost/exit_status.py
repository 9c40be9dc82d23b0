"""How the processes of a run end: each that can tells the others with which exit status, so that those left alone end alike.

One that tells nothing was killed, or its machine is lost. Then the others end with `LOST`: nothing was wrong with the command.
"""

import contextlib
import threading
import time
from collections.abc import Collection, Sequence
from multiprocessing.connection import wait

from bertfam.multihost.rendezvous import ConnectionLost, Link

LOST = 77  # exit status: another process is gone without a word; the same command, started on all again, goes on
_WORD = 1.0  # seconds in which what has come in part comes whole


class ExitStatusLinks:
    """Links over which nothing else is told; threads may share them."""

    def __init__(self, links: Sequence[Link] = ()) -> None:
        """Of process 0 to all others in order, of another to process 0."""
        self._links = links
        self._received: dict[int, int | None] = {}
        self._lock = threading.Lock()

    def send(self, status: int) -> None:
        """Tells all at the other ends with which status this process ends."""
        for link in self._links:
            with contextlib.suppress(ConnectionLost):
                link.send(status)

    def received(self, seconds: float, of: Collection[int] | None = None) -> dict[int, int | None]:
        """The exit status by link of those that have ended, of some links or of all; None of those that have told nothing.

        Waits until one has ended, or so long.
        """
        with self._lock:
            numbers = range(len(self._links)) if of is None else of
            known = any(number in self._received for number in numbers)
            alive = {self._links[number].connection: number for number in numbers if number not in self._received}
            come = [connection for connection, number in alive.items() if self._links[number].has_received]
            for connection in come or wait(list(alive), 0 if known else seconds):
                number = alive[connection]  # type: ignore[index]
                try:
                    self._received[number] = self._links[number].receive(_WORD)
                except (ConnectionLost, TimeoutError):
                    self._received[number] = None
            return {number: self._received[number] for number in numbers if number in self._received}

    def wait_until_closed(self, seconds: float) -> None:
        """Waits until all at the other ends are gone, or so long."""
        end = time.monotonic() + seconds
        with self._lock, contextlib.suppress(TimeoutError):
            for link in self._links:
                with contextlib.suppress(ConnectionLost):
                    while True:
                        link.receive(max(end - time.monotonic(), 0))
