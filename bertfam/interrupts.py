"""Signals that end a command by an exception, which neither imports nor callbacks may lose.

Libraries crash if an exception is raised while they initialise an extension module, and Python drops exceptions that are raised
within callbacks, such as the one that jax has in garbage collection. In both cases the signal is sent again a moment later.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_AGAIN = 0.05  # seconds until a signal is sent again
_LONGEST = 10.0  # seconds that an import may delay a signal


@contextmanager
def raised_on(number: signal.Signals, end: Callable[[], None]) -> Iterator[None]:
    """Call `end`, which raises an exception, on a signal to the main thread; elsewhere this does nothing.

    Args:
      number: the signal.
      end: function that raises SystemExit or KeyboardInterrupt; it is called again if its exception was dropped.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    timers: list[threading.Timer] = []
    raised: list[BaseException] = []
    first: float | None = None  # time of the first signal that an import delayed

    def send_again() -> None:
        timers.append(threading.Timer(_AGAIN, os.kill, (os.getpid(), number)))
        timers[-1].daemon = True
        timers[-1].start()

    def handle(_: int, frame: FrameType | None) -> None:
        nonlocal first
        now = time.monotonic()
        first = now if first is None else first
        if _is_importing(frame) and now - first < _LONGEST:
            send_again()
        else:
            try:
                end()
            except BaseException as error:
                raised.append(error)
                raise

    def handle_dropped(unraisable: Any) -> None:
        if any(unraisable.exc_value is error for error in raised):
            send_again()
        else:
            report(unraisable)

    report = sys.unraisablehook
    before = signal.signal(number, handle)
    sys.unraisablehook = handle_dropped
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()
        sys.unraisablehook = report
        signal.signal(number, before)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return frame is not None
