"""Processes that train one model: synchronization, agreement and a common exit status.

Only process 0 prints; it also reports the errors of other processes, with their numbers.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import Any

from bertfam.errors import UserError
from bertfam.multihost.exit_status import LOST, ExitStatusLinks
from bertfam.multihost.rendezvous import ConnectionLost, Link, describe_processes

_ASK_AGAIN = 60.0  # seconds between lines that say who is waited for
_FAREWELL = 10.0  # seconds that process 0 gives the others to end before it
_NOTICED = 3.0  # seconds in which a process that is gone is known to be


class ProcessExited(SystemExit):
    """Exit of a process while others waited for it; `line` reports it unless that process has reported more."""

    def __init__(self, status: int, line: str = "") -> None:
        super().__init__(status)
        self.line = line


class Processes:
    """All processes of a run, seen from one of them; by default there is no other."""

    def __init__(
        self,
        index: int = 0,
        links: Sequence[Link] = (),
        other_links: Sequence[Link] = (),
        exit_status: ExitStatusLinks | None = None,
        *,
        source: str = "flags",
    ) -> None:
        """Process `index` from 0.

        Args:
          index: which it is.
          links: of process 0 to all others in order, of another to process 0.
          other_links: a second set, over which another thread may gather at the same time.
          exit_status: over a third.
          source: description of where index and count come from.
        """
        self.index, self.source = index, source
        self.hosts: list[str] = []  # the name of each process's machine, once they have told
        self._exit_status = exit_status or ExitStatusLinks()
        self.others = Processes(index, other_links, exit_status=self._exit_status) if other_links else self
        self._links = links
        self._offered: Any = None

    @property
    def first(self) -> bool:
        """True if this is process 0, which alone prints and writes what is not split over all."""
        return self.index == 0

    @property
    def alone(self) -> bool:
        """True if there is no other process."""
        return not self._links

    def place(self, index: int) -> str:
        """Process 3, or where they are on several machines process 3 on NAME."""
        return f"process {index}" + (f" on {self.hosts[index]}" if len(set(self.hosts)) > 1 else "")

    def gather(self, what: str, value: Any) -> list[Any]:
        """Gather every process's JSON value on every process; none returns before all have called it.

        Waits as long as all processes live, and says every minute on process 0 whom it waits for.

        Raises:
          ProcessExited: a process is.
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
                raise self._left_by(0, what) from None

    def collect(self, what: str) -> list[Any]:
        """Return every process's value: the second half of `gather`. Between the halves nothing else may be gathered."""
        if not self.first:
            try:
                return self._links[0].receive()
            except ConnectionLost:
                raise self._left_by(0, what) from None
        missing, values = dict(enumerate(self._links, 1)), {0: self._offered}
        other = 0
        try:
            while missing:
                ready = wait([link.connection for link in missing.values()], _ASK_AGAIN)
                if not ready:
                    print(f"bertfam: waiting for {describe_processes(missing)}: {what}", file=sys.stderr, flush=True)
                for other in [other for other, link in missing.items() if link.connection in ready]:
                    values[other] = missing.pop(other).receive()
            found = [values[index] for index in range(len(values))]
            for other, link in enumerate(self._links, 1):  # noqa: B007
                link.send(found)
        except ConnectionLost:
            raise self._left_by(other, what) from None
        return found

    def explain(self, error: BaseException) -> BaseException:
        """Return the cause of a JAX error: `ProcessExited` if another process left a collective."""
        import jax

        if self.alone or not isinstance(error, jax.errors.JaxRuntimeError):
            return error
        gone = self._exit_status.received(_NOTICED)
        return self._gone({self._at(number): status for number, status in gone.items()}, "training") if gone else error

    def leave(self, status: int) -> None:
        """Before this process ends with an error: says so, and on process 0 waits for the others to end, though not for long.

        They need wait no longer for its answer. Without the service of JAX in process 0 they would be killed, and no launcher
        would see what they end with.
        """
        self._exit_status.send(status)
        if self.first:
            for link in (*self._links, *self.others._links):
                link.shut()
            self._exit_status.wait_until_closed(_FAREWELL)

    def _at(self, link: int) -> int:
        """Return the process at the other end of a link."""
        return link + 1 if self.first else 0

    def _left_by(self, other: int, what: str) -> ProcessExited:
        link = max(other - 1, 0)
        return self._gone({other: self._exit_status.received(_NOTICED, [link]).get(link)}, what)

    def _gone(self, ended: Mapping[int, int | None], what: str) -> ProcessExited:
        """Of processes that have ended, with what. A fault or a mistake is one here too, whatever others have ended with."""
        said = [status for status in ended.values() if status is not None]
        status = min(filter(None, said), default=1) if len(said) == len(ended) else LOST
        if said and not self.first:
            return ProcessExited(status)
        are, them = ("is", "its") if len(ended) == 1 else ("are", "their")
        who = self.place(*ended) if len(ended) == 1 else describe_processes(ended)
        return ProcessExited(status, f"bertfam: error: {who} {are} gone before all were through with {what}; see {them} log")

    @contextmanager
    def on_all(self, what: str) -> Iterator[None]:
        """Run a block on every process, then `gather`: all continue, or all end with one line from process 0.

        Raises:
          UserError: on process 0, for the mistake that it or another has found.
          SystemExit: on the others, with the same status; they print nothing.
        """
        error: Exception | SystemExit | None = None
        try:
            yield
        except (Exception, SystemExit) as caught:
            error = caught
        found = [fault for fault in enumerate(self.gather(what, _fault(error))) if fault[1]]
        if not found:
            return
        if error and (self.first or not isinstance(error, UserError | SystemExit)):
            raise error
        other, (status, line) = found[0]
        if not self.first or not line:
            raise SystemExit(status)
        if status == 2:
            raise UserError(f"process {other}: {line}")
        sys.exit(f"bertfam: error: {self.place(other)} has failed in {what} ({line}); see its log")

    def on_first(self, what: str, function: Callable[[], Any]) -> Any:
        """Run `function` on process 0 while the others wait; return its JSON value on all (by `gather`)."""
        value = None
        with self.on_all(what):
            if self.first:
                value = function()
        return self.gather(what, value)[0]

    def check_same(self, what: str, lines: Sequence[str]) -> None:
        """Raise UserError on process 0 (SystemExit on the others) unless all have the same lines (by `gather`)."""
        with self.on_all(what):
            mine, *others = self.gather(what, list(lines))
            for other, theirs in enumerate(others, 1):
                if theirs != mine and self.first:
                    here = next((line for line in mine if line not in theirs), "nothing")
                    there = next((line for line in theirs if line not in mine), "nothing")
                    raise UserError(
                        f"process {other} has another {what} than process 0: {there} there, {here} on process 0; give all "
                        "processes the same flags and folders"
                    )


def _fault(error: Exception | SystemExit | None) -> tuple[int, str] | None:
    """Return the exit status of an error and its message."""
    if error is None:
        return None
    if isinstance(error, SystemExit):
        return (error.code if isinstance(error.code, int) else 1, "")
    if isinstance(error, UserError):
        return (2, str(error))
    return (1, f"{type(error).__name__}: {error}")
