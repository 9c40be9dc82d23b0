"""Several processes that train one model: they start together, agree, and end together.

Only process 0 tells the user anything; what is wrong with another is told by process 0 too, with its number.
"""

import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import Any

from bertfam.errors import TrainingError, UserError, tell
from bertfam.partitioning.code import check_code
from bertfam.partitioning.environment import Membership, membership
from bertfam.partitioning.rendezvous import Link, Lost, meet, named

_ASK_AGAIN = 60.0  # seconds between lines that say who is waited for
_FAREWELL = 10.0  # seconds that process 0 gives the others to end before it
_NOTICED = 3.0  # seconds in which a process that is gone is known to be


class Gone(SystemExit):
    """A process has ended while others waited for it; its code is the line that tells so."""


class Processes:
    """All processes of a run, seen from one of them; by default there is no other."""

    def __init__(
        self, index: int = 0, links: Sequence[Link] = (), beside: Sequence[Link] = (), *, told_by: str = "flags"
    ) -> None:
        """Process `index` from 0.

        Args:
          index: which it is.
          links: of process 0 to all others in order, of another to process 0.
          beside: a second set, over which another thread may gather at the same time.
          told_by: who has said so, in words.
        """
        self.index, self.told_by = index, told_by
        self.hosts: list[str] = []  # the name of each process's machine, once they have told
        self.all_end = False  # whether all processes have agreed to end with an error
        self.beside = Processes(index, beside) if beside else self
        self._links = links
        self._offered: Any = None

    @property
    def first(self) -> bool:
        """Whether this is process 0, which alone prints and writes what is not split over all."""
        return self.index == 0

    @property
    def alone(self) -> bool:
        """Whether there is no other."""
        return not self._links

    def place(self, index: int) -> str:
        """Process 3, or where they are on several machines process 3 on NAME."""
        return f"process {index}" + (f" on {self.hosts[index]}" if len(set(self.hosts)) > 1 else "")

    def gather(self, what: str, value: Any) -> list[Any]:
        """Every process's value (JSON), by process, on every process; none goes on before all have come here.

        Waits as long as all processes live, and says every minute on process 0 whom it waits for.

        Raises:
          Gone: a process is.
        """
        self.offer(what, value)
        return self.collected(what)

    def offer(self, what: str, value: Any) -> None:
        """The first half of `gather`: says what this process's value is, and waits for nobody."""
        self._offered = value
        if not self.first:
            try:
                self._links[0].send(value)
            except Lost:
                raise self._gone([0], what) from None

    def collected(self, what: str) -> list[Any]:
        """The second half of `gather`: every process's value. Between the halves nothing else may be gathered."""
        if not self.first:
            try:
                return self._links[0].receive()
            except Lost:
                raise self._gone([0], what) from None
        missing, values = dict(enumerate(self._links, 1)), {0: self._offered}
        other = 0
        try:
            while missing:
                ready = wait([link.connection for link in missing.values()], _ASK_AGAIN)
                if not ready:
                    print(f"bertfam: waiting for {named(missing)}: {what}", file=sys.stderr, flush=True)
                for other in [other for other, link in missing.items() if link.connection in ready]:
                    values[other] = missing.pop(other).receive()
            found = [values[index] for index in range(len(values))]
            for other, link in enumerate(self._links, 1):  # noqa: B007
                link.send(found)
        except Lost:
            raise self._gone([other], what) from None
        return found

    def outlive(self, seconds: float) -> None:
        """On process 0, between what is gathered: waits until all others have ended, or so long."""
        end = time.monotonic() + seconds
        for link in self._links if self.first else ():
            wait([link.connection], max(end - time.monotonic(), 0))

    def explained(self, error: BaseException) -> BaseException:
        """What lies behind an error of JAX's: `Gone` where another process has left it alone in a collective."""
        import jax

        if self.alone or not isinstance(error, jax.errors.JaxRuntimeError):
            return error
        if self.first:
            ready = wait([link.connection for link in self.beside._links], _NOTICED)
            gone = [index for index, link in enumerate(self.beside._links, 1) if link.connection in ready]
            return self._gone(gone, "training") if gone else error
        try:
            self.beside._links[0].receive(_NOTICED)  # process 0 has told who is gone, see `abandon`
        except TimeoutError:
            return error
        except Lost:
            pass
        return Gone(1)

    def abandon(self) -> None:
        """On process 0, which has found another gone: the others need wait no longer, in a collective or for its answer."""
        for link in self._links if self.first else ():
            link.close()
        for link in self.beside._links if self.first else ():
            with contextlib.suppress(Lost):
                link.send(None)

    def _gone(self, others: Sequence[int], what: str) -> Gone:
        are, them = ("is", "its") if len(others) == 1 else ("are", "their")
        who = self.place(others[0]) if len(others) == 1 else named(others)
        return Gone(f"bertfam: error: {who} {are} gone before all were through with {what}; see {them} log")

    @contextmanager
    def together(self, what: str) -> Iterator[None]:
        """What every process does alone; afterwards all go on, or all end, with one line from process 0.

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
        self.all_end = True
        if error and (self.first or not isinstance(error, UserError | SystemExit)):
            raise error
        other, (status, line) = found[0]
        if not self.first or not line:
            raise SystemExit(status)
        if status == 2:
            raise UserError(f"process {other}: {line}")
        sys.exit(f"bertfam: error: {self.place(other)} has failed in {what} ({line}); see its log")

    def by_first(self, what: str, function: Callable[[], Any]) -> Any:
        """What process 0 does for all; the others wait for it. Returns on all what it has given there (JSON)."""
        value = None
        with self.together(what):
            if self.first:
                value = function()
        return self.gather(what, value)[0]

    def check_same(self, what: str, lines: Sequence[str]) -> None:
        """Raises UserError on process 0 (SystemExit on the others) unless all processes have the same lines."""
        with self.together(what):
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
    """(exit status, what to tell of it)."""
    if error is None:
        return None
    if isinstance(error, SystemExit):
        return (error.code if isinstance(error.code, int) else 1, "")
    if isinstance(error, UserError):
        return (2, str(error))
    return (1, f"{type(error).__name__}: {error}")


@contextmanager
def join(coordinator: str | None, count: int | None, index: int | None, seconds: float) -> Iterator[Processes]:
    """Meets the other processes and sets up JAX's collectives among them; must come before JAX is used.

    On all but process 0, stdout is shut. A process that fails leaves at once: it does not wait for the others to end, as JAX
    does, while they wait for it. Where all end, process 0 is the last: without its service JAX would kill the others.

    Args:
      coordinator: HOST:PORT of process 0.
      count: of processes.
      index: this process, from 0. Of these three, what is None is what the environment says; see `membership`.
      seconds: how long to wait for the others.

    Raises:
      UserError: the three do not go together, or some process does not come.
    """
    found = membership(Membership("flags", coordinator, count, index))
    if found is None:
        yield Processes()
        return
    coordinator, count, index = found.coordinator, found.count, found.index
    assert coordinator is not None and count is not None and index is not None
    origin = "" if found.told_by == "flags" else f", as {found.told_by} say,"
    host, port = _address(coordinator)
    if not 1 <= count < 2**16:
        raise UserError(f"--num_processes={count} must be at least 1 and below 2^16")
    if not 0 <= index < count:
        raise UserError(f"--process_index={index}{origin} is not among the {count} processes 0 to {count - 1}")
    if not seconds > 0:
        raise UserError(f"--initialization_timeout={seconds:g} is not more than 0")
    links, beside = (meet(host, port, index, count, seconds) for _ in range(2))
    processes = Processes(index, links, beside, told_by=found.told_by)
    try:
        processes.hosts = processes.beside.hosts = processes.gather("their names", socket.gethostname())
        check_code(processes)
        _start_jax(coordinator, count, index, seconds, own_gpu(processes.hosts, index))
        if not processes.first:
            # The descriptor: libraries in C++ print too.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        yield processes
        processes.gather("the end", None)
    except BaseException as error:
        fault = processes.explained(error)
        fault.add_note(f"in {processes.place(index)}")  # told below a traceback
        status = tell(fault)
        if isinstance(fault, Gone):
            processes.abandon()
        if processes.all_end or processes.beside.all_end or isinstance(fault, TrainingError | Gone):
            processes.beside.outlive(_FAREWELL)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _address(coordinator: str) -> tuple[str, int]:
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 2**16:
        raise UserError(f"--coordinator={coordinator} is no address; write HOST:PORT, such as 10.0.0.1:8476")
    return host.strip("[]"), int(port)


def own_gpu(hosts: Sequence[str], index: int) -> int | None:
    """The only GPU that a process takes of those on its host, where others run there too; None: all that it sees.

    Args:
      hosts: the host of each process.
      index: this process.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if hosts.count(hosts[index]) == 1 or "JAX_LOCAL_DEVICE_IDS" in os.environ or visible and "," not in visible:
        return None  # alone there, or it has been given its own
    return hosts[:index].count(hosts[index])


def _start_jax(coordinator: str, count: int, index: int, seconds: float, gpu: int | None) -> None:
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # It would catch SIGTERM, so that a process which is told to end before training goes on; see bertfam.training.preemption.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        coordinator,
        count,
        index,
        local_device_ids=gpu,
        cluster_detection_method="deactivate",  # which would take one GPU on each node of SLURM, and ask metadata servers
        initialization_timeout=max(int(seconds), 1),
    )
