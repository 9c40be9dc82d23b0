"""Processes that train one model: synchronization, agreement and a common exit status.

Only process 0 prints; it also reports the errors of other processes, with their numbers.

`jax.experimental.multihost_utils` (jax 0.10.2) was considered. `process_allgather`, which its barrier and its comparison use
too, is a computation on all devices: it requires an initialized JAX and arrays of equal shapes, occupies the devices that
train, and cannot name a process that is missing. Values here are JSON over the sockets of the rendezvous.
"""

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import wait
from typing import Any

from bertfam.errors import STORAGE_FAULT, TransientError, UserError, status_of
from bertfam.multihost.exit_status import LOST, ExitStatusLinks
from bertfam.multihost.rendezvous import ConnectionLost, Link, describe_processes

_REPORT_SECONDS = 60.0  # between lines that name the processes still missing
_EXIT_SECONDS = 10.0  # that process 0 gives the others to exit before it does
_STATUS_SECONDS = 3.0  # in which the exit status of an exited process arrives


class ProcessExited(SystemExit):
    """Exit of another process, and of this one because of it; `line` is the error to print, empty if process 0 prints one."""

    code: int

    def __init__(self, status: int, line: str = "") -> None:
        super().__init__(status)
        self.line = line


class Processes:
    """All processes of a run, seen from one of them; by default it is the only one."""

    def __init__(
        self,
        index: int = 0,
        links: Sequence[Link] = (),
        other_links: Sequence[Link] = (),
        exit_status: ExitStatusLinks | None = None,
        *,
        source: str = "flags",
    ) -> None:
        """Use links that are already connected.

        Args:
          index: index of this process, from 0.
          links: for process 0 the links to all others in order, for another process its link to process 0.
          other_links: a second set of links, over which another thread may gather at the same time.
          exit_status: a third set of links, for exit statuses only.
          source: description of where index and count come from.
        """
        self.index, self.source = index, source
        self.hosts: list[str] = []  # host name of each process, once they are gathered
        self.held = ExitStack()  # what this process holds until all others have ended
        self._exit_status = exit_status or ExitStatusLinks()
        self.others = Processes(index, other_links, exit_status=self._exit_status) if other_links else self
        self._links = links
        self._offered: Any = None
        self._telling, self._told = threading.Lock(), False

    @property
    def first(self) -> bool:
        """True for process 0, which alone prints and writes the files that are not split over processes."""
        return self.index == 0

    @property
    def alone(self) -> bool:
        """True if there is no other process."""
        return not self._links

    def place(self, index: int) -> str:
        """Describe a process: "process 3", or "process 3 on HOST" if there are several hosts."""
        return f"process {index}" + (f" on {self.hosts[index]}" if len(set(self.hosts)) > 1 else "")

    def gather(self, what: str, value: Any) -> list[Any]:
        """Gather every process's JSON value on every process; none returns before all have called it.

        This waits as long as all processes live. Every minute process 0 prints which ones it waits for.

        Args:
          what: noun phrase for the messages, such as "the token cache".
          value: the value of this process.

        Raises:
          ProcessExited: if another process exits.
        """
        self.offer(what, value)
        return self.collect(what)

    def offer(self, what: str, value: Any) -> None:
        """Send this process's value without waiting: the first half of `gather`."""
        self._offered = value
        if not self.first:
            try:
                self._links[0].send(value)
            except ConnectionLost:
                raise self._exit_of(0, what) from None

    def collect(self, what: str) -> list[Any]:
        """Return every process's value: the second half of `gather`. Between the halves nothing else may be gathered."""
        if not self.first:
            try:
                return self._links[0].receive()
            except ConnectionLost:
                raise self._exit_of(0, what) from None
        missing, values = dict(enumerate(self._links, 1)), {0: self._offered}
        other = 0
        try:
            while missing:
                ready = wait([link.connection for link in missing.values()], _REPORT_SECONDS)
                if not ready:
                    print(f"bertfam: waiting for {describe_processes(missing)}: {what}", file=sys.stderr, flush=True)
                for other in [other for other, link in missing.items() if link.connection in ready]:
                    values[other] = missing.pop(other).receive()
            gathered = [values[index] for index in range(len(values))]
            for other, link in enumerate(self._links, 1):  # noqa: B007
                link.send(gathered)
        except ConnectionLost:
            raise self._exit_of(other, what) from None
        return gathered

    def explain(self, error: BaseException) -> BaseException:
        """Return the cause of a JAX error: `ProcessExited` if another process left a collective."""
        import jax

        if self.alone or not isinstance(error, jax.errors.JaxRuntimeError):
            return error
        return self.exited(_STATUS_SECONDS, "a training step") or error

    def exited(self, seconds: float, what: str = "") -> ProcessExited | None:
        """Return the exit of other processes.

        Args:
          seconds: longest time to wait for the first of them to end.
          what: noun phrase for what this process waited for, if it is known.
        """
        ended = {self._at(link): status for link, status in self._exit_status.received(seconds).items()}
        return self._exited(ended, what) if ended else None

    def tell(self, line: str) -> None:
        """Print the error with which this process ends; a later one of another thread is not printed."""
        with self._telling:
            if line and not self._told:
                # `print` writes the end of the line separately where Python does not buffer, and JAX's own report falls between.
                sys.stderr.write(f"{line}\n")
                sys.stderr.flush()
                self._told = True

    def leave(self, status: int) -> None:
        """Send the exit status before this process ends with an error; process 0 then waits for the others to end first.

        The wait is short. It keeps the JAX service of process 0 alive: without it the others would be killed, and a launcher
        would not see their own exit status.
        """
        self._exit_status.send(status)
        if self.first:
            for link in (*self._links, *self.others._links):
                link.shut()
            self._exit_status.wait_until_closed(_EXIT_SECONDS)

    def _at(self, link: int) -> int:
        """Return the process at the other end of a link."""
        return link + 1 if self.first else 0

    def _exit_of(self, other: int, what: str) -> ProcessExited:
        link = max(other - 1, 0)
        return self._exited({other: self._exit_status.received(_STATUS_SECONDS, [link]).get(link)}, what)

    def _exited(self, ended: Mapping[int, int | None], what: str) -> ProcessExited:
        """Build the exception for ended processes, by their exit statuses; the lowest status above 0 is this process's too."""
        known = [status for status in ended.values() if status is not None]
        status = min(filter(None, known), default=1) if len(known) == len(ended) else LOST
        if known and not self.first:
            return ProcessExited(status)
        names, logs = (self.place(*ended), "its log") if len(ended) == 1 else (describe_processes(ended), "their logs")
        moment = f"while the others waited for {what}" if what else "before the end of the run"
        return ProcessExited(status, f"bertfam: error: {names} exited {moment}; see {logs}")

    @contextmanager
    def on_all(self, what: str) -> Iterator[None]:
        """Run a block on every process, then `gather`: all continue, or all end with one line from process 0.

        Raises:
          UserError: on process 0, if it or another process raised one.
          SystemExit: on the others, with the same status and without a message.
        """
        error: Exception | SystemExit | None = None
        try:
            yield
        except (Exception, SystemExit) as caught:
            error = caught
        faults = [fault for fault in enumerate(self.gather(what, _fault(error))) if fault[1]]
        if not faults:
            return
        if error and (self.first or not isinstance(error, UserError | TransientError | SystemExit)):
            raise error
        other, (status, line) = faults[0]
        if not self.first or not line:
            raise SystemExit(status)
        if status == 2:
            raise UserError(f"process {other}: {line}")
        if status == STORAGE_FAULT:
            reason, _, message = line.partition(": ")
            raise TransientError(reason, f"{message} (process {other})")
        sys.exit(f"bertfam: error: {self.place(other)} failed in {what}: {line}; see its log")

    def on_first(self, what: str, function: Callable[[], Any]) -> Any:
        """Run `function` on process 0 while the others wait; return its JSON value on all (by `gather`)."""
        value = None
        with self.on_all(what):
            if self.first:
                value = function()
        return self.gather(what, value)[0]

    def check_same(self, what: str, lines: Sequence[str]) -> None:
        """Raise UserError on process 0 (SystemExit on the others) unless all have the same lines, by `gather`."""
        with self.on_all(what):
            mine, *others = self.gather(what, list(lines))
            for other, theirs in enumerate(others, 1):
                if theirs != mine and self.first:
                    here = next((line for line in mine if line not in theirs), "nothing")
                    there = next((line for line in theirs if line not in mine), "nothing")
                    raise UserError(
                        f"process {other} has a different {what} from process 0: {there} there, {here} on process 0; give all "
                        "processes the same flags and folders"
                    )


def _fault(error: Exception | SystemExit | None) -> tuple[int, str] | None:
    """Return the exit status of an error and its message."""
    if error is None:
        return None
    if isinstance(error, SystemExit):
        return (error.code if isinstance(error.code, int) else 1, "")
    if isinstance(error, UserError | TransientError):
        return (status_of(error), str(error))
    return (1, f"{type(error).__name__}: {error}")
