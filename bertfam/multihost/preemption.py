"""SIGTERM and SIGINT during training: all processes end after the same step, save it, and leave with exit code 75.

JAX has a service for it, which swallows the signal before training has begun, where nobody asks for it. Here a process that is
told to end tells the others over the links on which they have met, in rounds about a second apart: what each says in one
round, all know in the next. So nobody waits in a step, and all stop after the same one.
"""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bertfam.multihost.processes import Processes

EXIT_CODE = os.EX_TEMPFAIL  # 75: not finished; the same command goes on
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_ROUND = 1.0  # seconds
_LONGEST = 1000  # questions of a round
_WHAT = "a step"


class Stop:
    """Request to stop training early, which all processes poll alike: after every step and during evaluation."""

    def __init__(self, processes: Processes | None = None) -> None:
        """Start without a request."""
        self.asked: str | None = None  # the signal that this process got
        self.reasons: list[Callable[[], bool]] = []  # others for which it may want to stop
        self.due = False  # all processes stop
        self.message: Callable[[], Any] = lambda: None  # what this process tells the others along with it (JSON)
        self.messages: list[Any] = []  # what all have told, by process, in the last round that has ended
        self._processes = processes or Processes()
        self._asks = 0
        self._round: tuple[int, float] | None = None  # the question and the time at which the round under way began
        self._end = 0  # the question at which it ends

    def ask(self) -> bool:
        """Return whether all processes stop now; the answer stays True."""
        if self.due:
            return True
        self._asks += 1
        wish = self.asked is not None or any(reason() for reason in self.reasons)
        if self._processes.alone:
            self.due = wish
            return wish
        if self._round is None:
            self._begin(wish, 1)
            return False
        if self._asks < self._end:
            return False
        began, since = self._round
        said = self._processes.collect(_WHAT)
        self._round = None
        self.due = any(wished for wished, *_ in said)
        self.messages = [told for *_, told in said]
        if self.due:
            return True
        asked = self._asks - began
        seconds = (time.monotonic() - since) / asked
        # At most twice as many as before: the first steps are handed to the devices ahead, and seem to take no time.
        self._begin(wish, min(max(int(_ROUND / max(seconds, 1e-9)), 1), 2 * asked, _LONGEST))
        # How long the next round is, all learn from the first, and in the round before it.
        self._end = self._asks + said[0][1]
        return False

    def _begin(self, wish: bool, asks: int) -> None:
        self._processes.offer(_WHAT, [wish, asks, self.message()])
        self._round, self._end = (self._asks, time.monotonic()), self._asks + 1

    def meet(self, what: str) -> None:
        """Before training: no process goes on until all are through with `what`.

        JAX's collectives on CPUs give up when one process comes 30 seconds later than another to the first of them.
        """
        self.settle()
        self._processes.gather(what, None)

    def settle(self) -> None:
        """End the round in progress, when training is over."""
        if self._round is not None:
            self._processes.collect(_WHAT)
            self._round = None


@contextmanager
def signals_end() -> Iterator[None]:
    """End the command and its children on SIGTERM before training, with the same exit code; there is nothing to save."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: object) -> None:
        print(f"bertfam: {signal.Signals(number).name}: ended before training", file=sys.stderr, flush=True)
        raise SystemExit(EXIT_CODE)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def signals_stop(stop: Stop) -> Iterator[None]:
    """Set `stop` on SIGTERM and SIGINT; the second signal ends the process at once.

    A thread of its own hears them too: the main thread may be waiting for the device. Outside the main thread nothing is
    changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    hears, rings = socket.socketpair()
    rings.setblocking(False)

    def ask(number: int, _: object) -> None:
        stop.asked = signal.Signals(number).name

    before = {number: signal.signal(number, ask) for number in _SIGNALS}
    descriptor = signal.set_wakeup_fd(rings.fileno(), warn_on_full_buffer=False)
    listener = threading.Thread(target=_listen, args=(hears, stop), name="signals", daemon=True)
    listener.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(descriptor)
        for number, handler in before.items():
            signal.signal(number, handler)
        rings.close()  # ends the listener
        listener.join()
        hears.close()


def _listen(hears: socket.socket, stop: Stop) -> None:
    heard = False
    while got := hears.recv(1):
        if got[0] not in _SIGNALS:
            continue
        stop.asked = signal.Signals(got[0]).name
        if heard:
            print(f"bertfam: {stop.asked} again: stopped at once", file=sys.stderr, flush=True)
            os._exit(128 + got[0])
        heard = True
        print(
            f"bertfam: {stop.asked}: ends after this step and saves it; a second signal ends at once", file=sys.stderr, flush=True
        )
