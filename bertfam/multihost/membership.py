"""Start of a process among several: rendezvous, check that all run the same code, JAX's collectives."""

import os
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from bertfam.errors import UserError, report
from bertfam.multihost.environment import Membership, membership
from bertfam.multihost.exit_status import LOST, ExitStatusLinks
from bertfam.multihost.processes import Processes, ProcessExited
from bertfam.multihost.rendezvous import meet
from bertfam.multihost.same_code import check_code

_LOOK = 0.5  # seconds
_BY_ITSELF = 5.0  # seconds in which a process that process 0 has left alone may end; half of those for which that waits


@contextmanager
def join(coordinator: str | None, count: int | None, index: int | None, seconds: float) -> Iterator[Processes]:
    """Meet the other processes and set up JAX's collectives; must run before JAX is used.

    On all but process 0, stdout is shut. A process that fails leaves at once: it does not wait for the others to end, as JAX
    does, while they wait for it. Process 0 is the last, see `Processes.leave`.

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
    origin = "" if found.source == "flags" else f", as {found.source} say,"
    host, port = _address(coordinator)
    if not 1 <= count < 2**16:
        raise UserError(f"--num_processes={count} must be at least 1 and below 2^16")
    if not 0 <= index < count:
        raise UserError(f"--process_index={index}{origin} is not among the {count} processes 0 to {count - 1}")
    if not seconds > 0:
        raise UserError(f"--initialization_timeout={seconds:g} is not more than 0")
    links, other_links, third = (meet(host, port, index, count, seconds) for _ in range(3))
    exit_status, over = ExitStatusLinks(third), threading.Event()
    processes = Processes(index, links, other_links, exit_status, source=found.source)
    try:
        processes.hosts = processes.others.hosts = processes.gather("their names", socket.gethostname())
        check_code(processes)
        _start_jax(coordinator, count, index, seconds, own_gpu(processes.hosts, index))
        if not processes.first:
            # The descriptor: libraries in C++ print too.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            threading.Thread(target=_follow, args=(exit_status, over), name="follower", daemon=True).start()
        yield processes
        processes.gather("the end", None)
        over.set()
    except BaseException as error:
        fault = processes.explain(error)
        fault.add_note(f"in {processes.place(index)}")  # told below a traceback
        if isinstance(fault, ProcessExited) and fault.line:
            print(fault.line, file=sys.stderr)
        status = report(fault)
        sys.stdout.flush()
        sys.stderr.flush()
        processes.leave(status)
        os._exit(status)


def _follow(exit_status: ExitStatusLinks, over: threading.Event) -> None:
    """End a process with the exit status of process 0; its main thread may wait in a collective until JAX kills it."""
    while not over.wait(_LOOK):
        if ended := exit_status.received(0):
            if not over.wait(_BY_ITSELF):
                os._exit(LOST if ended[0] is None else ended[0])
            return


def _address(coordinator: str) -> tuple[str, int]:
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 2**16:
        raise UserError(f"--coordinator={coordinator} is no address; write HOST:PORT, such as 10.0.0.1:8476")
    return host.strip("[]"), int(port)


def own_gpu(hosts: Sequence[str], index: int) -> int | None:
    """Return the one GPU that a process uses on a host shared with other processes; None: all visible ones.

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
    # It would catch SIGTERM, so that a process which is told to end before training goes on; see bertfam.multihost.preemption.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        coordinator,
        count,
        index,
        local_device_ids=gpu,
        cluster_detection_method="deactivate",  # which would take one GPU on each node of SLURM, and ask metadata servers
        initialization_timeout=max(int(seconds), 1),
    )
