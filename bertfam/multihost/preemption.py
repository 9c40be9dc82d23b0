"""SIGTERM, SIGINT and SIGHUP during training: all processes end after the same step, save it, and leave with exit code 75.

`jax.experimental.multihost_utils.reached_preemption_sync_point` (jax 0.10.2) was considered. Its service swallows signals before
training starts, when nothing polls it. Here a process that receives a signal reports it over the links of the rendezvous, in
rounds about a second apart: a value sent in one round is known to all in the next. No process waits within a step, and all stop
after the same one.
"""

import contextlib
import os
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bertfam import interrupts
from bertfam.multihost.processes import Processes

EXIT_CODE = os.EX_TEMPFAIL  # 75: not finished; the same command resumes
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_ROUND = 1.0  # seconds
_LONGEST = 1000  # calls of `ask` in a round
_STEP = "a step"
_NOTHING_TO_SAVE = "bertfam: {}: exited before the first step, when there is nothing to save"


class Stop:
    """Request to stop training early; all processes poll it equally often: after every step and during evaluation."""

    def __init__(self, processes: Processes | None = None) -> None:
        """Start without a request."""
        self.asked: str | None = None  # name of the signal that this process received
        self.reasons: list[Callable[[], bool]] = []  # further conditions under which this process wants to stop
        self.due = False  # True once all processes stop
        self.message: Callable[[], Any] = lambda: None  # JSON value that this process sends in each round
        self.messages: list[Any] = []  # these values by process, of the last completed round
        self._processes = processes or Processes()
        self._asks = 0
        self._round: tuple[int, float] | None = None  # count of `ask` and time at the start of the round in progress
        self._end = 0  # count of `ask` at which it ends
        self.exits = False  # True while a signal ends the process at once, see `nothing_to_save`

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
            self._start_round(wish, 1)
            return False
        if self._asks < self._end:
            return False
        first_ask, start = self._round
        answers = self._processes.collect(_STEP)
        self._round = None
        self.due = any(wished for wished, *_ in answers)
        self.messages = [message for *_, message in answers]
        if self.due:
            return True
        asked = self._asks - first_ask
        seconds = (time.monotonic() - start) / asked
        # At most twice as many as before: the first steps are dispatched asynchronously and seem to take no time.
        self._start_round(wish, min(max(int(_ROUND / max(seconds, 1e-9)), 1), 2 * asked, _LONGEST))
        # Process 0 decides the length of each round and sends it in the round before.
        self._end = self._asks + answers[0][1]
        return False

    @contextmanager
    def nothing_to_save(self) -> Iterator[None]:
        """Exit at once on a signal within the block, in which no step is done since the run started or resumed.

        In a run of several processes this does nothing: all of them stop after the same step.
        """
        self.exits = self._processes.alone
        try:
            if self.exits and self.asked:
                print(_NOTHING_TO_SAVE.format(self.asked), file=sys.stderr, flush=True)
                raise SystemExit(EXIT_CODE)
            yield
        finally:
            self.exits = False

    def exit(self) -> None:
        """End the process while its main thread compiles, which Python cannot interrupt; free what it holds."""
        print(_NOTHING_TO_SAVE.format(self.asked), file=sys.stderr, flush=True)
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            self._processes.held.close()
        os._exit(EXIT_CODE)

    def _start_round(self, wish: bool, asks: int) -> None:
        self._processes.offer(_STEP, [wish, asks, self.message()])
        self._round, self._end = (self._asks, time.monotonic()), self._asks + 1

    def barrier(self, what: str) -> None:
        """Wait until every process has finished `what`.

        JAX's CPU collectives give up when one process reaches the first of them 30 seconds after another.
        """
        self.finish_round()
        self._processes.gather(what, None)

    def finish_round(self) -> None:
        """Complete the round in progress, if there is one."""
        if self._round is not None:
            self._processes.collect(_STEP)
            self._round = None


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Exit with `EXIT_CODE` on a SIGTERM before training, when there is nothing to save; child processes end too."""
    is_reported = False

    def end() -> None:
        nonlocal is_reported
        if not is_reported:
            is_reported = True
            print("bertfam: SIGTERM: exited before training started", file=sys.stderr, flush=True)
        raise SystemExit(EXIT_CODE)

    with interrupts.raised_on(signal.SIGTERM, end):
        yield


@contextmanager
def stop_on_signals(stop: Stop) -> Iterator[None]:
    """Set `stop` on SIGTERM, SIGINT and SIGHUP; a second SIGTERM or SIGINT ends the process at once.

    SIGHUP says that the terminal is gone, which several processes may say; what is printed then goes nowhere. It stays ignored
    where it is, as under nohup. A separate thread receives the signals too, because the main thread may be waiting for the
    device. Outside the main thread this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    receiver, sender = socket.socketpair()
    sender.setblocking(False)

    def ask(number: int, _: object) -> None:
        stop.asked = signal.Signals(number).name

    handled = [number for number in _SIGNALS if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, ask) for number in handled}
    descriptor = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    listener = threading.Thread(target=_listen, args=(receiver, stop), name="signals", daemon=True)
    listener.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(descriptor)
        for number, handler in before.items():
            signal.signal(number, handler)
        sender.close()  # ends the listener
        listener.join()
        receiver.close()


def _listen(receiver: socket.socket, stop: Stop) -> None:
    is_second = False
    while received := receiver.recv(1):
        if received[0] not in _SIGNALS:
            continue
        stop.asked = signal.Signals(received[0]).name
        if received[0] == signal.SIGHUP:
            _leave_terminal()
            if is_second:
                continue
        if stop.exits:
            stop.exit()
        if is_second:
            print(f"bertfam: second {stop.asked}: exiting at once, without saving", file=sys.stderr, flush=True)
            os._exit(128 + received[0])
        is_second = True
        print(
            f"bertfam: {stop.asked}: stopping after this step and saving it; a second signal exits at once",
            file=sys.stderr,
            flush=True,
        )


def _leave_terminal() -> None:
    """Send the output to /dev/null if it goes to a terminal, which is gone and refuses every write."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):
            if stat.S_ISCHR(os.fstat(descriptor).st_mode):
                os.dup2(nowhere, descriptor)
    os.close(nowhere)
