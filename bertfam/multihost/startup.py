"""Start of a process among several: rendezvous, check that all run the same code, JAX's collectives."""

import os
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from bertfam.errors import UserError, report
from bertfam.multihost.environment import Membership, membership
from bertfam.multihost.exit_status import ExitStatusLinks
from bertfam.multihost.processes import Processes, ProcessExited
from bertfam.multihost.rendezvous import Meeting, bind_address, meet
from bertfam.multihost.same_code import check_code
from bertfam.storage.faults import explain

# For a process to end by itself after another has; process 0 waits twice as long for the others. It has more time
# itself, because it may be saving. JAX aborts it 100 seconds after the last sign of a lost process, and a lost
# machine is detected within a minute.
_GRACE_SECONDS, _GRACE_SECONDS_FIRST = 5.0, 30.0


@contextmanager
def join(coordinator: str | None, count: int | None, index: int | None, seconds: float, name: str) -> Iterator[Processes]:
    """Meet the other processes and set up JAX's collectives; must run before JAX is used.

    On all processes but 0, stdout is redirected to /dev/null. A process that fails exits at once; JAX would wait for the others,
    which wait for it. Process 0 exits last, see `Processes.leave`.

    Args:
      coordinator: HOST:PORT of process 0.
      count: number of processes.
      index: index of this process, from 0. A None among these three is read from the environment; see `membership`.
      seconds: how long to wait for the other processes.
      name: name of the run that all processes have, its folder; without the variable BERTFAM_RUN_TOKEN, which launchers set to
        a secret, its processes recognise each other by it.

    Raises:
      UserError: if the three are inconsistent, or a process does not connect in time.
    """
    member = membership(Membership("flags", coordinator, count, index))
    if member is None:
        processes = Processes()
        with processes.held:
            yield processes
        return
    coordinator, count, index = member.coordinator, member.count, member.index
    assert coordinator is not None and count is not None and index is not None
    origin = "" if member.source == "flags" else f" (from {member.source})"
    host, port = _address(coordinator)
    if not 1 <= count < 2**16:
        raise UserError(f"--num_processes={count} must be at least 1 and below 2^16")
    if not 0 <= index < count:
        raise UserError(f"--process_index={index}{origin} is out of range; the processes are numbered 0 to {count - 1}")
    if not seconds > 0:
        raise UserError(f"--initialization_timeout={seconds:g} must be above 0")
    meeting = Meeting(host, port, count, os.environ.get("BERTFAM_RUN_TOKEN") or name, seconds, origin)
    links, other_links, third = (meet(meeting, index) for _ in range(3))
    exit_status, over = ExitStatusLinks(third), threading.Event()
    processes = Processes(index, links, other_links, exit_status, source=member.source)
    try:
        processes.hosts = processes.others.hosts = processes.gather("host names", socket.gethostname())
        check_code(processes)
        threading.Thread(target=_follow, args=(processes, exit_status, over), name="follower", daemon=True).start()
        _start_jax(coordinator, count, index, seconds, own_gpu(processes.hosts, index), bind_address(host))
        if not processes.first:
            # Redirect the descriptor, because C++ libraries print too.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        yield processes
        processes.gather("the end of the run", None)
        over.set()
        processes.held.close()
    except BaseException as error:
        fault = explain(processes.explain(error))
        fault.add_note(f"in {processes.place(index)}")  # printed below a traceback
        if isinstance(fault, ProcessExited):
            processes.tell(fault.line)
        _leave(processes, report(fault))


def _follow(processes: Processes, exit_status: ExitStatusLinks, over: threading.Event) -> None:
    """End this process once another has ended, unless the run is over; the main thread may be asleep or stuck in a collective.

    Where process 0 was killed, this is at once: JAX notices it too, and aborts this process (SIGABRT) a few tenths of a second
    later. The callback that jaxlib's client (0.10.2) takes in place of the abort cannot be a Python function.
    """
    exit_status.wait_for_first()
    ended = processes.exited(0)
    assert ended is not None
    if over.wait(_GRACE_SECONDS_FIRST if processes.first else 0 if ended.line else _GRACE_SECONDS):
        return
    processes.tell(ended.line)
    _leave(processes, ended.code)


def _leave(processes: Processes, status: int) -> NoReturn:
    """Exit with a status that the others receive, without JAX, which would wait for them."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
        processes.leave(status)
        processes.held.close()
    finally:
        os._exit(status)


def _address(coordinator: str) -> tuple[str, int]:
    host, _, port = coordinator.rpartition(":")
    if not host or "/" in host or not (port.isascii() and port.isdecimal()) or not 0 < int(port) < 2**16:
        raise UserError(f"--coordinator={coordinator} is not an address; write HOST:PORT, such as 10.0.0.1:8476")
    return host.strip("[]"), int(port)


def own_gpu(hosts: Sequence[str], index: int) -> int | None:
    """Return the one GPU that a process uses on a host shared with other processes; None: all visible ones.

    Args:
      hosts: the host name of each process.
      index: index of this process.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if hosts.count(hosts[index]) == 1 or "JAX_LOCAL_DEVICE_IDS" in os.environ or visible and "," not in visible:
        return None  # the only process on its host, or its GPU is chosen already
    return hosts[:index].count(hosts[index])


def _start_jax(coordinator: str, count: int, index: int, seconds: float, gpu: int | None, address: str | None) -> None:
    import jax

    _, _, port = coordinator.rpartition(":")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # The service would swallow a SIGTERM sent before training; see bertfam.multihost.preemption.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        coordinator,
        count,
        index,
        local_device_ids=gpu,
        cluster_detection_method="deactivate",  # detection uses one GPU per SLURM node and queries metadata servers
        initialization_timeout=max(int(seconds), 1),
        # By default JAX's service listens on all addresses of the machine.
        coordinator_bind_address=None if address is None else f"{f'[{address}]' if ':' in address else address}:{port}",
    )
