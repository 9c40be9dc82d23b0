"""Saves by several processes; when one process fails, the others stop waiting for it."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait

from bertfam.multihost.processes import Processes
from bertfam.storage.files import refusal

_ROUND = 0.1  # seconds


class FailedElsewhere(Exception):
    """Failure of another process; `why` is the operating system's reason for refusing a write, or None."""

    def __init__(self, process: int, why: str | None, told: str) -> None:
        super().__init__(f"process {process} has failed in saving ({told}); see its log")
        self.why = why


def finish_together(processes: Processes, finish: Callable[[], None]) -> None:
    """Run `finish` on every process, and return when all are done.

    Orbax's processes wait for each other until the longest time is over; so each runs `finish` in a thread and tells the
    others, in rounds, how it stands. When one has failed, a process whose own goes on leaves it behind.

    Raises:
      Exception: what this process's `finish` has raised.
      FailedElsewhere: another's has.
    """
    if processes.alone:
        finish()
        return
    own: Future[None] = Future()

    def run() -> None:
        try:
            finish()
        except BaseException as error:
            own.set_exception(error)
        else:
            own.set_result(None)

    threading.Thread(target=run, name="writing", daemon=True).start()
    while True:
        wait([own], _ROUND)
        over = own.done()
        error = own.exception() if over else None
        fault = [refusal(error), f"{type(error).__name__}: {error}"] if error else None
        said = processes.gather("saving", [over, fault])
        if error:
            raise error
        for index, (_, theirs) in enumerate(said):
            if theirs:
                raise FailedElsewhere(index, *theirs)
        if all(over for over, _ in said):
            return
