"""Saves by several processes; when one process fails, the others stop waiting for it.

The work runs in a daemon thread and not in a `concurrent.futures.ThreadPoolExecutor` (Python 3.11), whose threads are joined at
exit: a process that waits inside Orbax for one that has failed could not exit.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait

from bertfam.multihost.processes import Processes
from bertfam.storage.faults import Refusal, refusal

_ROUND_SECONDS = 0.1


class FailedElsewhere(Exception):
    """Failure of another process.

    Attributes:
      refusal: the reason of the system or the store for refusing a write; None for another error.
    """

    def __init__(self, process: int, refusal: Refusal | None, description: str) -> None:
        """Describe the failure of the process with this index."""
        super().__init__(f"process {process} failed to save ({description}); see its log")
        self.refusal = refusal


def finish_on_all(processes: Processes, finish: Callable[[], None]) -> None:
    """Run `finish` on every process, and return when all are done. A collective: all processes must call it.

    Orbax lets processes wait for each other until a timeout. To avoid that, each process runs `finish` in a thread, and the
    processes exchange their status in rounds. When one has failed, the others raise and abandon their threads.

    Raises:
      Exception: the error that `finish` raised on this process.
      FailedElsewhere: if `finish` failed on another process.
    """
    if processes.alone:
        finish()
        return
    own = _start(finish)
    while True:
        wait([own], _ROUND_SECONDS)
        done = own.done()
        error = own.exception() if done else None
        failure = [refusal(error), f"{type(error).__name__}: {error}"] if error else None
        statuses = processes.gather("saving", [done, failure])
        if error:
            raise error
        for index, (_, other_failure) in enumerate(statuses):
            if other_failure:
                refused, description = other_failure
                raise FailedElsewhere(index, Refusal(*refused) if refused else None, description)
        if all(done for done, _ in statuses):
            return


def run_within(seconds: float, function: Callable[[], None]) -> None:
    """Run a function in a thread; raise TimeoutError, and abandon the thread, if it takes longer."""
    running = _start(function)
    wait([running], seconds)
    if not running.done():
        raise TimeoutError(f"not finished after {seconds:,.0f} seconds")
    running.result()


def _start(function: Callable[[], None]) -> Future[None]:
    """Start a function in a daemon thread."""
    result: Future[None] = Future()

    def run() -> None:
        try:
            function()
        except BaseException as error:
            result.set_exception(error)
        else:
            result.set_result(None)

    threading.Thread(target=run, name="writing", daemon=True).start()
    return result
